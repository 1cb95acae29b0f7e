"""A bench whose measurements take real time, as on a device of its own; a script says when it fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.bench import BenchFailure, Instance, InstanceRequest, Outcome, Race, Status, Timing
from mjolnir.tuner.recording import Recording
from tests.fakes.bench import ScriptedBench

BROKEN = Outcome(Status.INFRASTRUCTURE, "the worker was killed")


class SlowBench(ScriptedBench):
    """Replays, each trial taking `seconds`.

    Args:
        recording: what it replays; equal seeds, so that an outcome depends on the trial alone.
        seconds: of one trial.
        fails: says from which of its measurements on, counted from 1, it fails; None for never.
        slow: seconds of single trials.

    Attributes:
        threads: the threads that used it.
        spans: process, begin and end of each instance.
        busy: seconds that it spent measuring.
    """

    def __init__(
        self,
        recording: Recording,
        seconds: float = 0.0,
        fails: Callable[[int], bool] = lambda number: False,
        slow: dict[int, float] | None = None,
    ) -> None:
        super().__init__(recording, simulated=False)
        self._seconds, self._fails, self._slow = seconds, fails, slow or {}
        self._number = 0
        self.threads: set[int] = set()
        self.busy = 0.0
        self.spans: list[tuple[int, float, float]] = []

    def now(self) -> float:
        return time.monotonic()

    def _broken(self) -> bool:
        self.threads.add(threading.get_ident())
        self._number += 1
        return self._fails(self._number)

    def measure(self, trial: int, setting: Setting, fault: str = "none", race: Race | None = None) -> Outcome:
        begin = time.perf_counter()
        broken = self._broken()
        time.sleep(self._slow.get(trial, self._seconds) if fault == "none" else 0)
        outcome = BROKEN if broken else super().measure(trial, setting, fault, race)
        self.busy += time.perf_counter() - begin
        return outcome

    def noise(self, number: int) -> tuple[Timing, ...]:
        if self._broken():
            raise BenchFailure(BROKEN.reason)
        return super().noise(number)

    def instance(self, request: InstanceRequest) -> Instance:
        if self._broken():
            return Instance(BROKEN.status, BROKEN.reason)
        begin = time.perf_counter()
        time.sleep(self._seconds)
        taken = super().instance(request)
        self.spans.append((request.process, begin, time.perf_counter()))
        return taken
