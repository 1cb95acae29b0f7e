"""Choosing the bench of a campaign: a GPU, or a recording of one when that is asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.research.answer import Failure, MissingFailure, UsageFailure
from mjolnir.tuner.workload import Workload

if TYPE_CHECKING:
    from mjolnir.kernel.geometry import Geometry, Placement
    from mjolnir.research.hardware import Hardware
    from mjolnir.research.request import Request
    from mjolnir.tuner.bench import Bench
    from mjolnir.tuner.clean_window import CleanWindow
    from mjolnir.tuner.recording import Recording
    from mjolnir.tuner.workload import Workload

Problem = tuple[Geometry, Placement, Workload]

REPLAY = "try --device replay (packaged H200 recording)"

MOST_UNSEEN = 16
"""GPUs for which processes are started before it is known that they are there: no host has many more."""


def choose(
    request: Request,
    campaign: Mapping[str, Any] | None,
    seed: int,
    stop: Callable[[], bool] = lambda: False,
    hardware: Hardware | None = None,
) -> Bench:
    """The bench that the request names; a resumed campaign stays on what it began on.

    Args:
        request: what the user asked.
        campaign: body of the campaign record that is resumed, or None.
        seed: of the replay's noise.
        stop: ends waiting for a clean window.
        hardware: what is shared with other campaigns, and stays open; None = the bench has its own.

    Raises:
        UsageFailure: a device or recording that does not exist, or not the one that the campaign began on.
        MissingFailure: no GPU, or no package to use it.
        Failure: the metrics of `gate_url` cannot be had.
    """
    simulated = bool(campaign["simulated"]) if campaign else request.device == "replay"
    if campaign and request.device != "auto" and (request.device == "replay") != simulated:
        kind = "a replay" if simulated else "a campaign on a GPU"
        raise UsageFailure(f"this tag is {kind}; resume it without --device {request.device}, or start a new tag")
    if simulated:
        if request.gate_url:
            raise UsageFailure("--gate-url is for measuring on a GPU; a replay measures nothing")
        return _replay(request, campaign, seed)
    if request.recording:
        raise UsageFailure("--recording is for --device replay")
    return _gpus(request, problem_of(request, campaign), stop, hardware)


def require_gpu(text: str, instead: str) -> int:
    """The index of the CUDA device that `auto`, `cuda` or `cuda:<i>` names.

    Args:
        text: the name.
        instead: what to do without such a device.

    Raises:
        UsageFailure: `text` is no such name.
        MissingFailure: this machine has no such device.
    """
    index = _index(text, instead)
    require_devices([index], instead)
    return index


def _index(text: str, instead: str) -> int:
    """The index in a device's name; see `require_gpu`."""
    match = re.fullmatch(r"auto|cuda(?::([0-9]{1,9}))?", text)
    if not match:
        raise UsageFailure(f"--device {text!r} is none of auto, cuda and cuda:<number>; {instead}")
    return int(match.group(1) or 0)


def require_devices(indices: Sequence[int], instead: str) -> None:
    """Require CUDA devices of this machine, counted from 0.

    Raises:
        MissingFailure: it has no such device; `instead` says what to do.
    """
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise MissingFailure(f"no CUDA device; {instead}")
    if beyond := [index for index in indices if index >= count]:
        raise MissingFailure(f"no CUDA device {beyond[0]}: there are {count}, counted from 0")


def load_recording(name: str | None) -> Recording:
    """A packaged recording by name, or one from a folder; without a name the first packaged one.

    Raises:
        UsageFailure: there is no such recording, or it is malformed.
    """
    from mjolnir.tuner import recording

    names = recording.packaged_names()
    try:
        if name is None and names:
            return recording.packaged(names[0])
        if name in names:
            return recording.packaged(str(name))
        if name and Path(name, "recording.json").is_file():
            return recording.Recording.load(Path(name))
    except recording.RecordingError as error:
        raise UsageFailure(f"the recording {name or names[0]} cannot be replayed: {error}") from error
    listed = ", ".join(names) or "none"
    if name is None:
        raise MissingFailure("this installation has no packaged recording; name a folder with --recording PATH")
    raise UsageFailure(f"--recording {name!r} is neither a packaged recording ({listed}) nor a folder that holds one")


def _replay(request: Request, campaign: Mapping[str, Any] | None, seed: int) -> Bench:
    from mjolnir.tuner.replay import ReplayBench

    known = campaign["recording"] if campaign else None
    recording = load_recording(request.recording or known)
    if known and recording.name != known:
        raise UsageFailure(f"this tag replays {known}, not {recording.name}; start a new tag for another recording")
    _require_same_problem(request, recording)
    return ReplayBench(recording, seed)


