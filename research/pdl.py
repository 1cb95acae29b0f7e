"""`mjolnir verify pdl`: launches that overlap against launches that do not, bit by bit, over thousands of replays.

Programmatic dependent launch starts a kernel while the one before it still runs, and is right only when nothing that
the chain writes is touched before the wait. `mjolnir.research.pdl_gpu` tells what is replayed. A shape is wrong when a
replay differs from the same chain without PDL; and, so that the comparison cannot be empty, when a replay's output is
that of the one before, or the last one is not what an f32 reference gives.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjolnir.kernel.device import Device, current_device
from mjolnir.kernel.sources import kernel_hash
from mjolnir.research.answer import Answer, Exit, Failure, MissingFailure
from mjolnir.research.bench.replay import written

if TYPE_CHECKING:
    from mjolnir.research.pdl_gpu import Shape

SCHEMA = "mjolnir.pdl/1"
REPLAYS = 10_000
Row = dict[str, Any]


def pdl(replays: int = REPLAYS, seed: int = 0, out: Path | None = None) -> Answer:
    """Replay every shape.

    Args:
        replays: of each shape.
        seed: of all numbers.
        out: a file for rows and figures.

    Returns:
        An answer with the exit code 1 when anything was wrong.

    Raises:
        MissingFailure: no GPU.
        Failure: the kernel does not compile, or a launch failed.
    """
    try:
        device = current_device()
    except RuntimeError as error:
        raise MissingFailure(f"{error}; the PDL stress test needs one") from error
    started = time.monotonic()
    rows = on_gpu(replays, seed, device)
    seconds = round(time.monotonic() - started, 1)
    data = {
        "schema": SCHEMA,
        "figures": figures(rows),
        "rows": [{**row, "excess": row["excess"] if math.isfinite(row["excess"]) else None} for row in rows],
        "taken": {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "device": device.name,
            "arch": device.arch,
            "kernel": kernel_hash(),
            "seed": seed,
            "seconds": seconds,
        },
    }
    title = f"PDL on against PDL off on {device.name}, seed {seed}, {seconds} s"
    view = "\n".join([*table(rows, title), *written(data, out, indent=1)])
    return Answer(data, view, Exit.FAILED if any(row["problems"] for row in rows) else Exit.DONE)


def on_gpu(replays: int, seed: int, device: Device) -> list[Row]:
    """A row for each shape."""
    from mjolnir.kernel.cache import CompileError
    from mjolnir.research.pdl_gpu import SHAPES, stress
    from mjolnir.research.pdl_writer import early_writer

    rows, write = [], early_writer(device.arch)
    for shape in SHAPES:
        began = time.monotonic()
        try:
            counts = stress(shape, replays, device, write, seed)
        except (CompileError, RuntimeError) as error:
            raise Failure(f"{shape.name}: {type(error).__name__}: {error}") from error
        row = {**described(shape), **counts, "seconds": round(time.monotonic() - began, 1)}
        rows.append({**row, "problems": problems(row, replays)})
    return rows


def described(shape: Shape) -> Row:
    """What a row says of its shape."""
    return {
        "shape": shape.name,
        "geometry": str(shape.geometry),
        "batch": shape.batch,
        "context": shape.context,
        "setting": shape.setting.as_dict(),
    }


def problems(row: Row, replays: int) -> list[str]:
    """What is wrong with a shape, in words."""
    found = []
    if row["mismatches"]:
        found.append(f"{row['mismatches']} replays differ from PDL off, replay {row['first_mismatch']} first")
    if row["replays"] != replays:
        found.append(f"{row['replays']} replays ran, not {replays}")
    if row["changes"] != row["replays"]:
        found.append(f"the output changed in {row['changes']} replays alone: the others show nothing")
    if not row["excess"] <= 1:
        found.append(f"the last output is {row['excess']:.3g} times its bound away from an f32 reference")
    return found


def figures(rows: Sequence[Row]) -> dict[str, int]:
    """Replays over all shapes, and how many of them differ."""
    return {f"pdl_{name}": sum(row[name] for row in rows) for name in ("replays", "mismatches")}


def table(rows: Sequence[Row], title: str) -> Iterator[str]:
    """One line a shape, and what is wrong."""
    yield title
    yield f"{'shape':<30}{'batch':>6}{'replays':>9}{'changes':>9}{'mismatches':>12}{'error':>8}{'s':>7}"
    for row in rows:
        counts = f"{row['replays']:>9}{row['changes']:>9}{row['mismatches']:>12}"
        yield f"{row['shape']:<30}{row['batch']:>6}{counts}{row['excess']:>8.3f}{row['seconds']:>7}"
    for row in rows:
        for problem in row["problems"]:
            yield f"WRONG: {row['shape']}: {problem}"
