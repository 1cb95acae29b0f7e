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


@app.command()
def vllm(
    model: Annotated[
        Path | None, typer.Option("--model", help="The folder of a local model; default: one that is written here.")
    ] = None,
    heads: Annotated[
        str | None, typer.Option("--heads", help="Of the model that is written: HEADS_Q/HEADS_KVxHEAD_DIM.")
    ] = None,
    against: Annotated[
        list[str] | None, typer.Option("--against", help="A stock backend as vLLM names it; repeatable.")
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option("--mode", help="eager or a CUDA-graph mode, with +chunked, +ngram, +prefix, +tight; repeatable."),
    ] = None,
    runner: Annotated[list[str] | None, typer.Option("--runner", help="v1 or v2; repeatable.")] = None,
    layout: Annotated[list[str] | None, typer.Option("--layout", help="HND or NHD; repeatable.")] = None,
    block_size: Annotated[
        list[int] | None, typer.Option("--block-size", min=1, help="Tokens of a KV block; repeatable.")
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option("--batch", min=1, help="Prompts that are asked together; repeatable.")
    ] = None,
    longest: Annotated[int, typer.Option("--longest", min=0, help="Tokens of the longest prompt; 0: by device.")] = 0,
    tokens: Annotated[int, typer.Option("--tokens", min=0, help="Tokens of every answer; 0: by device.")] = 0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of prompts and weights.")] = 0,
    seconds: Annotated[float, typer.Option("--seconds", min=1.0, help="After which an engine is ended.")] = 900.0,
    jobs: Annotated[
        int, typer.Option("--jobs", min=0, max=64, help="Engines at a time; 0: what the GPU has room for, else one.")
    ] = 0,
    append: Annotated[
        list[Path] | None,
        typer.Option("--append", help="Keep the rows of this file that are not made anew; repeatable."),
    ] = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """vLLM on Mjolnir against its own backends, by log-probabilities; exit code 1 when any answer is wrong."""

    def work() -> Answer:
        from mjolnir.research import verify_vllm as twin

        options = twin.Options(
            model, twin.shape_of(heads), tuple(against or ()), tuple(mode or ()), tuple(runner or ()),
            tuple(layout or ()), tuple(block_size or ()), tuple(batch or ()), longest, tokens, seed, seconds,
            tuple(append or ()), out, jobs,
        )  # fmt: skip
        return twin.verify(options)

    answer(work, as_json)
