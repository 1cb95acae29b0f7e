"""A campaign from its first canary to its end record.

Canaries, A/A noise, default and incumbents, search, and for each bucket shoot-out, confirmation and promotion. Each
step is on record before the next depends on it; `run` over the records of a campaign that was cut off goes on with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.bench import REJECTED, Bench, BenchFailure, Status, Timing, dirt
from mjolnir.tuner.eprocess import smallest_provable_gain
from mjolnir.tuner.estimates import Estimate, estimate
from mjolnir.tuner.finals import Finals, Lead
from mjolnir.tuner.journal import Journal, Record
from mjolnir.tuner.options import Options
from mjolnir.tuner.proposers import make
from mjolnir.tuner.search import Search
from mjolnir.tuner.session import RECORD_SECONDS, Best, Halt, Observer, Progress, Session
from mjolnir.tuner.statistics import Array, noise_floor, point_ratios
from mjolnir.tuner.tape import Tape
from mjolnir.tuner.team import SharedTape, Team
from mjolnir.tuner.trial import UNTOLD

__all__ = ["Best", "Estimate", "Observer", "Options", "Progress", "Result", "estimate", "run", "smallest_provable_gain"]


@dataclass(frozen=True, slots=True)
class Result:
    """How a campaign ended.

    Attributes:
        reason: "trials", "minutes", "exhausted", "flat" (the budget, the space, or what there was to gain above the
            noise, is spent, and the finals are done),
            "interrupted", "canary", "infrastructure", "no-clean-window" (too many dirty windows in a row), or "default"
            (the default itself could not be measured).
        trials: trials recorded in this epoch.
        measured: those that were measured.
        clock: seconds on the bench's clock.
        best: the lead of each bucket in the search.
        decisions: bodies of the promotion records, by bucket.
        floor: noise floor of each point, fractions; empty when it was not measured.
        void: a canary was not rejected, so that nothing here can be believed, or there was no clean window to measure.
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
    team: Team | None = None,
    *,
    finals: bool = True,
) -> Result:
    """Run a campaign, or go on with the one that the journal holds.

    Args:
        bench: where settings are measured; stays open.
        journal: the tag's records, with those of kind `campaign` and `epoch` appended already.
        options: the rules; on resuming, those of the campaign, perhaps with a larger budget.
        observer: is told after each record.
        stop: asked before each step; once it says True the campaign ends as "interrupted".
        team: the processes that share the campaign, whose records the journal holds; None when there is this one alone.
        finals: whether anything is to be proven; without them the campaign ends with the search's leads.

    Raises:
        ValueError: pins leave nothing to search.
    """
    return _Campaign(bench, journal, options, observer, stop, team).run(finals)


@dataclass(frozen=True, slots=True)
class Run:
    """A campaign that takes turns with others; the attributes are the arguments of `run`."""

    bench: Bench
    journal: Journal
    options: Options
    observer: Observer | None = None
    stop: Callable[[], bool] = lambda: False


def run_together(runs: Iterable[Run]) -> list[Result]:
    """Run campaigns over one device: search after search, then their finals side by side.

    A fresh process costs more than the instances in it, so in the finals the campaigns share them: each takes its
    instances in the one that is there, then all go on to the next.

    Args:
        runs: the campaigns; each is made when its search is due.

    Returns:
        Their results, in order.
    """
    campaigns: list[_Campaign] = []
    waiting: deque[Iterator[None]] = deque()
    for each in runs:
        campaigns.append(_Campaign(each.bench, each.journal, each.options, each.observer, each.stop, None))
        turns = campaigns[-1].turns()
        waiting.extend([turns] if next(turns, turns) is None else [])
    while waiting:
        turns = waiting.popleft()
        waiting.extend([turns] if next(turns, turns) is None else [])
    return [campaign.result for campaign in campaigns if campaign.result is not None]


