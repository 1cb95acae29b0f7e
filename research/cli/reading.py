"""`mjolnir autoresearch why` and `compare`: what is on record, told."""

from __future__ import annotations

from typing import Annotated

import typer

from mjolnir.research.answer import Answer
from mjolnir.research.cli import options
from mjolnir.research.cli.output import Json, answer


def why(
    tag: Annotated[str | None, typer.Argument(help="The campaign; left out when a row is asked for.")] = None,
    what: Annotated[str | None, typer.Argument(help="A trial's number, or bucket=<batch>, such as bucket=8.")] = None,
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="The row in force for this batch.")] = None,
    device: Annotated[str | None, typer.Option("--device", help="Name of the row's device, or a part of it.")] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", help="The row by its key: JSON, or FIELD=VALUE,... such as batch=8,heads_q=32."),
    ] = None,
    table: options.Table = None,
    records: options.Records = None,
    ledger: options.Ledger = None,
    as_json: Json = False,
) -> None:
    """Tell the story of a trial, of a bucket's decision, or of a row in force."""

    def work() -> Answer:
        from mjolnir import ledger as ledgers
        from mjolnir.research import why as twin
        from mjolnir.research.answer import UsageFailure
        from mjolnir.research.evidence import Evidence
        from mjolnir.research.explain import load

        row = key or (str(batch) if batch else None)
        if (row is None) == (tag is None) or (tag is not None and what is None):
            raise UsageFailure(
                "name a trial (why TAG 42), a bucket (why TAG bucket=8), or a row (why --batch 8 --device NAME)"
            )
        with ledgers.open(ledger) as opened:
            evidence = Evidence.of(opened, records or ())
            if row is not None:
                return twin.why_row(row, device, load(table).tables, evidence)
            return twin.why(str(what), evidence, str(tag))

    answer(work, as_json)


def compare(
    first: Annotated[str, typer.Argument(metavar="TAG", help="A campaign.")],
    second: Annotated[str, typer.Argument(metavar="TAG", help="Another one.")],
    records: options.Records = None,
    ledger: options.Ledger = None,
    as_json: Json = False,
) -> None:
    """Two campaigns side by side: best and proven by bucket, agreement, and what cannot be compared."""

    def work() -> Answer:
        from mjolnir import ledger as ledgers
        from mjolnir.research import compare as twin
        from mjolnir.research.evidence import Evidence

        with ledgers.open(ledger) as opened:
            return twin.compare(first, second, Evidence.of(opened, records or ()))

    answer(work, as_json)
