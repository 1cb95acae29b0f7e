"""`mjolnir autoresearch`: run campaigns and look at them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from mjolnir.research.answer import Answer
from mjolnir.research.cli import options
from mjolnir.research.cli.output import Json, answer, console

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Run tuning campaigns, and look at what they found."
)

Device = Annotated[str, typer.Option("--device", help="auto, cuda, cuda:<number>, or replay (times from a recording).")]


@app.command()
def run(
    tag: Annotated[
        str | None, typer.Option("--tag", help="Name of the campaign; a fresh one is made without it.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a campaign that exists.")] = False,
    device: Device = "auto",
    recording: Annotated[
        str | None, typer.Option("--recording", help="With --device replay: a packaged recording's name, or a folder.")
    ] = None,
    effort: Annotated[
        str | None, typer.Option("--effort", help="quick (40 trials, 2 min), default (150, 10) or full (600, 40).")
    ] = None,
    trials: Annotated[int | None, typer.Option("--trials", min=1, help="Stop after this many trials.")] = None,
    minutes: Annotated[float | None, typer.Option("--minutes", help="Stop after this much time, above 0.")] = None,
    geometry: options.Geometry = None,
    placement: options.Placement = None,
    workload: options.Workload = None,
    pin: Annotated[
        list[str] | None, typer.Option("--pin", help="Hold a knob, such as kv_stages=4; repeatable.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the search; default 0.")] = None,
    proposer: Annotated[str | None, typer.Option("--proposer", help="tpe or random; default tpe.")] = None,
    promote: Annotated[bool, typer.Option("--promote", help="Write the rows that are proven faster.")] = False,
    defaults: Annotated[
        Path | None,
        typer.Option("--defaults", help="A scratch table that stands in for the user's and takes the rows."),
    ] = None,
    export: Annotated[
        Path | None, typer.Option("--export", help="Export the campaign to this folder at its end.")
    ] = None,
    ledger: options.Ledger = None,
    as_json: Json = False,
) -> None:
    """Search for the fastest knobs, prove the best of them, and record every trial."""

    def work() -> Answer:
        from mjolnir.research import campaign, progress
        from mjolnir.research.request import Request

        request = Request(
            tag=tag, resume=resume, device=device, recording=recording, effort=effort, trials=trials, minutes=minutes,
            seed=seed, proposer=proposer, geometry=geometry, placement=placement, workload=workload,
            pins=tuple(pin or ()), promote=promote, defaults=defaults, ledger=ledger, export=export,
            command=("mjolnir", *sys.argv[1:]),
        )  # fmt: skip
        return campaign.run(request, progress.screen(console(stderr=as_json)))

    answer(work, as_json)


@app.command()
def record(
    name: Annotated[str, typer.Option("--name", help="Name of the recording.")],
    out: Annotated[Path, typer.Option("--out", help="Its folder; one that was begun there goes on.")],
    device: Annotated[str, typer.Option("--device", help="auto, cuda or cuda:<number>.")] = "auto",
    minutes: Annotated[
        float, typer.Option("--minutes", min=0.1, help="Stop after this much time; begin again to go on.")
    ] = 30.0,
    geometry: options.Geometry = None,
    placement: options.Placement = None,
    workload: options.Workload = None,
    as_json: Json = False,
) -> None:
    """Measure a whole knob grid on the GPU, so that campaigns can be replayed without one."""

    def work() -> Answer:
        from mjolnir.research import record as twin
        from mjolnir.research.request import Request

        request = Request(device=device, geometry=geometry, placement=placement, workload=workload)
        return twin.record(request, name, out, minutes, console(stderr=as_json).print)

    answer(work, as_json)


@app.command()
def status(tag: options.Tag = None, ledger: options.Ledger = None, as_json: Json = False) -> None:
    """How a campaign stands: running or ended, trials, best so far."""

    def work() -> Answer:
        from mjolnir import ledger as ledgers
        from mjolnir.research import listing

        with ledgers.open(ledger) as opened:
            return listing.status(opened, tag)

    answer(work, as_json)


@app.command(name="list")
def list_(ledger: options.Ledger = None, as_json: Json = False) -> None:
    """All campaigns of the ledger."""

    def work() -> Answer:
        from mjolnir import ledger as ledgers
        from mjolnir.research import listing

        with ledgers.open(ledger) as opened:
            return listing.listing(opened)

    answer(work, as_json)


@app.command()
def show(
    tag: options.Tag = None,
    trial: Annotated[int | None, typer.Argument(help="A trial's number; without it the whole campaign.")] = None,
    ledger: options.Ledger = None,
    as_json: Json = False,
) -> None:
    """What a campaign found, or one of its trials in full."""

    def work() -> Answer:
        from mjolnir import ledger as ledgers
        from mjolnir.research import show as twin

        with ledgers.open(ledger) as opened:
            return twin.show(opened, tag, trial)

    answer(work, as_json)


@app.command()
def stop(
    tag: Annotated[str | None, typer.Argument(help="The campaign; without it the one that runs.")] = None,
    ledger: options.Ledger = None,
    as_json: Json = False,
) -> None:
    """Ask a running campaign to end cleanly after the step in hand."""

    def work() -> Answer:
        from mjolnir import ledger as ledgers
        from mjolnir.research import stop as twin

        with ledgers.open(ledger) as opened:
            return twin.stop(opened, tag)

    answer(work, as_json)


@app.command()
def export(
    tag: Annotated[str, typer.Argument(help="The campaign.")],
    out: Annotated[Path | None, typer.Option("--out", help="The folder; else runs/<tag> beside the ledger.")] = None,
    ledger: options.Ledger = None,
    as_json: Json = False,
) -> None:
    """Write a campaign's records, tables, plots and report page to a folder."""

    def work() -> Answer:
        from mjolnir import ledger as ledgers
        from mjolnir.research import export as twin

        with ledgers.open(ledger) as opened:
            return twin.export(opened, tag, out)

    answer(work, as_json)
