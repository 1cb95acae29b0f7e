"""The search: propose, measure, record, tell, until the budget is spent. What it finds are leads, not proof."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from mjolnir.kernel.variant import resolve
from mjolnir.tuner.asking import AGAIN, Asking, Flat
from mjolnir.tuner.bench import Outcome, Status
from mjolnir.tuner.proposers import Proposer
from mjolnir.tuner.racing import LeadRace
from mjolnir.tuner.session import PROPOSE_SECONDS, RECORD_SECONDS, Halt, Session
from mjolnir.tuner.tape import Task
from mjolnir.tuner.trial import UNTOLD, Proposal, score, trial_body


@dataclass(frozen=True, slots=True)
class Ask:
    """An ask for one trial: its body where that is known, else the answer to come."""

    body: Mapping[str, Any] | None
    answer: Future[Proposal | None] | None


class Search:
    """Runs the trials of one epoch.

    Asks run ahead of the device by `Options.depth`: while trial n is measured, the proposer is asked for trial
    n + depth, having been told of the trials below n. So ask m sees the trials below m - depth, however often the
    campaign was cut off, and the device never waits for an answer.

    Args:
        session: the campaign.
        proposer: is asked.
    """

    def __init__(self, session: Session, proposer: Proposer) -> None:
        self._session = session
        self._floors: Mapping[int, float] = {}
        self._asking = Asking(session, proposer)
        self._ahead: deque[Proposal] = deque()
        self._leads: dict[int, dict[int, float]] = {}
        self._asked = 0
        self._end: Literal["", "flat", "minutes"] = ""
        self._numbers = self._known_numbers()

    def _known_numbers(self) -> list[int]:
        """Trial numbers of this epoch; the trials of other epochs only seed the proposer, and keep their numbers."""
        tape = self._session.tape
        mine = sorted(record["body"]["trial"] for record in tape.of_epoch("trial"))
        others = [r["body"] for r in tape.recorded if r["kind"] == "trial" and r["body"].get("epoch", "") != tape.epoch]
        for body in others:
            self._asking.tell(body)
        taken = {body["trial"] for body in others}
        self._next = 1 + max([*mine, *taken], default=0)
        if not mine:
            return mine
        # Others may have trials in hand whose numbers lie between those on record.
        first = 1 + max((number for number in taken if number < mine[0]), default=0)
        return [number for number in range(first, mine[-1] + 1) if number not in taken]

    def _number(self, place: int) -> int:
        """The number of the epoch's trial at this place."""
        while place >= len(self._numbers):
            self._numbers.append(self._next)
            self._next += 1
        return self._numbers[place]

    def foresee(self) -> None:
        """Have compiled what is tried first, while the device has other things to do."""
        self._session.bench.foresee(self._asking.likely)

    def run(self, floors: Mapping[int, float]) -> str:
        """Run to the end of the budget.

        Args:
            floors: noise floor of each bucket, a fraction; without them nothing is flat and no duplicate is a
                contender.

        Returns:
            What ended it: "trials", "minutes", "exhausted" or "flat".

        Raises:
            Halt: stopped, failed too often, or the default itself cannot be measured.
        """
        session, options = self._session, self._session.options
        self._floors = self._asking.floors = floors
        session.search_began = session.tape.clock()
        with ThreadPoolExecutor(1, thread_name_prefix="mjolnir-ask") as thread:
            for place in range(options.trials):
                while self._asked < min(options.trials, place + max(1, options.depth)) and not self._end:
                    self._take_in(self._begin_ask(thread))
                if not self._ahead:
                    return self._end or "exhausted"
                if self._time_is_over(place):
                    return "minutes"
                self._trial(place, thread)
        return "trials"

    def _time_is_over(self, place: int) -> bool:
        """Whether the trial at this place is not to be measured any more; what a device has begun is taken in."""
        session, number = self._session, self._number(place)
        if session.tape.has("trial", number):
            return False
        if self._end != "minutes" and session.tape.clock() - (session.search_began or 0) < 60 * session.options.minutes:
            return False
        self._end = "minutes"
        if session.bench.begun(number):
            return False
        for proposal in self._ahead:
            session.bench.begun(proposal.number)
        return True

    def _begin_ask(self, thread: ThreadPoolExecutor) -> Ask:
        """Ask for the next trial, beside whatever the device does, unless its proposal is on record."""
        number = self._number(self._asked)
        self._asked += 1
        tape = self._session.tape
        body = tape.body("trial", number) or tape.agreed(f"ask/{number}")
        return Ask(body, thread.submit(self._asking.propose, number) if body is None else None)

    def _take_in(self, ask: Ask) -> None:
        """Queue the answer and have it compiled."""
        session = self._session
        proposal = self._proposal(ask)
        session.bench.advance(PROPOSE_SECONDS)
        if proposal is None:
            return
        self._asking.note(proposal, known=ask.body is not None)
        self._ahead.append(proposal)
        self._leads[proposal.number] = {bucket: lead.ratio for bucket, lead in session.best.items()}
        session.bench.foresee(self._asking.likely)
        # A simulated pool has to be brought to where it was; a real one need not compile what is measured already.
        if (ask.body is None or session.bench.simulated) and not session.tape.shared:
            self._submit(proposal)

    def _proposal(self, ask: Ask) -> Proposal | None:
        """The proposal, None when there is none; where several processes propose, that of the one that was first."""
        if ask.answer is None:
            return Proposal.of_body(ask.body or {})
        try:
            proposal = ask.answer.result()
        except Flat:
            self._end = "flat"
            return None
        tape = self._session.tape
        if proposal is None or not tape.shared:
            return proposal
        return Proposal.of_body(tape.agree(f"ask/{proposal.number}", proposal.as_body()))

    def _submit(self, proposal: Proposal) -> None:
        """Have the setting compiled, if it can run here at all."""
        if not self._unmeasurable(proposal):
            self._session.bench.submit(proposal.setting)
            self._session.bench.begin(proposal.number, proposal.setting, self._race(proposal))

    def _unmeasurable(self, proposal: Proposal) -> str | None:
        """Why a setting cannot be measured here, known without compiling it; None where it may."""
        session = self._session
        resolved = resolve(proposal.setting, session.bench.geometry, session.bench.device)
        return session.space.unmeasurable(proposal.setting) or self._asking.skips.reason(resolved)

    def _task(self, proposal: Proposal) -> Task:
        """The trial as one that any process may take; it is compiled by the one that does."""
        return Task((proposal.number,), partial(self._measure, proposal), partial(self._submit, proposal))

    def _trial(self, place: int, thread: ThreadPoolExecutor) -> None:
        """Measure, record and tell one trial, while the proposer is asked for another."""
        session, options = self._session, self._session.options
        due = options.depth and self._asked <= place + options.depth and self._asked < options.trials and not self._end
        ask = self._begin_ask(thread) if due else None
        if session.tape.shared:
            session.tape.share("trial", [self._task(proposal) for proposal in self._ahead])
        proposal = self._ahead.popleft()
        record = session.step("trial", (proposal.number,), lambda: self._measure(proposal))
        recorded = session.tape.old("trial", proposal.number)
        if ask is not None:
            self._take_in(ask)
        body = record["body"]
        self._asking.learn(body)
        session.trials = place + 1
        session.report("search", place + 1, options.trials, record, recorded)
        session.check("trial", (proposal.number,), record)
        if body["status"] in UNTOLD and proposal.origin != "sampler":
            self._asking.wait_again(proposal)
        elif proposal.origin == "default" and body["status"] != Status.MEASURED:
            raise Halt("default")

    def _measure(self, proposal: Proposal) -> dict[str, Any]:
        """Measure one setting, if it can run here at all."""
        session = self._session
        reason = self._unmeasurable(proposal)
        outcome = Outcome(Status.INFEASIBLE, reason) if reason else self._ask_bench(proposal)
        session.bench.advance(RECORD_SECONDS)
        scored = score(outcome, session.weights)
        resolved = resolve(proposal.setting, session.bench.geometry, session.bench.device)
        kept = self._asking.would_lead(resolved, scored.ratios) if scored.ratio is not None else []
        return trial_body(proposal, resolved, outcome, scored, kept, session.tape.append_seconds)

    def _ask_bench(self, proposal: Proposal) -> Outcome:
        """What the bench says; timings that do not cover the workload are a fault of the bench."""
        bench, race = self._session.bench, self._race(proposal)
        outcome = bench.measure(proposal.number, proposal.setting, race=race)
        points = len(bench.workload.points)
        if outcome.status is Status.MEASURED and [t.point for t in outcome.timings] != list(range(points)):
            reason = f"the bench returned timings of {len(outcome.timings)} points, the workload has {points}"
            return Outcome(Status.INFRASTRUCTURE, reason, phases=outcome.phases, log=outcome.log)
        return outcome

    def _race(self, proposal: Proposal) -> LeadRace | None:
        """The race of a trial; what was asked for by name, and further instances of a setting, are not raced."""
        session = self._session
        if not session.options.race or proposal.origin != "sampler" or proposal.replaced == AGAIN:
            return None
        # Which trials are done by now depends on who took which, and what came of a race should not.
        return LeadRace(session.bench.workload, self._leads[proposal.number], self._floors)
