"""`autoresearch try`: a change of the kernel's sources against its base, by the same gate, timing and proof as a knob.

The change is taken from the work tree or a branch, built and measured beside its base, and recorded with its diff
whatever comes of it. What is proven faster becomes a commit on the branch `autoresearch/<tag>`, and the next base.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjolnir import ledger as ledgers
from mjolnir.research import benches, places
from mjolnir.research.answer import Answer, Exit, Failure, NotWrittenFailure, UsageFailure
from mjolnir.research.bodies import environment, open_records
from mjolnir.research.campaign import TAKEN, failures_in_words
from mjolnir.research.checkout import Checkout
from mjolnir.research.journal import LedgerJournal
from mjolnir.research.removal import require_in_force
from mjolnir.research.source import answers
from mjolnir.research.source.branch import Branch
from mjolnir.research.source.change import Change, take
from mjolnir.research.source.opening import GpuOpener, Opener
from mjolnir.research.source.proving import CanaryPassed, Proof, Proving, Stopped
from mjolnir.research.source.tuning import Place, arms_of, retuned
from mjolnir.research.stopping import Running
from mjolnir.research.summary import bodies
from mjolnir.research.tags import checked_tag
from mjolnir.tuner.bench import Outcome, Status
from mjolnir.tuner.source_proof import DISCARD, KEEP, Ruling
from mjolnir.tuner.sources import Source

if TYPE_CHECKING:
    from mjolnir.ledger import Ledger
    from mjolnir.research.progress import Screen
    from mjolnir.research.request import Request
    from mjolnir.tuner.options import Options
    from mjolnir.tuner.sources import SourceBench

TAG = "try"
"""The tag without `--tag`."""

MOST = 4000
"""Characters of a message."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What is tried.

    Attributes:
        message: what and why.
        branch: the revision that holds the change; None = the work tree.
        base: what a new branch begins at; None = HEAD.
        retune: tune the knobs of both first, instead of holding them.
        start: where to look for the checkout; None = the current folder.
    """

    message: str
    branch: str | None = None
    base: str | None = None
    retune: bool = False
    start: Path | None = None


def attempt(request: Request, ask: Ask, screen: Screen, opener: Opener | None = None) -> Answer:
    """Try one change.

    Raises:
        UsageFailure: nothing to try, or something that no experiment may change; a tag or option that does not fit.
        MissingFailure: no GPU.
        Failure: no checkout, or the ledger, git or the device failed.
    """
    opener = opener or GpuOpener()
    tag = checked_tag(request.tag or TAG)
    _check_message(ask.message)
    checkout = Checkout.find(ask.start or Path.cwd())
    if checkout is None:
        raise Failure("`autoresearch try` is run in a git checkout of Mjolnir, whose sources it is about; this is none")
    with ledgers.open(request.ledger) as ledger:
        require_in_force(ledger, tag, TAKEN)
        branch = Branch(checkout, tag)
        branch.catch_up(_kept(ledger, tag))
        change = take(checkout, branch.base(ask.base), ask.message, ask.branch)
        opener.require(request.device)
        ledger.prepare()
        with (
            Running(places.state_folder(ledger.folder), tag).claim() as stop,
            failures_in_words(ledger, "try", "-m", ask.message, "--tag", tag),
        ):
            experiment = Experiment(request, ask, screen, ledger, tag, change, stop)
            with opener.open(request.device, experiment.problem, checkout, change) as bench:
                return experiment.run(bench, branch)


def _check_message(message: str) -> None:
    if not message.strip():
        raise UsageFailure("-m: say what is changed and why; it is what the ledger is read by")
    if len(message) > MOST:
        raise UsageFailure(f"-m: the message has {len(message)} characters; {MOST} are kept at most")


def _kept(ledger: Ledger, tag: str) -> list[tuple[str, str]]:
    sources = [record.body.get("source") for record in ledger.records(tag, "trial") if record.body["verdict"] == KEEP]
    return [(source["base"], source["commit"]) for source in sources if source]


class Experiment:
    """One change, from its first record to its last."""

    def __init__(
        self, request: Request, ask: Ask, screen: Screen, ledger: Ledger, tag: str, change: Change, stop: Running
    ) -> None:
        self._request, self._ask, self._screen = request, ask, screen
        self._ledger, self._tag, self._change, self._stop = ledger, tag, change, stop
        self._place = Place(ledger, tag, change)
        campaigns = ledger.records(tag, "campaign")
        recorded = campaigns[-1].body if campaigns else None
        if recorded is not None and not recorded.get("sources"):
            raise UsageFailure(f"{tag} is a campaign over knobs; choose another --tag for source experiments")
        self.problem = benches.problem_of(request, recorded)
        self._options: Options = request.options(recorded["options"] if recorded else None)

    def run(self, bench: SourceBench, branch: Branch) -> Answer:
        """Measure, record, and keep or discard."""
        base = bench.side(Source.BASE)
        with self._ledger.writer(self._tag, environment(base)) as writer:
            journal = LedgerJournal(self._ledger, writer, self._tag)
            part = {"sources": self._change.kernel}
            open_records(self._request, base, self._options, journal, campaign={"sources": True}, epoch=part)
            number = _next_number(journal)
            proving = Proving(bench, journal, self._options, number, self._stop, self._screen.say)
            self._announce(number, proving)
            taken = self._taken(bench, proving)
            body = answers.trial_body(number, self._ask.message, self._change, taken, proving, bench)
            record = journal.append("trial", body)
            reason = "interrupted" if self._stop() else "decided"
            journal.append("end", {"reason": reason, "trials": number, "best": {}, "resumable": True})
        return self._answer(record, branch, taken)

    def _announce(self, number: int, proving: Proving) -> None:
        change = self._change
        self._screen.say(
            f"ledger {self._ledger.place}; tag {self._tag}; experiment {number}, the {proving.attempt}. on the base "
            f"{change.base[:12]}; changed: {', '.join(change.files)}"
        )
        if change.left_out:
            self._screen.say(f"not part of it, as the kernel does not depend on them: {', '.join(change.left_out)}")

    def _taken(self, bench: SourceBench, proving: Proving) -> answers.Taken:
        """What the bench says; whatever it is, it becomes a record."""
        nothing = Outcome(Status.MEASURED)
        taken = answers.Taken(nothing, Proof(Status.INFRASTRUCTURE, Ruling(DISCARD, ""), ()), None)
        try:
            proving.canaries()
            arms = arms_of(self._request, bench, self._options)
            outcome = bench.check(arms[0])
            taken = replace(taken, gate=outcome, arms=arms)
            if outcome.status is not Status.MEASURED:
                return replace(taken, proof=Proof(outcome.status, Ruling(DISCARD, outcome.reason), ()))
            if self._ask.retune:
                taken = replace(
                    taken,
                    arms=(arms := retuned(self._request, bench, self._options, self._place, self._screen, self._stop)),
                )
            return replace(taken, proof=proving.prove(*arms, proving.noise(arms[1])))
        except Stopped as stopped:
            return replace(taken, proof=Proof(stopped.status, Ruling(DISCARD, stopped.reason), ()))
        except CanaryPassed as passed:
            void = Proof(Status.INFRASTRUCTURE, Ruling(DISCARD, f"the results are void: {passed}"), ())
            return replace(taken, proof=void, void=True)

    def _answer(self, record: Mapping[str, Any], branch: Branch, taken: answers.Taken) -> Answer:
        body, code, moved = record["body"], Exit.DONE, ""
        if body["verdict"] == KEEP:
            try:
                branch.keep(self._change.commit, self._change.base)
                moved = branch.name
            except NotWrittenFailure as failure:
                return answers.answer(self._ledger, record, self._change, str(failure), failure.code)
        elif taken.void:
            code = Exit.VOID
        elif self._stop():
            code = Exit.INTERRUPTED
        return answers.answer(self._ledger, record, self._change, moved, code)


def _next_number(journal: LedgerJournal) -> int:
    """The number of the next trial; one that was killed with instances on record keeps its own."""
    history = journal.history()
    used = [body["trial"] for kind in ("trial", "confirmation") for body in bodies(history, kind)]
    return 1 + max(used, default=0)