def _require_same_problem(request: Request, recording: Recording) -> None:
    geometry, placement, workload = request.problem()
    asked = (
        ("--geometry", request.geometry, geometry, recording.geometry),
        ("--model", request.model, geometry, recording.geometry),
        ("--placement", request.placement, placement, recording.placement),
        ("--workload", request.workload, workload, recording.workload),
    )
    for flag, given, wanted, recorded in asked:
        if given is not None and wanted != recorded:
            raise UsageFailure(
                f"{flag} {given}: the recording {recording.name} has {_words(recorded)} and nothing else"
            )


def _words(problem: Geometry | Placement | Workload) -> str:
    """A part of the problem as its option takes it."""
    from mjolnir.kernel.geometry import Placement
    from mjolnir.tuner.workload import Workload

    match problem:
        case Placement():
            return f"{problem.layout}/{problem.kv}"
        case Workload():
            return problem.name
        case _:
            return str(problem)


def problem_of(request: Request, campaign: Mapping[str, Any] | None) -> Problem:
    """What is measured: what was asked, or what the campaign that is resumed or joined is about.

    Raises:
        UsageFailure: both, and they differ.
    """
    asked = request.problem()
    if campaign is None:
        return asked
    recorded = (
        Geometry.from_dict(campaign["geometry"]),
        Placement(**campaign["placement"]),
        Workload.from_dict(campaign["workload"]),
    )
    given = (request.geometry or request.model, request.placement, request.workload)
    for flag, text, wanted, known in zip(("geometry", "placement", "workload"), given, asked, recorded, strict=True):
        if text is not None and wanted != known:
            raise UsageFailure(f"the {flag} of a campaign cannot change: it is {known}; start a new tag for another")
    return recorded


def _gpus(request: Request, problem: Problem, stop: Callable[[], bool], shared: Hardware | None) -> Bench:
    """The bench of the GPU that is asked for, or of the several together."""
    indices = gpu_indices(request.device)
    if len(indices) > MOST_UNSEEN:
        require_devices(indices, REPLAY)
    from mjolnir.research.hardware import Hardware
    from mjolnir.tuner.fleet import FleetBench

    hardware = shared or Hardware(len(indices))
    with ExitStack() as opened:
        if shared is None:
            opened.callback(hardware.close)
        for index in indices:
            hardware.worker(index).warm()  # all at once, and while this process imports: that takes longest
        hardware.pool().warm()
        require_devices(indices, REPLAY)
        with ThreadPoolExecutor(len(indices)) as threads:
            opening = {index: threads.submit(_gpu, request, problem, index, stop, hardware) for index in indices}
        benches: dict[str, Bench] = {}
        for index, future in opening.items():
            bench = benches[f"cuda:{index}"] = future.result()
            opened.callback(bench.close)
        try:
            fleet = FleetBench(benches, close=(lambda: None) if shared else hardware.close)
        except ValueError as error:
            raise UsageFailure(f"--device {request.device}: {error}") from error
        opened.pop_all()
        return fleet


def gpu_indices(text: str) -> list[int]:
    """The indices of the GPUs that --device names, whether they are there or not.

    Raises:
        UsageFailure: it names none, or one twice.
    """
    names = text.split(",")
    if len(names) > 1 and "" in names:
        raise UsageFailure(f"--device {text!r} has nothing between two commas, or beside one")
    indices = [_index(name, REPLAY) for name in names]
    if len(set(indices)) < len(indices):
        raise UsageFailure(f"--device {text} names a GPU twice")
    return indices


def _gpu(request: Request, problem: Problem, index: int, stop: Callable[[], bool], hardware: Hardware) -> Bench:
    geometry, placement, workload = problem
    gate = clean_window(request.gate_url, stop) if request.gate_url else None
    from mjolnir.tuner import gpu

    try:
        pool, worker = hardware.pool(), hardware.worker(index)
        return gpu.GpuBench(geometry, placement, workload, index=index, pool=pool, worker=worker, gate=gate)
    except (gpu.DeviceUnavailable, ImportError) as error:
        raise MissingFailure(f"{error}; `mjolnir doctor` says what is missing") from error


def clean_window(url: str, stop: Callable[[], bool]) -> CleanWindow:
    """The gate of `--gate-url`.

    Raises:
        UsageFailure: no URL of a page.
        Failure: the page cannot be read, or is not vLLM's.
    """
    from mjolnir.tuner.clean_window import CleanWindow, GateError

    try:
        return CleanWindow(url, stop=stop)
    except ValueError as error:
        raise UsageFailure(f"--gate-url: {error}") from error
    except GateError as error:
        raise Failure(f"--gate-url: {error}") from error
