"""`mjolnir verify correctness`: the kernel over everything that its contract promises, against emulator and f64.

The cases are those of `mjolnir.kernel.matrix`: all pairs of what may be asked for, on hostile memory. Errors are given
over their bound (`mjolnir.kernel.tolerance`): right up to 1. On the GPU each case is launched twice, with arguments in
different forms (the bits must be the same, and what lies around the output untouched), some are replayed from a graph
with other lengths, and there are a pool beyond 4 GB and a context of a million tokens. Without a GPU the emulator
itself is compared with f64.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mjolnir.kernel.device import H200, Device, current_device
from mjolnir.kernel.matrix import Probe, matrix_cases
from mjolnir.kernel.sources import kernel_hash
from mjolnir.research.answer import Answer, Exit, Failure, MissingFailure, UsageFailure
from mjolnir.research.bench.replay import written
from mjolnir.research.correctness_truth import Truth, in_order, one_thread, packed_truth, processes, unpacked
from mjolnir.research.correctness_watch import Progress, Watch

SCHEMA = "mjolnir.correctness/1"
CASES = 420
GRAPH_EVERY = 12
"""Every so many cases one is also replayed from a graph."""

MOST_SHOWN = 10
ERRORS = ("excess", "excess_emulator", "lse_excess", "lse_excess_emulator")
Row = dict[str, Any]


def correctness(cases: int = CASES, seed: int = 0, device: str = "auto", out: Path | None = None) -> Answer:
    """Judge the matrix.

    Args:
        cases: how many.
        seed: of the matrix and its numbers.
        device: "cuda", "cpu", or "auto" for the former where there is one.
        out: a file for rows and figures.

    Returns:
        An answer with the exit code 1 when anything was wrong.

    Raises:
        UsageFailure: another device.
        MissingFailure: no GPU where one was asked for.
        Failure: the kernel does not compile, or a launch failed.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise UsageFailure(f"--device {device!r} is none of auto, cpu and cuda")
    gpu = None if device == "cpu" else _gpu(required=device == "cuda")
    started = time.monotonic()
    with one_thread(), processes() as executor:
        rows, refused = on_gpu(cases, seed, gpu, executor) if gpu else on_cpu(cases, seed, executor)
    rows = [{**row, "wrong": is_wrong(row)} for row in rows]
    seconds = round(time.monotonic() - started, 1)
    data = {
        "schema": SCHEMA,
        "figures": figures(rows),
        "rows": [{**row, **{name: _finite(row[name]) for name in ERRORS if name in row}} for row in rows],
        "refused": refused,
        "taken": {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "device": gpu.name if gpu else "cpu",
            "arch": gpu.arch if gpu else "",
            "kernel": kernel_hash(),
            "seed": seed,
            "seconds": seconds,
        },
    }
    what = f"kernel on {gpu.name}" if gpu else "emulator on the CPU"
    wrong = any(row["wrong"] for row in rows)
    view = "\n".join([*table(rows, f"{what}, seed {seed}, {seconds} s"), *written(data, out, indent=1)])
    return Answer(data, view, Exit.FAILED if wrong else Exit.DONE)


def _gpu(*, required: bool) -> Device | None:
    try:
        return current_device()
    except RuntimeError as error:
        if required:
            raise MissingFailure(f"{error}; --device cpu compares the emulator with f64") from error
        return None


def on_cpu(cases: int, seed: int, executor: Executor) -> tuple[list[Row], dict[str, str]]:
    """The emulator's own errors, over the matrix of the H200."""
    probes = matrix_cases(seed, cases)
    truths = in_order(executor, packed_truth, ((probe, H200) for probe in probes))
    rows, progress = [], Progress(len(probes))
    for probe, data in zip(probes, truths, strict=True):
        progress.begin()
        truth = unpacked(data)
        errors = {"excess": truth.excess, "lse_excess": truth.lse_excess}
        rows.append({**described(probe, H200), **errors, "problems": []})
    return rows, {}


