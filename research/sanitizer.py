"""`mjolnir verify sanitizer`: NVIDIA compute-sanitizer over one small case of each class of kernel.

Each case runs in a process of its own under each tool, and its output is compared with the emulator's meanwhile. All
that a tool reports is counted and its first lines are kept, whatever it is about: whether a report is a false alarm is
for the reader to say. A run without a summary, without an output or with a wrong one is a problem, and so is a planted
fault that its tool has not found.

Torch's caching allocator would hide what is uninitialised or out of bounds, so it is switched off. Reports about return
codes of the CUDA API are switched off too: the runner raises what a launch returns, and libraries probe for functions
that a driver may lack.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from mjolnir.kernel.device import Device, current_device
from mjolnir.kernel.sources import kernel_hash
from mjolnir.research.answer import Answer, Exit, Failure, MissingFailure, UsageFailure
from mjolnir.research.bench.replay import written
from mjolnir.research.sanitizer_cases import CLASSES, MODULE, PLANTED
from mjolnir.research.sanitizer_report import SECONDS, TOOLS, Ended, Row, figures, row_of, table

SCHEMA = "mjolnir.sanitizer/1"
PROGRAM = "compute-sanitizer"
SIDE_BY_SIDE = 14
UNSUPPORTED = "Device not supported"


def sanitizer(tools: Sequence[str] = (), out: Path | None = None) -> Answer:
    """Run the tools over all classes.

    Args:
        tools: some of `TOOLS`; none = all.
        out: a file for rows and figures.

    Returns:
        An answer with the exit code 1 when a tool reported anything, or a run was not what it should be.

    Raises:
        UsageFailure: an unknown tool.
        MissingFailure: no GPU, no compute-sanitizer, or one that does not work with this device.
        Failure: a class does not compile.
    """
    unknown = sorted(set(tools) - set(TOOLS))
    if unknown:
        raise UsageFailure(f"--tool {unknown[0]!r} is none of {', '.join(TOOLS)}")
    program = find_program()
    try:
        device = current_device()
    except RuntimeError as error:
        raise MissingFailure(f"{error}; the sanitizer watches kernels on one") from error
    started = time.monotonic()
    compile_all(device)
    chosen = [tool for tool in TOOLS if tool in tools or not tools]
    rows = run_all(program, chosen)
    seconds = round(time.monotonic() - started, 1)
    found = figures(rows)
    data = {
        "schema": SCHEMA,
        "figures": found,
        "rows": rows,
        "taken": {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "device": device.name,
            "arch": device.arch,
            "kernel": kernel_hash(),
            "sanitizer": version(program),
            "seconds": seconds,
        },
    }
    view = "\n".join([*table(rows, f"{PROGRAM} on {device.name}, {seconds} s"), *written(data, out, indent=1)])
    return Answer(data, view, Exit.FAILED if any(found.values()) else Exit.DONE)


def find_program(environ: Mapping[str, str] | None = None) -> str:
    """compute-sanitizer on PATH, or in a CUDA toolkit.

    Raises:
        MissingFailure: there is none.
    """
    environ = os.environ if environ is None else environ
    toolkits = [Path(environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)]
    toolkits += [*sorted(Path("/usr/local").glob("cuda*"))]
    places = [environ.get("PATH", ""), *(str(t / part) for t in toolkits for part in ("bin", PROGRAM))]
    found = shutil.which(PROGRAM, path=os.pathsep.join(places))
    if found is None:
        raise MissingFailure(
            f"{PROGRAM} is neither on PATH nor in a CUDA toolkit (CUDA_HOME, /usr/local/cuda): install the toolkit, or "
            "the package cuda-sanitizer of its version"
        )
    return found


def version(program: str) -> str:
    """The line that says which version it is."""
    text = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, timeout=60).stdout
    return next((line.strip() for line in text.splitlines() if "ersion" in line), text.strip()[:100])


def compile_all(device: Device) -> None:
    """Compile every class into the cache, so that a watched process only loads.

    Raises:
        Failure: one does not compile, or spills.
    """
    from mjolnir.kernel.cache import build_plan
    from mjolnir.research.correctness_build import build
    from mjolnir.research.correctness_truth import processes

    variants = [probe.variant(device) for probe in CLASSES.values()]
    with processes() as executor:
        reasons = list(executor.map(build, [(variant, None) for variant in variants]))
    build_plan(device.arch)
    for name, reason in zip(CLASSES, reasons, strict=True):
        if reason:
            raise Failure(f"class {name} does not run: {reason}")


def run_all(program: str, tools: Sequence[str]) -> list[Row]:
    """A row for each tool and class, the planted faults first, some processes side by side.

    Raises:
        MissingFailure: the device is not supported.
    """
    jobs = [(tool, PLANTED[tool]) for tool in tools if tool in PLANTED]
    jobs += [(tool, name) for tool in tools for name in CLASSES]
    executor = ThreadPoolExecutor(max(1, min(SIDE_BY_SIDE, (os.cpu_count() or 1) - 2)))
    try:
        return list(executor.map(lambda job: run_one(program, *job), jobs))
    finally:
        executor.shutdown(cancel_futures=True)


def run_one(program: str, tool: str, name: str) -> Row:
    """One class under one tool.

    Raises:
        MissingFailure: the device is not supported.
    """
    began = time.monotonic()
    ended = run(command(program, tool, name))
    if UNSUPPORTED in ended.text:
        raise MissingFailure(f"{program} does not work with this device or driver: {UNSUPPORTED}")
    return {**row_of(tool, name, ended), "seconds": round(time.monotonic() - began, 1)}


def command(program: str, tool: str, name: str) -> list[str]:
    """What is run; `-P` keeps the folder it is run in from shadowing installed modules.

    The tool waits for the first CUDA call as long as it takes: `SECONDS` holds for all of it.
    """
    options = ["--tool", tool, "--target-processes", "all", "--report-api-errors", "no", "--launch-timeout", "0"]
    return [program, *options, sys.executable, "-P", "-m", MODULE, name]


def run(line: Sequence[str]) -> Ended:
    """Run a process with its children, which are stopped with it after `SECONDS`."""
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment,
        start_new_session=True,
    )  # fmt: skip
    try:
        text, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
        return Ended(None, text)
    return Ended(process.returncode, text)
