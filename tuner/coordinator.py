"""A campaign from its first canary to its end record.

Canaries, A/A noise, default and incumbents, search, and for each bucket shoot-out, confirmation and promotion. Each
step is on record before the next depends on it; `run` over the records of a campaign that was cut off goes on with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mjolnir.kernel.knobs import FAULTS, Setting
from mjolnir.tuner.bench import Bench, Status, Timing
from mjolnir.tuner.finals import Finals, Lead
from mjolnir.tuner.journal import Journal, Record
from mjolnir.tuner.options import Options
from mjolnir.tuner.proposers import make
from mjolnir.tuner.search import Search
from mjolnir.tuner.session import RECORD_SECONDS, Best, Halt, Observer, Progress, Session
from mjolnir.tuner.statistics import Array, noise_floor, point_ratios, smallest_provable_gain
from mjolnir.tuner.tape import Tape

__all__ = ["Best", "Estimate", "Observer", "Options", "Progress", "Result", "estimate", "run", "smallest_provable_gain"]

REJECTED = (Status.INCORRECT, Status.NAN)
"""How a gate turns a kernel down; a canary that ends otherwise has not been through it."""

GUESSED_DEVIATION = 0.004
"""Standard deviation of A/A instance values where none was measured yet, a fraction."""

PROCESS_SECONDS = 7.0
"""Seconds until a fresh worker has the inputs of eight points on its card, as seen on an H200."""

GUESSED_TRIAL_SECONDS = 2.5
"""Seconds of a trial on a GPU where none was timed yet: gate and eight points."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a campaign ended.

    Attributes:
        reason: "trials", "minutes", "exhausted" (the budget, or the space, is spent and the finals are done),
            "interrupted", "canary", "infrastructure", or "default" (the default itself could not be measured).
        trials: trials recorded in this epoch.
        measured: those that were measured.
        clock: seconds on the bench's clock.
        best: the lead of each bucket in the search.
        decisions: bodies of the promotion records, by bucket.
        floor: noise floor of each point, fractions; empty when it was not measured.
        void: a canary was not rejected: nothing here can be believed.
        resumable: whether running again over the records can go on.
    """

    reason: str
    trials: int
    measured: int
    clock: float
    best: Mapping[int, Best]
    decisions: tuple[Mapping[str, Any], ...]
    floor: tuple[float, ...]
    void: bool
    resumable: bool


def run(
    bench: Bench,
    journal: Journal,
    options: Options,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Run a campaign, or go on with the one that the journal holds.

    Args:
        bench: where settings are measured; stays open.
        journal: the tag's records, with those of kind `campaign` and `epoch` appended already.
        options: the rules; on resuming, those of the campaign, perhaps with a larger budget.
        observer: is told after each record.
        stop: asked before each step; once it says True the campaign ends as "interrupted".

    Raises:
        ValueError: pins leave nothing to search.
    """
    return _Campaign(bench, journal, options, observer, stop).run()


