"""`mjolnir bench`: the figures that are kept under research/bench/results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mjolnir.research.answer import Answer, UsageFailure
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
        list[str] | None, typer.Option("--geometry", help="As for `autoresearch run`; repeatable. Default: all.")
    ] = None,
    point: Annotated[
        list[str] | None, typer.Option("--point", help="BATCHxTOKENS, or a sum of such; repeatable. Default: all.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--kernel", help="A kernel of the rows, or `chain`; repeatable. Default: all."),
    ] = None,
    tuned: Annotated[
        Path | None, typer.Option("--tuned", help="JSON with settings by geometry and point, or a result file.")
    ] = None,
    tune: Annotated[
        int, typer.Option("--tune", min=0, max=200, help="Settings to try at each point that --tuned does not name.")
    ] = 0,
    repeats: Annotated[int, typer.Option("--repeats", min=5, max=1000, help="Replays of each row.")] = 30,
    append: Annotated[
        list[Path] | None,
        typer.Option("--append", help="Keep the rows of this file that are not measured anew; repeatable."),
    ] = None,
    merge_only: Annotated[
        bool, typer.Option("--merge-only", help="Time nothing: merge files, make figures and plot.")
    ] = False,
    minutes: Annotated[
        float, typer.Option("--minutes", min=0.0, help="Begin no point after so long; 0: no limit.")
    ] = 0.0,
    as_json: Json = False,
) -> None:
    """The decode kernel beside its peers and the card's read ceiling."""

    def work() -> Answer:
        from mjolnir.research.bench import kernel as twin
        from mjolnir.research.bench.race import Options

        options = Options(
            tuple(geometry or ()), tuple(point or ()), tuple(only or ()), tuned, tune, repeats, tuple(append or ()),
            merge_only, minutes, out,
        )  # fmt: skip
        return twin.kernel(options)

    answer(work, as_json)


@app.command()
def vllm(
    out: Out = None,
    contender: Annotated[
        list[str] | None,
        typer.Option("--contender", help="mjolnir, mjolnir-default, or a stock backend; repeatable. Default: all."),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", help="qwen3-8b or head-dim-256; repeatable. Default: both.")
    ] = None,
    point: Annotated[
        list[str] | None, typer.Option("--point", help="BATCHxTOKENS; repeatable. Default: 1, 8, 64 x 4096, 32768.")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Decode steps of a window, at most.")] = 50,
    rounds: Annotated[
        int, typer.Option("--rounds", min=0, max=50, help="How often A-B-B-A is gone through, a window each; 0: A-B.")
    ] = 5,
    minutes: Annotated[
        float, typer.Option("--minutes", min=0.0, help="Begin nothing after so long; 0: no limit.")
    ] = 0.0,
    seconds: Annotated[
        float, typer.Option("--seconds", min=1.0, help="After which one that is not ready, or stuck, is ended.")
    ] = 900.0,
    runner: Annotated[str, typer.Option("--runner", help="v1 or v2; default: vLLM's choice.")] = "",
    append: Annotated[
        list[Path] | None,
        typer.Option("--append", help="Keep the rows of this file that are not measured anew; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """vLLM decoding on Mjolnir, beside vLLM on its own backends."""

    def work() -> Answer:
        from mjolnir.research.bench import vllm as twin

        options = twin.Options(
            tuple(contender or ()), tuple(model or ()), tuple(point or ()), steps, rounds, minutes, seconds, runner,
            tuple(append or ()), out,
        )  # fmt: skip
        return twin.vllm(options)

    answer(work, as_json)


@app.command()
def eager(
    out: Out = None,
    geometry: Annotated[str, typer.Option("--geometry", help="As for `autoresearch run`.")] = "32/8xd128,page=64,q=1",
    calls: Annotated[int, typer.Option("--calls", min=2000, help="Timed calls of each kind.")] = 4000,
    as_json: Json = False,
) -> None:
    """What one layer costs the host outside of a CUDA graph."""

    def work() -> Answer:
        from mjolnir.research.bench import eager as twin

        return twin.eager(geometry, calls, out)

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


@app.command()
def knobs(
    recording: Annotated[
        str | None, typer.Argument(help="A packaged recording or a folder; default: the first packaged one.")
    ] = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """What each knob is worth, with bounds, from a recording of the whole grid."""

    def work() -> Answer:
        from mjolnir.research.bench import knobs as twin
        from mjolnir.research.benches import load_recording

        return twin.knobs(load_recording(recording), out)

    answer(work, as_json)


@app.command()
def rule(
    recording: Annotated[
        str | None, typer.Argument(help="A packaged recording or a folder; default: the first packaged one.")
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            "--results", help="What `mjolnir bench kernel --tune` measured on the same card; else the checkout's."
        ),
    ] = None,
    run: Annotated[
        list[Path] | None, typer.Option("--run", help="Folder of an exported campaign on the same card; once for each.")
    ] = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """The numbers of the built-in rule by geometry and batch, and its regret against the best on record."""

    def work() -> Answer:
        from mjolnir.research.bench import rows
        from mjolnir.research.bench import rule as twin
        from mjolnir.research.benches import load_recording

        if results is None and not twin.RESULTS.exists():
            raise UsageFailure(
                f"{twin.RESULTS} is not there: name what `mjolnir bench kernel --tune` measured with --results, "
                f"such as research/bench/results/{twin.RESULTS.name} of a checkout"
            )
        return twin.rule(load_recording(recording), rows.read(results or twin.RESULTS), tuple(run or ()), out)

    answer(work, as_json)


@app.command()
def live(
    runs: Annotated[list[Path], typer.Argument(help="Folders of exported runs on a GPU.")],
    against: Annotated[
        Path | None, typer.Option("--against", help="An exported run of the same problem on fewer devices.")
    ] = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """How busy a live campaign kept its device, how long it waited between trials, which rows were proven."""

    def work() -> Answer:
        from mjolnir.research.bench import live as twin

        return twin.live(runs, against, out)

    answer(work, as_json)


@app.command()
def ledger(out: Out = None, as_json: Json = False) -> None:
    """What a record costs to keep, and how long it takes to find it again; some minutes."""

    def work() -> Answer:
        from mjolnir.research.bench import ledger as twin

        return twin.ledger(out)

    answer(work, as_json)
