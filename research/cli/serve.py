"""`mjolnir serve`: vLLM's server on Mjolnir."""

from __future__ import annotations

from typing import Annotated

import typer

from mjolnir.research.answer import Answer
from mjolnir.research.cli.output import Json, answer

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Settings of a command that hands on what it does not know."""


def serve(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="A local folder, or a name that vLLM understands.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the command and its warnings, start nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """`vllm serve` on Mjolnir: backend, layout and KV dtype set, and all further options passed on."""

    def work() -> Answer:
        from mjolnir.research import serve as twin

        return twin.serve(model, context.args, dry_run=dry_run)

    answer(work, as_json)