class _Campaign:
    def __init__(
        self,
        bench: Bench,
        journal: Journal,
        options: Options,
        observer: Observer | None,
        stop: Callable[[], bool],
    ) -> None:
        self._bench = bench
        self._tape = Tape(journal, bench)
        self._session = Session(bench, self._tape, options, observer, stop)
        self._options = options
        self._evidence: list[Record] = []
        self._floor: Array = np.array([])
        self._decisions: list[Mapping[str, Any]] = []
        self._measured = 0

    def run(self) -> Result:
        try:
            self._canaries()
            self._noise()
            session = self._session
            reason = Search(session, make(self._options.proposer, session.space, self._options.seed)).run()
            self._finals()
        except Halt as halt:
            reason = halt.reason
        return self._end(reason)

    def _canaries(self) -> None:
        """Send each faulty kernel through the gate; one that is not rejected voids the campaign."""
        faults = FAULTS[1:]
        for done, fault in enumerate(faults, 1):
            status, number = Status.INFRASTRUCTURE, 0
            while status == Status.INFRASTRUCTURE:
                number += 1
                take = partial(self._canary, fault)
                record = self._session.step("canary", (fault, number), take, done, len(faults))
                self._evidence.append(record)
                status = record["body"]["status"]
            if status not in REJECTED:
                raise Halt("canary")

    def _canary(self, fault: str) -> dict[str, Any]:
        default = self._session.space.default
        outcome = self._bench.measure(0, default, fault)
        self._bench.advance(RECORD_SECONDS)
        return {
            "setting": default.as_dict(),
            "status": str(outcome.status),
            "rejected": outcome.status in REJECTED,
            "reason": outcome.reason,
            "correctness": dict(outcome.correctness),
        }

    def _noise(self) -> None:
        """Time the default against itself, until the A/A instances asked for are there."""
        values: list[list[float]] = []
        number, wanted = 0, self._options.noise
        while len(values) < wanted:
            number += 1
            take = partial(self._compare, number, values)
            record = self._session.step("noise", (number,), take, min(len(values) + 1, wanted), wanted)
            self._evidence.append(record)
            if record["body"]["status"] == Status.MEASURED:
                values.append(record["body"]["values"])
        self._floor = noise_floor(np.array(values))

    def _compare(self, number: int, before: Sequence[Sequence[float]]) -> dict[str, Any]:
        """One A/A instance: its timings, its values, and the floor with it."""
        timings: tuple[Timing, ...] = self._bench.noise(number)
        self._bench.advance(RECORD_SECONDS)
        try:
            if len(timings) != len(self._bench.workload.points):
                raise ValueError(f"the bench compared {len(timings)} of {len(self._bench.workload.points)} points")
            values = np.log(point_ratios(timings)).tolist()
        except ValueError as error:
            return {
                "status": str(Status.INFRASTRUCTURE),
                "reason": str(error),
                "timings": [],
                "values": [],
                "floor": [],
            }
        floor = noise_floor(np.array([*before, values])).tolist()
        rows = [timing.as_dict() for timing in timings]
        return {"status": str(Status.MEASURED), "reason": "", "timings": rows, "values": values, "floor": floor}

    def _finals(self) -> None:
        finals = Finals(self._session, self._leads(), self._floor, self._evidence)
        for bucket in self._bench.workload.buckets:
            self._decisions.append(finals.bucket(bucket))

    def _leads(self) -> list[Lead]:
        """The measured trials of this epoch."""
        return [
            Lead(Setting.from_dict(record["body"]["resolved"]), record["body"]["ratios"], record["hash"])
            for record in self._tape.of_epoch("trial")
            if record["body"]["status"] == Status.MEASURED
        ]

    def _end(self, reason: str) -> Result:
        """Append the end record, unless the campaign was at this very end already."""
        session, tape = self._session, self._tape
        void = reason == "canary"
        resumable = not void and reason != "exhausted"
        best = {str(bucket): lead.as_dict() for bucket, lead in sorted(session.best.items())}
        last = tape.recorded[-1] if tape.recorded else None
        if tape.appended or last is None or last["kind"] != "end" or last["body"]["reason"] != reason:
            tape.append("end", {"reason": reason, "trials": session.trials, "best": best, "resumable": resumable})
        return Result(
            reason=reason,
            trials=session.trials,
            measured=len(self._leads()),
            clock=tape.clock(),
            best=dict(session.best),
            decisions=tuple(self._decisions),
            floor=tuple(self._floor.tolist()),
            void=void,
            resumable=resumable,
        )


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a campaign takes and can prove, told before it begins.

    Attributes:
        trials: most trials.
        instances: instances of all confirmations, at most.
        seconds: bench seconds, at most: the search's budget and the finals.
        smallest_gain: the smallest true gain that is proven four times in five, a fraction.
    """

    trials: int
    instances: int
    seconds: float
    smallest_gain: float


def estimate(
    options: Options, buckets: int, *, deviation: float | None = None, trial_seconds: float | None = None
) -> Estimate:
    """Plan a campaign.

    Args:
        options: the rules.
        buckets: number of buckets.
        deviation: standard deviation of A/A instance values, a fraction (a replay knows its own); None: guessed.
        trial_seconds: seconds of one trial (a replay knows them); None: guessed. An instance takes about as long.
    """
    each = GUESSED_TRIAL_SECONDS if trial_seconds is None else trial_seconds
    spread = GUESSED_DEVIATION if deviation is None else deviation
    instances = options.instances * buckets
    search = min(60 * options.minutes, options.trials * each)
    finals = (instances + 2 * buckets + options.noise) * each + buckets * (1 + options.processes) * PROCESS_SECONDS
    gain = smallest_provable_gain(spread, options.margin, options.instances)
    return Estimate(options.trials, instances, search + finals, gain)
