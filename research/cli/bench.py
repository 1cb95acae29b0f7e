"""`mjolnir bench`: the figures that are kept under research/bench/results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mjolnir.research.answer import Answer
from mjolnir.research.bench.tuner import Part
from mjolnir.research.cli.output import Json, answer

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Measure the framework and the kernel.")

Out = Annotated[
    Path | None, typer.Option("--out", help="A file for the figures; without it they are printed and not kept.")
]


@app.callback()
def group() -> None:
    """Measure the framework and the kernel."""


@app.command()
def replay(
    out: Out = None,
    trials: Annotated[int, typer.Option("--trials", min=10, help="Trials of each replay.")] = 1000,
    as_json: Json = False,
) -> None:
    """How many trials a second a replayed campaign does, and what a record costs beyond its fsync."""

    def work() -> Answer:
        from mjolnir.research.bench import replay as twin

        return twin.replay(trials, out)

    answer(work, as_json)


@app.command()
def kernel(
    out: Out = None,
    geometry: Annotated[
        list[str] | None, typer.Option("--geometry", help="As for `autoresearch run`; repeatable.")
    ] = None,
    as_json: Json = False,
) -> None:
    """The decode kernel beside FlashInfer's, at the eight points of the workload decode8."""

    def work() -> Answer:
        from mjolnir.research.bench import kernel as twin
        from mjolnir.research.request import DEFAULT_GEOMETRY

        return twin.kernel(geometry or [DEFAULT_GEOMETRY], out)

    answer(work, as_json)


@app.command()
def tuner(
    out: Annotated[Path, typer.Option("--out", help="The folder for the figures.")] = Path("research/bench/results"),
    part: Annotated[Part, typer.Option("--part", help="What to measure.")] = Part.ALL,
    as_json: Json = False,
) -> None:
    """False promotions and the power to prove gains; how fast the search finds the best."""

    def work() -> Answer:
        from mjolnir.research.bench import tuner as twin

        return twin.tuner(out, part)

    answer(work, as_json)
