"""`mjolnir autoresearch`: run campaigns and look at them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from mjolnir.research.answer import Answer
from mjolnir.research.cli import options, reading
from mjolnir.research.cli.output import Json, answer, console

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Run tuning campaigns, and look at what they found."
)

Device = Annotated[str, typer.Option("--device", help="auto, cuda, cuda:<number>, or replay (times from a recording).")]
Devices = Annotated[
    str, typer.Option("--device", help="auto, cuda:<number>, several (cuda:0,cuda:1), or replay (a recording's times).")
]


@app.command()
def run(
    tag: Annotated[
        str | None, typer.Option("--tag", help="Name of the campaign; a fresh one is made without it.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a campaign that exists.")] = False,
    device: Devices = "auto",
    gate_url: options.GateUrl = None,
    recording: Annotated[
        str | None, typer.Option("--recording", help="With --device replay: a packaged recording's name, or a folder.")
    ] = None,
    effort: Annotated[
        str | None,
        typer.Option("--effort", help="quick (40 trials, 2 min of search), default (150, 10) or full (600, 40)."),
    ] = None,
    trials: Annotated[
        int | None, typer.Option("--trials", min=1, help="End the search after this many trials.")
    ] = None,
    minutes: Annotated[float | None, typer.Option("--minutes", help="End the search after so long, above 0.")] = None,
    geometry: options.Geometries = None,
    model: options.Model = None,
    tensor_parallel: options.TensorParallel = None,
    page_size: options.PageSize = None,
    placement: options.Placement = None,
    workload: options.Workload = None,
    pin: Annotated[
        list[str] | None, typer.Option("--pin", help="Hold a knob, such as kv_stages=4; repeatable.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the search; default 0.")] = None,
    proposer: Annotated[
        str | None,
        typer.Option("--proposer", help="gp (default), tpe, cmaes, qmc, random, exhaustive or external."),
    ] = None,
    proposer_command: Annotated[
        str | None,
        typer.Option("--proposer-command", help="With --proposer external: JSON lines in, settings as JSON lines out."),
    ] = None,
    proposer_seconds: Annotated[
        float | None, typer.Option("--proposer-seconds", min=0.1, help="Time limit of the command; default 60.")
    ] = None,
    until_flat: Annotated[
        bool | None,
        typer.Option("--until-flat/--no-until-flat", help="End the search when what is left to gain is noise."),
    ] = None,
    race: Annotated[
        bool | None, typer.Option("--race/--no-race", help="Drop clearly slow settings after a few points.")
    ] = None,
    warm_start: Annotated[
        bool | None,
        typer.Option("--warm-start/--no-warm-start", help="Try first what was good nearby; on but for a replay."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print space, compiles, time and smallest gain; record nothing.")
    ] = False,
    alpha: Annotated[
        float | None, typer.Option("--alpha", help="Chance of a false promotion in the campaign, at most (0.05).")
    ] = None,
    robust: Annotated[
        bool, typer.Option("--robust", help="Choose by the worst context length of a bucket, not by the weighted mean.")
    ] = False,
    promote: Annotated[bool, typer.Option("--promote", help="Write the rows that are proven faster.")] = False,
    defaults: Annotated[
        Path | None,
        typer.Option(*options.TABLE_NAMES, help="A scratch table that stands in for the user's and takes the rows."),
    ] = None,
    export: Annotated[
        Path | None, typer.Option("--export", help="Export the campaign to this folder at its end.")
    ] = None,
    depth: Annotated[
        int | None, typer.Option("--depth", min=1, help="Trials asked ahead, and most devices at work at once (4).")
    ] = None,
    noise: Annotated[
        int | None, typer.Option("--noise", min=1, help="Comparisons of the default with itself at the start (30).")
    ] = None,
    instances: Annotated[
        int | None, typer.Option("--instances", min=1, help="Instances that a candidate is tested with, at most (60).")
    ] = None,
    group: Annotated[
        int | None, typer.Option("--group", min=1, help="Instances that one fresh process takes of a candidate (2).")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option("--storage", help="Share the campaign with workers on other hosts through this database."),
    ] = None,
    lease_seconds: options.LeaseSeconds = 30.0,
    ledger: options.Ledger = None,
    as_json: Json = False,
) -> None:
    """Search for the fastest knobs, prove the best of them, and record every trial."""

    def work() -> Answer:
        from mjolnir.research import campaign, campaigns, progress
        from mjolnir.research.request import Request

        geometries = geometry or []
        request = Request(
            tag=tag, resume=resume, device=device, gate_url=gate_url, recording=recording, effort=effort,
            trials=trials, minutes=minutes, seed=seed, proposer=proposer, proposer_command=proposer_command,
            proposer_seconds=proposer_seconds, until_flat=until_flat, race=race, warm_start=warm_start,
            dry_run=dry_run, alpha=alpha, robust=robust, geometry=next(iter(geometries), None), placement=placement,
            workload=workload, model=model, tensor_parallel=tensor_parallel, page_size=page_size,
            pins=tuple(pin or ()), promote=promote, defaults=defaults, ledger=ledger, export=export,
            depth=depth, noise=noise, instances=instances, group=group, storage=storage,
            lease_seconds=lease_seconds,
            command=("mjolnir", *sys.argv[1:]),
        )  # fmt: skip
        screen = progress.screen(console(stderr=as_json))
        return campaigns.run(request, geometries, screen) if len(geometries) > 1 else campaign.run(request, screen)

    answer(work, as_json)


@app.command()
def worker(
    storage: Annotated[
        str,
        typer.Option("--storage", help="Database that the hosts share: postgresql+psycopg://USER@HOST/DATABASE."),
    ],
    tag: Annotated[str, typer.Option("--tag", help="The campaign, which `run --storage` has opened.")],
    device: Devices = "auto",
    gate_url: options.GateUrl = None,
    recording: Annotated[
        str | None, typer.Option("--recording", help="A folder that holds the recording which the campaign replays.")
    ] = None,
    proposer_command: Annotated[
        str | None, typer.Option("--proposer-command", help="Allow the campaign's external proposer to run here.")
    ] = None,
    lease_seconds: options.LeaseSeconds = 30.0,
    ledger: options.Ledger = None,
    as_json: Json = False,
) -> None:
    """Join a campaign that another host has opened, and measure for it until it ends."""

    def work() -> Answer:
        from mjolnir.research import campaign, progress
        from mjolnir.research.request import Request

        request = Request(
            tag=tag, resume=True, device=device, gate_url=gate_url, recording=recording, ledger=ledger,
            proposer_command=proposer_command, storage=storage, worker=True, lease_seconds=lease_seconds,
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
    grid: Annotated[
        str, typer.Option("--grid", help="coarse (1,404 settings) or full (3,960, and the best of them over again).")
    ] = "coarse",
    pairs: Annotated[
        int | None, typer.Option("--pairs", min=8, help="A/A pairs per point; 200, of the full grid 2000.")
    ] = None,
    rebuilds: Annotated[
        int | None, typer.Option("--rebuilds", min=1, help="Rebuilds of the default; 10, of the full grid 30.")
    ] = None,
    instances: Annotated[
        int | None,
        typer.Option("--instances", min=0, help="Further instances of the cells near the best; 0, of the full grid 6."),
    ] = None,
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
        say = console(stderr=as_json).print
        return twin.record(request, name, out, minutes, say, grid, pairs, rebuilds, instances)

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


app.command(name="list")(reading.list_)
app.command()(reading.show)
app.command()(reading.note)


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
    tag: Annotated[str, typer.Argument(help="The campaign.", autocompletion=options.known_tags)],
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


@app.command()
def study(
    tag: Annotated[str, typer.Argument(help="The campaign.", autocompletion=options.known_tags)],
    storage: Annotated[str, typer.Option("--storage", help="Database for the study, such as sqlite:///study.db.")],
    ledger: options.Ledger = None,
    as_json: Json = False,
) -> None:
    """Write a campaign's trials to Optuna's storage, for optuna-dashboard."""

    def work() -> Answer:
        from mjolnir import ledger as ledgers
        from mjolnir.research import study as twin

        with ledgers.open(ledger) as opened:
            return twin.study(opened, tag, storage)

    answer(work, as_json)


@app.command(name="try")
def try_(
    message: Annotated[str, typer.Option("--message", "-m", help="What is changed, and why.")],
    tag: Annotated[str | None, typer.Option("--tag", help="The series; its branch is autoresearch/TAG (try).")] = None,
    branch: Annotated[
        str | None, typer.Option("--branch", help="Take the change from this revision, not from the work tree.")
    ] = None,
    base: Annotated[
        str | None, typer.Option("--base", help="What a new series begins at; default HEAD, later its branch's tip.")
    ] = None,
    retune: Annotated[bool, typer.Option("--retune", help="Tune the knobs of base and change first.")] = False,
    device: Annotated[str, typer.Option("--device", help="auto, cuda or cuda:<number>.")] = "auto",
    effort: Annotated[str | None, typer.Option("--effort", help="With --retune: quick, default or full.")] = None,
    geometry: options.Geometry = None,
    placement: options.Placement = None,
    workload: options.Workload = None,
    pin: Annotated[
        list[str] | None, typer.Option("--pin", help="Hold a knob, such as kv_stages=4; repeatable.")
    ] = None,
    alpha: Annotated[
        float | None, typer.Option("--alpha", help="Chance that a base gives way falsely, at most (0.05).")
    ] = None,
    ledger: options.Ledger = None,
    as_json: Json = False,
) -> None:
    """Try a change of the kernel's sources: measure it against its base, record it, keep it or discard it."""

    def work() -> Answer:
        from mjolnir.research import progress
        from mjolnir.research.request import Request
        from mjolnir.research.source.experiment import Ask, attempt

        request = Request(
            tag=tag, device=device, effort=effort, geometry=geometry, placement=placement, workload=workload,
            pins=tuple(pin or ()), alpha=alpha, ledger=ledger, command=("mjolnir", *sys.argv[1:]),
        )  # fmt: skip
        return attempt(request, Ask(message, branch, base, retune), progress.screen(console(stderr=as_json)))

    answer(work, as_json)
