"""`autoresearch record`: measure a whole knob grid on the GPU and keep it as a recording."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from mjolnir.research.answer import Answer, Failure, MissingFailure, UsageFailure
from mjolnir.research.benches import require_gpu
from mjolnir.research.request import Request


def record(
    request: Request,
    name: str,
    out: Path,
    minutes: float,
    say: Callable[[str], None],
    grid: str = "coarse",
    pairs: int | None = None,
    rebuilds: int | None = None,
    instances: int | None = None,
) -> Answer:
    """Measure the grid and write `out`; a recording that was begun there goes on.

    Args:
        request: device and problem.
        name: of the recording.
        out: its folder.
        minutes: after which no setting is begun.
        say: takes lines of progress.
        grid: "coarse" or "full".
        pairs, rebuilds, instances: A/A pairs per point, rebuilds of the default, further instances of the cells near
            the best; None = what the grid comes with.

    Raises:
        MissingFailure: no GPU that can be used, or no package to use it.
        UsageFailure: the problem does not parse, or there is no such grid.
        Failure: the folder holds another recording.
    """
    index = require_gpu(request.device, "a recording is taken on one; `mjolnir doctor` says what is missing")
    geometry, placement, workload = request.problem()
    from mjolnir.tuner import gpu
    from mjolnir.tuner.gpu.grids import EXTENTS
    from mjolnir.tuner.recording import RecordingError

    if grid not in EXTENTS:
        raise UsageFailure(f"--grid {grid}: there are {' and '.join(EXTENTS)}")
    asked = {"pairs": pairs, "rebuilds": rebuilds, "instances": instances}
    given = {field: count for field, count in asked.items() if count is not None}
    extent = replace(EXTENTS[grid], **given)  # type: ignore[arg-type]
    try:
        done = gpu.record(geometry, placement, workload, out, name, extent, index=index, budget=60 * minutes, say=say)
    except (gpu.DeviceUnavailable, ImportError) as error:
        raise MissingFailure(f"{error}; `mjolnir doctor` says what is missing") from error
    except RecordingError as error:
        raise Failure(str(error)) from error
    data = {**asdict(done), "folder": str(done.folder), "name": name}
    text = f"{name}: {done.settings} of {done.planned} settings in {done.folder} ({done.reason})"
    return Answer(data, text)
