"""Engines as processes: each with an environment of its own, ended when it takes too long, told when it fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mjolnir.research.answer import Failure

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_DEEP_GEMM": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
}
"""What engines run with unless the user's environment says otherwise; the first one is needed."""

LAST_LINES = 12


class EngineFailed(Failure):
    """An engine process did not answer; the message has the end of what it printed."""


def ask(module: str, name: str, question: Mapping[str, Any], environment: Mapping[str, str], seconds: float) -> Any:
    """Run `python -m module QUESTION ANSWER`, and return the answer.

    Args:
        module: what is run.
        name: of the run, for messages.
        question: JSON.
        environment: variables that come before the user's.
        seconds: until the process is ended.

    Raises:
        EngineFailed: the process failed, was ended, or left no answer.
    """
    with TemporaryDirectory(prefix="mjolnir-engine-") as scratch:
        source, target, log = (Path(scratch, name) for name in ("job.json", "run.json", "log.txt"))
        source.write_text(json.dumps(question), "utf-8")
        process = begin(module, (str(source), str(target)), environment, log)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise EngineFailed(f"{name}: ended after {seconds:.0f} s; it had printed:\n{last_lines(log)}") from None
        finally:
            end(process)
        if code or not target.exists():
            raise EngineFailed(f"{name}: the engine failed (exit code {code}); it had printed:\n{last_lines(log)}")
        return json.loads(target.read_text("utf-8"))


_running: set[subprocess.Popen[bytes]] = set()


def begin(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path, **more: Any
) -> subprocess.Popen[bytes]:
    """Start `python -m module ARGUMENTS` in a session of its own, which prints into `log`; `more` is for `Popen`."""
    variables = {**ENVIRONMENT, **os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", **environment}
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, **more}
    with log.open("wb") as printed:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments], env=variables, stdout=printed, start_new_session=True, **streams
        )
    _running.add(process)
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    """End what the process may have left behind, and the process itself where it still runs."""
    _kill(process)
    process.wait()
    _running.discard(process)


def end_all() -> None:
    """End every engine that still runs, whoever waits for it."""
    for process in [*_running]:
        _kill(process)
    for process in [*_running]:
        end(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def last_lines(log: Path) -> str:
    """The end of what an engine printed."""
    lines = log.read_text("utf-8", errors="replace").rstrip().splitlines()
    return "\n".join(f"    {line}" for line in lines[-LAST_LINES:])