class _Campaign:
    def __init__(
        self,
        bench: Bench,
        journal: Journal,
        options: Options,
        observer: Observer | None,
        stop: Callable[[], bool],
        team: Team | None,
    ) -> None:
        self._bench = bench
        self._tape = Tape(journal, bench) if team is None else SharedTape(team, bench, stop)
        self._session = Session(bench, self._tape, options, observer, stop)
        self._tape.keep_studies(self._session.space)
        self._options = options
        self._evidence: list[Record] = []
        self._floor: Array = np.array([])
        self._decisions: list[Mapping[str, Any]] = []
        self.result: Result | None = None

    def run(self, finals: bool) -> Result:
        for _ in self.turns(finals):
            pass
        assert self.result is not None
        return self.result

    def turns(self, finals: bool = True) -> Iterator[None]:
        """The campaign in parts: up to the end of its search, then between one fresh process and the next."""
        try:
            search = self._open_search()
            self._canaries()
            self._noise()
            workload = self._bench.workload
            floors = {bucket: self._session.weights.of_bucket(bucket, self._floor) for bucket in workload.buckets}
            reason = search.run(floors)
            yield
            if finals and self._tape.shared:
                self._tape.alone("finals", lambda: deque(self._finals(), maxlen=0))
            elif finals:
                yield from self._finals()
        except Halt as halt:
            reason = halt.reason
        finally:
            self._tape.close()
        self.result = self._end(reason)

    def _open_search(self) -> Search:
        session, options = self._session, self._options
        proposer = make(
            options.proposer,
            session.space,
            options.seed,
            workload=self._bench.workload,
            command=options.proposer_command,
            seconds=options.proposer_seconds,
        )
        search = Search(session, proposer)
        search.foresee()
        return search

    def _canaries(self) -> None:
        """Send each canary through the gate; one that is not rejected voids the campaign."""
        faults = self._bench.canaries
        for done, fault in enumerate(faults, 1):
            status, number = Status.INFRASTRUCTURE, 0
            while status in UNTOLD:
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
            self._begin_noise(number + 1, wanted - len(values))
            number += 1
            take = partial(self._compare, number, values)
            record = self._session.step("noise", (number,), take, min(len(values) + 1, wanted), wanted)
            self._evidence.append(record)
            if record["body"]["status"] == Status.MEASURED:
                values.append(record["body"]["values"])
        self._floor = noise_floor(np.array(values))

    def _begin_noise(self, first: int, count: int) -> None:
        """Announce the comparisons that will be asked for, as far as they are not on record."""
        for number in range(first, first + count):
            if not self._tape.shared and not self._tape.has("noise", number):
                self._bench.begin_noise(number)

    def _compare(self, number: int, before: Sequence[Sequence[float]]) -> dict[str, Any]:
        """One A/A instance: its timings, its values, and the floor with it."""
        timings: tuple[Timing, ...] = ()
        try:
            timings = self._bench.noise(number)
            self._bench.advance(RECORD_SECONDS)
            if len(timings) != len(self._bench.workload.points):
                raise ValueError(f"the bench compared {len(timings)} of {len(self._bench.workload.points)} points")
            if dirty := dirt(timings):
                raise BenchFailure(dirty, status=Status.DIRTY)
            values = np.log(point_ratios(timings)).tolist()
        except (ValueError, BenchFailure) as error:
            status = error.status if isinstance(error, BenchFailure) else Status.INFRASTRUCTURE
            kept = [timing.as_dict() for timing in timings] if status is Status.DIRTY else []
            return {"status": str(status), "reason": str(error), "timings": kept, "values": [], "floor": []}
        floor = noise_floor(np.array([*before, values])).tolist()
        rows = [timing.as_dict() for timing in timings]
        return {"status": str(Status.MEASURED), "reason": "", "timings": rows, "values": values, "floor": floor}

    def _finals(self) -> Iterator[None]:
        session, options = self._session, self._options
        # Where time ends the search, it may end a trial later in another process.
        session.trials = self._tape.agree(f"after/{options.trials}/{options.minutes:g}", session.trials)
        self._decisions.clear()
        elsewhere = self._tape.elsewhere()
        for decisions in Finals(self._session, self._leads(), self._floor, self._evidence, elsewhere).run():
            self._decisions += decisions
            yield

    def _leads(self) -> list[Lead]:
        """The measured trials of this epoch."""
        return [
            Lead(Setting.from_dict(record["body"]["resolved"]), record["body"]["point_ratios"], record["hash"])
            for record in self._tape.of_epoch("trial")
            if record["body"]["status"] == Status.MEASURED
        ]

    def _end(self, reason: str) -> Result:
        """Append the end record, unless the campaign was at this very end already."""
        session, tape = self._session, self._tape
        void = reason in ("canary", "no-clean-window")
        resumable = reason not in ("canary", "exhausted", "flat")
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
            decisions=tuple(sorted(self._decisions, key=lambda body: int(body["bucket"]))),
            floor=tuple(self._floor.tolist()),
            void=void,
            resumable=resumable,
        )
