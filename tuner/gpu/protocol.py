"""A child process that can be asked, timed out, killed and told apart by how it failed.

Requests, answers and phases are JSON over a socket pair. The child has its own session, so a Ctrl-C does not reach it
and all it starts can be killed with it; it dies with this process. Its output goes to a file whose end is kept as
the log of a failure.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

LOG_TAIL = 4000
"""Characters of a child's output that a failure keeps."""

KILL_SECONDS = 10.0
"""How long a killed child may take to go; one that stays is stuck in the driver."""

_launcher = ThreadPoolExecutor(1, thread_name_prefix="mjolnir-launch")
# A child is bound to the life of the thread that started it, not of the process: so one lasting thread starts them all.
_reaper = ThreadPoolExecutor(4, thread_name_prefix="mjolnir-reap")


class ChildError(Exception):
    """A request that got no answer.

    Attributes:
        phase: the phase that the child had reported last, "start" before any.
        log: the end of its output.
    """

    def __init__(self, message: str, phase: str, log: str = "") -> None:
        super().__init__(message)
        self.phase = phase
        self.log = log


class Hung(ChildError):
    """The child took longer than the phase allows; it has been killed."""


class Died(ChildError):
    """The child ended by itself, or was killed by somebody else.

    Attributes:
        code: its exit status; negative for a signal, None when it cannot be told.
    """

    def __init__(self, message: str, phase: str, log: str, code: int | None) -> None:
        super().__init__(message, phase, log)
        self.code = code


class Failed(ChildError):
    """The handler raised; the child lives on.

    Attributes:
        kind: name of the exception's type.
    """

    def __init__(self, message: str, phase: str, log: str, kind: str) -> None:
        super().__init__(message, phase, log)
        self.kind = kind


class Child:
    """One child process.

    Args:
        target: `module:name` of the function that makes its handler (see `child`).
        environment: variables that it gets beside those of this process.
        nice: by how much its priority is lowered.
        tree: a folder whose packages it imports before all others; None = what this process imports.
    """

    def __init__(
        self, target: str, *, environment: Mapping[str, str] | None = None, nice: int = 0, tree: Path | None = None
    ) -> None:
        self.target = target
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._connection, theirs = Pipe()
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [*([] if tree is None else [str(tree)]), *(entry or str(Path.cwd()) for entry in sys.path)]
            ),
            "PYTHONUNBUFFERED": "1",
            **(environment or {}),
        }
        module = "mjolnir.tuner.gpu.child"
        arguments = [str(theirs.fileno()), target, str(os.getpid()), str(nice)]
        command = [sys.executable, "-P", "-m", module, *arguments]
        self._process = _launcher.submit(
            subprocess.Popen,
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=variables,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        ).result()
        theirs.close()

    @property
    def pid(self) -> int:
        """Its process id, which is also the id of its process group."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs and can be asked."""
        return self._process.poll() is None

    def ask(self, request: Mapping[str, Any], limits: Mapping[str, float]) -> dict[str, Any]:
        """Send `request` and wait for its answer; see `send` and `receive`."""
        self.send(request)
        return self.receive(limits)

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request; it begins when those before it are answered. A pipe that is broken shows in `receive`.

        Args:
            request: what the handler gets; JSON.
        """
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send_bytes(json.dumps(request).encode())

    def receive(self, limits: Mapping[str, float]) -> dict[str, Any]:
        """Wait for the answer to the oldest request that has none.

        Args:
            limits: seconds by phase; "start" holds until the first report.

        Returns:
            What the handler says, and as "idle" how many seconds the child had waited for the request.

        Raises:
            Hung: a phase took longer than its limit.
            Died: the process ended.
            Failed: the handler raised.
        """
        phase = "start"
        try:
            while True:
                message = self._receive(limits[phase], phase)
                if "answer" in message:
                    return {**message["answer"], "idle": message["idle"]}
                if "error" in message:
                    error = message["error"]
                    reason = f"{error['type']}: {error['message']}"
                    raise Failed(reason, phase, error["traceback"][-LOG_TAIL:] + self.log(), error["type"])
                phase = message["phase"]
        except (BrokenPipeError, ConnectionResetError, EOFError) as error:
            code = self._reap()
            raise Died(f"the process {describe(code)} in phase {phase!r}", phase, self.log(), code) from error
        except Failed:
            raise
        except BaseException:
            self.kill()  # whatever comes later on the pipe belongs to nobody
            raise

    def _receive(self, limit: float, phase: str) -> dict[str, Any]:
        if not self._connection.poll(limit):
            self.kill()
            raise Hung(f"no answer within {limit:g} s in phase {phase!r}; the process was killed", phase, self.log())
        return dict(json.loads(self._connection.recv_bytes()))

    def log(self) -> str:
        """The end of what it wrote to stdout and stderr."""
        if self._log.closed:
            return ""
        end = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, end - LOG_TAIL))
        return self._log.read().decode(errors="replace")

    def kill(self) -> None:
        """End it and everything that it started."""
        self._signal()
        self._reap()

    def close(self) -> None:
        """End it; it has nothing to save. Idempotent."""
        self.kill()
        self._connection.close()
        self._log.close()

    def leave(self) -> None:
        """End it without waiting until it is gone: what it held on a GPU takes its time to be given back."""
        self._signal()
        _reaper.submit(self.close)

    def _signal(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _reap(self) -> int | None:
        try:
            return self._process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            return None


def describe(code: int | None) -> str:
    """An exit status in words."""
    if code is None:
        return "cannot be killed (stuck in the driver?)"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"exited with status {code}"