def on_gpu(cases: int, seed: int, device: Device, executor: Executor) -> tuple[list[Row], dict[str, str]]:
    """The kernel's errors, and which variants were left because they spill."""
    from mjolnir.kernel.geometry import Geometry
    from mjolnir.research import correctness_gpu as gpu
    from mjolnir.research.correctness_build import settle

    settled = settle(matrix_cases(seed, cases, device), device, executor)
    probes = settled.probes
    far = gpu.far_probes(seed) if _room(2 * gpu.FAR_BYTES) else ()
    every = [*probes, *far]
    truths = in_order(executor, packed_truth, ((probe, device) for probe in every))
    rows: list[Row] = [
        {"class": "spills", "geometry": geometry, "problems": [f"with default knobs: {reason}"]}
        for geometry, reason in settled.faults.items()
    ]
    long = Geometry(8, 1)
    with Watch(len(every) + 1) as watch:
        for number, (probe, data) in enumerate(zip(every, truths, strict=True)):
            truth = unpacked(data)
            watch.begin(str(probe))
            judge = gpu.judge if number < len(probes) else gpu.judge_far
            rows.append(_judged(probe, truth, device, judge))
            if number % GRAPH_EVERY == 0 and judge is gpu.judge:
                rows.append({**_judged(probe, truth, device, gpu.judge_graph), "class": "graph"})
        watch.begin(f"{gpu.MILLION} tokens of {long}")
        rows.append({"class": "million", "geometry": str(long), "seed": seed, **gpu.judge_million(long, device, seed)})
    return rows, settled.refused


def _judged(
    probe: Probe, truth: Truth, device: Device, judge: Callable[[Probe, Truth, Device], Mapping[str, Any]]
) -> Row:
    try:
        return {**described(probe, device), **judge(probe, truth, device)}
    except RuntimeError as error:
        raise Failure(f"a launch failed: {error}\nin {probe}") from error


def _room(size: int) -> bool:
    import torch

    return torch.cuda.mem_get_info()[0] >= size


def described(probe: Probe, device: Device) -> Row:
    """What a row says of its case."""
    case, engine = probe.case, probe.shape(device)
    names = (
        "margin", "layout", "token_major", "block_gap", "scales", "scale_gain", "query", "query_gain", "q_mul",
        "o_mul", "seed",
    )  # fmt: skip
    return {
        "class": case.name,
        "geometry": str(case.geometry),
        "engine": asdict(engine),
        "setting": probe.setting.as_dict(),
        "batch": len(case.lengths),
        "tokens": sum(case.tokens),
        "lse": probe.lse,
        "out": probe.out,
        **{name: getattr(case, name) for name in names},
    }


def is_wrong(row: Row) -> bool:
    """Whether an error is above its bound, or anything else was found."""
    return bool(row["problems"]) or not all(row.get(name, 0.0) <= 1 for name in ERRORS)


def figures(rows: Sequence[Row]) -> dict[str, float | int | None]:
    """The worst of every kind of error (None: not finite), and how many cases there are and are wrong."""
    worst = {f"worst_{name}": _finite(_worst(rows, name)) for name in ERRORS}
    return {"cases": len(rows), "wrong": sum(row["wrong"] for row in rows), **worst}


def _worst(rows: Sequence[Row], name: str) -> float:
    """The largest error of a kind; 0 where there is none."""
    return max((row[name] for row in rows if name in row), default=0.0)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def table(rows: Sequence[Row], title: str) -> Iterator[str]:
    """Worst errors over their bounds, by class of case and over all, and the first cases that are wrong."""
    yield f"{title}: largest error over its bound (right up to 1)"
    yield f"{'class':<12}{'cases':>6}{'wrong':>6}  {'f64':>7}{'emulator':>10}{'LSE f64':>9}{'LSE emul.':>11}"
    classes = sorted({row["class"] for row in rows})
    for name, members in (*((c, [row for row in rows if row["class"] == c]) for c in classes), ("all", rows)):
        f64, emulator, lse, lse_emulator = (_shown(members, error) for error in ERRORS)
        wrong = sum(row["wrong"] for row in members)
        yield f"{name:<12}{len(members):>6}{wrong:>6}  {f64:>7}{emulator:>10}{lse:>9}{lse_emulator:>11}"
    for row in [row for row in rows if row["wrong"]][:MOST_SHOWN]:
        yield f"WRONG: {', '.join(f'{name}={value}' for name, value in row.items() if name != 'wrong')}"


def _shown(rows: Sequence[Row], name: str) -> str:
    return f"{_worst(rows, name):.3f}" if any(name in row for row in rows) else "-"
