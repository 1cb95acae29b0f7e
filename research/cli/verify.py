"""`mjolnir verify`: whether what runs is right."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mjolnir.research.answer import Answer
from mjolnir.research.cli.output import Json, answer

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Check that what runs is right.")

Out = Annotated[Path | None, typer.Option("--out", help="A file for rows and figures.")]


@app.callback()
def group() -> None:
    """Check that what runs is right."""


@app.command()
def correctness(
    cases: Annotated[int, typer.Option("--cases", min=1, help="How many cases; 400 cover all pairs.")] = 420,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the matrix and of its numbers.")] = 0,
    device: Annotated[str, typer.Option("--device", help="cuda, cpu (the emulator alone) or auto.")] = "auto",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """The kernel over all that its contract promises, against emulator and f64; exit code 1 when any case is wrong."""

    def work() -> Answer:
        from mjolnir.research import correctness as twin

        return twin.correctness(cases, seed, device, out)

    answer(work, as_json)


@app.command()
def pdl(
    replays: Annotated[int, typer.Option("--replays", min=1, help="Graph replays of each shape.")] = 10_000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of all numbers.")] = 0,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Overlapping launches (PDL) against plain ones, bit by bit, while inputs change; exit code 1 when any differ."""

    def work() -> Answer:
        from mjolnir.research import pdl as twin

        return twin.pdl(replays, seed, out)

    answer(work, as_json)


@app.command()
def sanitizer(
    tools: Annotated[
        list[str] | None, typer.Option("--tool", help="memcheck, racecheck, initcheck or synccheck; again for more.")
    ] = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """NVIDIA compute-sanitizer over a case of each class of kernel; exit code 1 when it reports anything."""

    def work() -> Answer:
        from mjolnir.research import sanitizer as twin

        return twin.sanitizer(tools or (), out)

    answer(work, as_json)
