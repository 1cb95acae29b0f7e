"""A sitting of the recorder: its bench, what it writes to, its time, and what is done when the bench fails."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.bench import Bench, BenchFailure, Outcome, Status, Timing
from mjolnir.tuner.gpu.measure import Policy
from mjolnir.tuner.recorder import RecordingWriter

TROUBLES = 3
"""How many failures of the bench in a row end a sitting."""

ATTEMPTS = 3
"""How often a comparison of the default is asked for that fails, in a dirty window say."""

REPORT_SECONDS = 5.0


class RecorderBench(Bench, Protocol):
    """What the recorder asks of a bench beyond `Bench`; `GpuBench` has it."""

    policy: Policy

    def measure_at(
        self,
        trial: int | None,
        setting: Setting,
        *,
        fault: str = "none",
        points: Sequence[int] | None = None,
        rounds: int | None = None,
    ) -> Outcome: ...

    def compare_default(self, number: int | None, rounds: int | None = None) -> tuple[Timing, ...]: ...

    def plans(self, setting: Setting) -> list[str]: ...

    def binary(self, setting: Setting) -> str: ...

    def renew_process(self) -> None: ...


class Broken(Exception):
    """The bench failed too often in a row; the message says so."""


class Sitting:
    """What the steps of a recording share.

    Args:
        bench: measures.
        writer: keeps what came.
        begin: by the monotonic clock, when the sitting began.
        budget: seconds that it has, None = any.
        say: takes one line of progress.
    """

    def __init__(
        self,
        bench: RecorderBench,
        writer: RecordingWriter,
        begin: float,
        budget: float | None,
        say: Callable[[str], None],
    ) -> None:
        self.bench, self.writer, self.say = bench, writer, say
        self.budget = math.inf if budget is None else budget
        self._begin, self._said, self._troubles = begin, -REPORT_SECONDS, 0

    def now(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._begin

    @property
    def over(self) -> bool:
        """Whether its time is."""
        return self.now() > self.budget

    def compare(self, number: int | None, rounds: int | None = None) -> tuple[Timing, ...]:
        """The default against itself; see `GpuBench.compare_default`. One that fails is asked for again.

        Raises:
            BenchFailure: it failed `ATTEMPTS` times.
        """
        for _ in range(ATTEMPTS - 1):
            try:
                return self.bench.compare_default(number, rounds)
            except BenchFailure as error:
                self.say(f"{error}; once more")
        return self.bench.compare_default(number, rounds)

    def at_fault(self, setting: Setting, outcome: Outcome) -> bool:
        """Whether the bench failed and not the setting.

        Raises:
            Broken: for the `TROUBLES`-th time in a row.
        """
        if outcome.status not in (Status.INFRASTRUCTURE, Status.DIRTY):
            self._troubles = 0
            return False
        self._troubles += 1
        self.say(f"{setting}: {outcome.status}: {outcome.reason}; it stays out of the recording")
        if self._troubles >= TROUBLES:
            raise Broken(f"{TROUBLES} failures of the bench in a row")
        return True

    def report(self, text: str, share: float = 0.0) -> None:
        """Say where things are, every `REPORT_SECONDS`; with the share that is done, how long the rest may take."""
        now = self.now()
        if now - self._said < REPORT_SECONDS:
            return
        self._said = now
        left = f", about {now / share - now:.0f} s left" if share else ""
        self.say(f"{now:5.0f} s: {text}{left}")
