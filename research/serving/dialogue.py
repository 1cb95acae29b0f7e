"""An engine that stays: started once, then asked line by line, so that several can wait while one is timed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from select import select
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, Protocol

from mjolnir.research.serving import process
from mjolnir.research.serving.process import EngineFailed

PIECE = 1 << 16
LAST_WORDS = 10.0
"""Seconds for an engine that ends to print why."""


class Timed(Protocol):
    """An engine that was begun."""

    def hear(self, seconds: float) -> Any:
        """Its facts, once it is ready."""
        ...

    def ask(self, question: Any, seconds: float) -> Any:
        """The answer to a line, see `timing`."""
        ...

    def end(self) -> None:
        """Let it go."""
        ...


class Dialogue:
    """`python -m module QUESTION FD`: it answers in lines of JSON on the file descriptor FD, first of all that it is
    ready, then a line for every line of JSON that it reads.

    Args:
        module: what is run.
        name: of the run, for messages.
        question: JSON.
        environment: variables that come before the user's.
    """

    def __init__(self, module: str, name: str, question: Any, environment: Mapping[str, str]) -> None:
        self._name = name
        self._scratch = TemporaryDirectory(prefix="mjolnir-engine-")
        source, self._log = (Path(self._scratch.name, name) for name in ("job.json", "log.txt"))
        source.write_text(json.dumps(question), "utf-8")
        self._answers, theirs = os.pipe()
        self._read = b""
        try:
            self._process = process.begin(
                module, (str(source), str(theirs)), environment, self._log, stdin=subprocess.PIPE, pass_fds=(theirs,)
            )
        finally:
            os.close(theirs)

    def ask(self, question: Any, seconds: float) -> Any:
        """Ask, and wait for the answer; `hear` says for how long and what it raises."""
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed("the engine ended") from None
        return self.hear(seconds)

    def hear(self, seconds: float) -> Any:
        """The next answer.

        Raises:
            EngineFailed: there is none after so many seconds, or the process ended.
        """
        until = monotonic() + seconds
        while b"\n" not in self._read:
            ready, _, _ = select([self._answers], [], [], max(0.0, until - monotonic()))
            if not ready:
                raise self._failed(f"ended after {seconds:.0f} s")
            piece = os.read(self._answers, PIECE)
            if not piece:
                with suppress(subprocess.TimeoutExpired):  # it says why after its pipe is closed
                    self._process.wait(LAST_WORDS)
                raise self._failed("the engine failed")
            self._read += piece
        line, _, self._read = self._read.partition(b"\n")
        return json.loads(line)

    def end(self) -> None:
        """End the process."""
        process.end(self._process)
        if self._process.stdin:
            with suppress(BrokenPipeError):  # of what it did not read
                self._process.stdin.close()
        os.close(self._answers)
        self._scratch.cleanup()

    def _failed(self, why: str) -> EngineFailed:
        return EngineFailed(f"{self._name}: {why}; it had printed:\n{process.last_lines(self._log)}")
