"""The search: propose, measure, record, tell, until the budget is spent. What it finds are leads, not proof."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from time import perf_counter
from typing import Any

import numpy as np

from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import resolve
from mjolnir.tuner.bench import Outcome, Status
from mjolnir.tuner.proposers import Proposer
from mjolnir.tuner.proposers.unseen import unseen
from mjolnir.tuner.session import PROPOSE_SECONDS, RECORD_SECONDS, Best, Halt, Session
from mjolnir.tuner.space import Coordinates
from mjolnir.tuner.trial import UNTOLD, Proposal, score, trial_body


class Search:
    """Runs the trials of one epoch.

    Asks run ahead of the device by `Options.depth`: before trial n is measured, the proposer is asked for trial
    n + depth, having been told of the trials below n. So ask m sees the trials below m - depth, however often the
    campaign was cut off.
    """

    def __init__(self, session: Session, proposer: Proposer) -> None:
        self._session = session
        self._proposer = proposer
        self._buckets = session.bench.workload.buckets
        self._taken: set[Coordinates] = set()
        self._queue = deque(self._first())
        self._numbers = self._known_numbers()

    def _first(self) -> list[tuple[Setting, str, int | None]]:
        """What is tried before the proposer is asked: the default, the rows in force, what was enqueued; each once."""
        session = self._session
        wanted: list[tuple[Setting, str, int | None]] = [(Setting(), "default", None)]
        in_force = [(setting, bucket) for bucket, setting in sorted(session.options.incumbents.items())]
        wanted += [(row, "incumbent", bucket) for row, bucket in in_force if not session.space.unrecorded(row)]
        wanted += [(setting, "enqueued", None) for setting in session.options.enqueued]
        first: dict[Setting, tuple[Setting, str, int | None]] = {}
        for entry in wanted:
            first.setdefault(resolve(entry[0], session.bench.geometry, session.bench.device), entry)
        return list(first.values())

    def _known_numbers(self) -> list[int]:
        """Trial numbers of this epoch; the trials of other epochs only seed the proposer, and keep their numbers."""
        tape = self._session.tape
        mine = sorted(record["body"]["trial"] for record in tape.of_epoch("trial"))
        others = [r["body"] for r in tape.recorded if r["kind"] == "trial" and r["body"].get("epoch", "") != tape.epoch]
        for body in others:
            self._tell(body)
        self._next = 1 + max([*mine, *(body["trial"] for body in others)], default=0)
        return mine

    def _number(self, place: int) -> int:
        """The number of the epoch's trial at this place."""
        while place >= len(self._numbers):
            self._numbers.append(self._next)
            self._next += 1
        return self._numbers[place]

    def run(self) -> str:
        """Run to the end of the budget.

        Returns:
            What ended it: "trials", "minutes" or "exhausted".

        Raises:
            Halt: stopped, failed too often, or the default itself cannot be measured.
        """
        session, options = self._session, self._session.options
        session.search_began = session.tape.clock()
        ahead: deque[Proposal] = deque()
        asked = 0
        for place in range(options.trials):
            while asked < min(options.trials, place + options.depth + 1):
                proposal = self._ask(self._number(asked))
                asked += 1
                if proposal is not None:
                    ahead.append(proposal)
            if not ahead:
                return "exhausted"
            recorded = session.tape.has("trial", self._number(place))
            if not recorded and session.tape.clock() - session.search_began >= 60 * options.minutes:
                return "minutes"
            self._trial(ahead.popleft(), place, recorded)
        return "trials"

    def _ask(self, number: int) -> Proposal | None:
        """The proposal for a trial, its compile submitted; None when the space is used up."""
        session = self._session
        body = session.tape.body("trial", number)
        proposal = self._propose(number) if body is None else Proposal.of_body(body)
        if body is not None and self._queue and proposal and proposal.origin != "sampler":
            self._queue.popleft()
        session.bench.advance(PROPOSE_SECONDS)
        if proposal is None:
            return None
        coordinates = session.space.coordinates(proposal.setting)
        if coordinates is not None:
            self._taken.add(coordinates)
        # A simulated pool has to be brought to where it was; a real one need not compile what is measured already.
        if (body is None or session.bench.simulated) and not session.space.unmeasurable(proposal.setting):
            session.bench.submit(proposal.setting)
        return proposal

    def _propose(self, number: int) -> Proposal | None:
        """Take what waits, else ask the proposer, for the buckets in turn."""
        session = self._session
        if self._queue:
            setting, origin, bucket = self._queue.popleft()
            return Proposal(number, setting, origin, bucket=bucket)
        begin = perf_counter()
        bucket = self._buckets[number % len(self._buckets)]
        proposed = self._proposer.ask(bucket, number)
        found = unseen(session.space, proposed, self._taken, np.random.default_rng((session.options.seed, number, 1)))
        if found is None:
            return None
        coordinates, replaced = found
        seconds = PROPOSE_SECONDS if session.bench.simulated else round(perf_counter() - begin, 6)
        setting = session.space.setting(coordinates)
        return Proposal(number, setting, "sampler", self._proposer.name, replaced, bucket, seconds)

    def _trial(self, proposal: Proposal, place: int, recorded: bool) -> None:
        """Measure, record and tell one trial."""
        session = self._session
        record = session.step("trial", (proposal.number,), lambda: self._measure(proposal))
        body = record["body"]
        self._learn(body)
        session.trials = place + 1
        session.report("search", place + 1, session.options.trials, record, recorded)
        session.check("trial", (proposal.number,), record)
        if body["status"] in UNTOLD and proposal.origin != "sampler":
            self._queue.append((proposal.setting, proposal.origin, proposal.bucket))
        elif proposal.origin == "default" and body["status"] != Status.MEASURED:
            raise Halt("default")

    def _measure(self, proposal: Proposal) -> dict[str, Any]:
        """Measure one setting, if it can run here at all."""
        session = self._session
        reason = session.space.unmeasurable(proposal.setting)
        outcome = Outcome(Status.INFEASIBLE, reason) if reason else self._ask_bench(proposal)
        session.bench.advance(RECORD_SECONDS)
        scored = score(outcome, session.weights)
        resolved = resolve(proposal.setting, session.bench.geometry, session.bench.device)
        kept = [bucket for bucket, ratio in scored.ratios.items() if self._leads(resolved, bucket, ratio)]
        return trial_body(proposal, resolved, outcome, scored, kept, session.tape.append_seconds)

    def _ask_bench(self, proposal: Proposal) -> Outcome:
        """What the bench says; timings that do not cover the workload are a fault of the bench."""
        outcome = self._session.bench.measure(proposal.number, proposal.setting)
        points = len(self._session.bench.workload.points)
        if outcome.status is Status.MEASURED and [t.point for t in outcome.timings] != list(range(points)):
            reason = f"the bench returned timings of {len(outcome.timings)} points, the workload has {points}"
            return Outcome(Status.INFRASTRUCTURE, reason, phases=outcome.phases, log=outcome.log)
        return outcome

    def _learn(self, body: Mapping[str, Any]) -> None:
        """Take a trial of this epoch in: leads, and what the proposer should know."""
        resolved = Setting.from_dict(body["resolved"])
        for name, ratio in body["ratios"].items():
            if self._leads(resolved, int(name), ratio):
                self._session.best[int(name)] = Best(resolved, ratio, body["trial"])
        if body["status"] in UNTOLD:
            coordinates = self._session.space.coordinates(Setting.from_dict(body["setting"]))
            if coordinates is not None:
                self._taken.discard(coordinates)
        self._tell(body)

    def _leads(self, setting: Setting, bucket: int, ratio: float) -> bool:
        """Whether a setting is the fastest so far; a row in force that does not hold the pins is only compared with."""
        space, best = self._session.space, self._session.best.get(bucket)
        in_play = setting == space.default or space.coordinates(setting) is not None
        return in_play and (best is None or ratio < best.ratio)

    def _tell(self, body: Mapping[str, Any]) -> None:
        """Tell every bucket's study of a trial."""
        if body["status"] in UNTOLD:
            return
        coordinates = self._session.space.coordinates(Setting.from_dict(body["setting"]))
        if coordinates is not None:
            for bucket in self._buckets:
                self._proposer.tell(bucket, coordinates, body["ratios"].get(str(bucket)))
