"""`autoresearch record`: measure a whole knob grid on the GPU and keep it as a recording."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from mjolnir.research.answer import Answer, Failure, MissingFailure
from mjolnir.research.benches import require_gpu
from mjolnir.research.request import Request


def record(request: Request, name: str, out: Path, minutes: float, say: Callable[[str], None]) -> Answer:
    """Measure the grid and write `out`; a recording that was begun there goes on.

    Args:
        request: device and problem.
        name: of the recording.
        out: its folder.
        minutes: after which no setting is begun.
        say: takes lines of progress.

    Raises:
        MissingFailure: no GPU that can be used, or no package to use it.
        UsageFailure: the problem does not parse.
        Failure: the folder holds another recording.
    """
    index = require_gpu(request.device, "a recording is taken on one; `mjolnir doctor` says what is missing")
    geometry, placement, workload = request.problem()
    from mjolnir.tuner import gpu
    from mjolnir.tuner.recording import RecordingError

    try:
        done = gpu.record(geometry, placement, workload, out, name, index=index, budget=60 * minutes, say=say)
    except (gpu.DeviceUnavailable, ImportError) as error:
        raise MissingFailure(f"{error}; `mjolnir doctor` says what is missing") from error
    except RecordingError as error:
        raise Failure(str(error)) from error
    data = {**asdict(done), "folder": str(done.folder), "name": name}
    text = f"{name}: {done.settings} of {done.planned} settings in {done.folder} ({done.reason})"
    return Answer(data, text)
