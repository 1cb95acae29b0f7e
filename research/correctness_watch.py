"""Watching a run over many cases: a line of progress now and then, and an end to a kernel that does not come back."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TextIO

from mjolnir.research.answer import Exit

PATIENCE_SECONDS = 60.0
EVERY_SECONDS = 10.0


def leave(message: str) -> None:
    """End the process at once: a thread that waits for the device cannot be interrupted otherwise."""
    print(message, file=sys.stderr, flush=True)
    os._exit(Exit.FAILED)


@dataclass
class Progress:
    """A line now and then of how many cases have begun.

    Attributes:
        total: how many there will be.
        stream: where it is told.
        number: of the case that began last, from 1.
    """

    total: int
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    number: int = 0
    _told: float = field(default_factory=lambda: time.monotonic())

    def begin(self) -> None:
        """The next case begins."""
        now = time.monotonic()
        if now - self._told >= EVERY_SECONDS:
            self._told = now
            print(f"{self.number} of {self.total} cases", file=self.stream, flush=True)
        self.number += 1


@dataclass
class Watch:
    """Looks on while cases are run one after another.

    Args:
        total: how many there will be.
        patience: seconds after which a case counts as hung.
        give_up: what is done then, given a message.
        stream: where progress goes.
    """

    total: int
    patience: float = PATIENCE_SECONDS
    give_up: Callable[[str], None] = leave
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    _timer: threading.Timer | None = None

    def __post_init__(self) -> None:
        self._progress = Progress(self.total, self.stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def begin(self, what: str) -> None:
        """The next case begins; the one before has ended."""
        self._stop()
        self._progress.begin()
        message = f"case {self._progress.number} of {self.total} did not come back within {self.patience:.0f} s: {what}"
        self._timer = threading.Timer(self.patience, self.give_up, (message,))
        self._timer.daemon = True
        self._timer.start()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
