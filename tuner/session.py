"""What the phases of a campaign share: bench, records, options, the way out, and the news for whoever watches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.bench import Bench, Status
from mjolnir.tuner.journal import Record
from mjolnir.tuner.options import Options
from mjolnir.tuner.space import Space
from mjolnir.tuner.statistics import Weights
from mjolnir.tuner.tape import Tape
from mjolnir.tuner.uneven import serves

MOST_FAILURES = 3
"""Infrastructure failures in a row that end a campaign."""

MOST_DIRTY = 10
"""Dirty windows in a row that end a campaign."""

PROPOSE_SECONDS, RECORD_SECONDS = 0.012, 0.004
"""What proposing and recording take on a simulated clock: one TPE ask, one fsync."""


class Halt(Exception):
    """The campaign ends here; `reason` is that of its end record."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Best:
    """The fastest setting of a bucket in the search: a lead to follow, never a claim.

    Attributes:
        setting: which.
        ratio: time over the default's, as the search measured it.
        trial: the trial that did.
    """

    setting: Setting
    ratio: float
    trial: int

    def as_dict(self) -> dict[str, Any]:
        """JSON form, as the end record has it."""
        return {"setting": self.setting.as_dict(), "ratio": self.ratio, "trial": self.trial}


@dataclass(frozen=True, slots=True)
class Progress:
    """News of a running campaign.

    Attributes:
        phase: "canary", "noise", "search", "shootout", "confirmation" or "promotion".
        done: steps of the phase that are done.
        total: steps that the phase takes at most.
        clock: seconds on the bench's clock since the campaign began.
        trials: trials recorded in this epoch.
        trials_per_minute: of the search so far, on the bench's clock; 0 before it.
        seconds_left: of the search, at most; None outside of it.
        best: the lead of each bucket.
        record: the record that this is about.
        replayed: whether that record was there before this process.
    """

    phase: str
    done: int
    total: int
    clock: float
    trials: int
    trials_per_minute: float
    seconds_left: float | None
    best: Mapping[int, Best]
    record: Record
    replayed: bool


class Observer(Protocol):
    """Somebody who watches a campaign. It is told after each record and must not raise."""

    def update(self, progress: Progress) -> None:
        """Take the news in; called on the campaign's thread, so it has to be quick."""


class Session:
    """One run of a campaign.

    Attributes:
        best: the lead of each bucket, kept by the search.
        trials: trials recorded in this epoch, kept by the search.
        search_began: the clock when the search began; None before it.
    """

    def __init__(
        self, bench: Bench, tape: Tape, options: Options, observer: Observer | None, stop: Callable[[], bool]
    ) -> None:
        self.bench = bench
        self.tape = tape
        self.options = options
        self.space = Space(bench.geometry, bench.device, options.pins, bench.settings())
        self.weights = Weights(bench.workload)
        self.best: dict[int, Best] = {}
        self.trials = 0
        self.search_began: float | None = None
        self._observer = observer
        self._stop = stop
        self._failures = self._dirty = 0

    def may_win(self, setting: Setting, bucket: int) -> bool:
        """Whether a resolved setting may be the row of a bucket.

        A row in force that does not hold the pins is measured, and no more; nor wins a split limit that uneven lengths
        would pay for.
        """
        space = self.space
        searched = setting == space.default or space.coordinates(setting) is not None
        return searched and serves(setting, bucket, space.geometry, space.device)

    def step(
        self, kind: str, key: tuple[Any, ...], take: Callable[[], dict[str, Any]], done: int = 0, total: int = 0
    ) -> Record:
        """Take a step or read it back, then `report` and `check` it (`total` 0: the caller does both later).

        Raises:
            Halt: somebody asked to stop, or the infrastructure failed too often in a row.
        """
        if not self.tape.has(kind, *key) and self._stop():
            raise Halt("interrupted")
        record, replayed = self.tape.step(kind, key, take)
        if total:
            self.report(kind, done, total, record, replayed)
            self.check(kind, key, record)
        return record

    def check(self, kind: str, key: tuple[Any, ...], record: Record) -> None:
        """Count infrastructure failures and dirty windows in a row; those from before an end record are forgiven.

        Raises:
            Halt: there are too many.
        """
        if self.tape.settled(kind, *key) or not self.tape.mine(record):
            return
        status = record["body"].get("status")
        self._failures = self._failures + 1 if status == Status.INFRASTRUCTURE else 0
        self._dirty = self._dirty + 1 if status == Status.DIRTY else 0
        if self._failures >= MOST_FAILURES:
            raise Halt("infrastructure")
        if self._dirty >= MOST_DIRTY:
            raise Halt("no-clean-window")

    def report(self, phase: str, done: int, total: int, record: Record, replayed: bool = False) -> None:
        """Tell the observer."""
        if self._observer is None:
            return
        clock = float(record["body"]["clock"])
        spent = 0.0 if self.search_began is None else clock - self.search_began
        rate = self.trials / spent if spent > 0 else 0.0
        left = None
        if phase == "search":
            left = max(0.0, 60 * self.options.minutes - spent)
            left = min(left, (self.options.trials - self.trials) / rate) if rate else left
        progress = Progress(phase, done, total, clock, self.trials, 60 * rate, left, dict(self.best), record, replayed)
        self._observer.update(progress)
