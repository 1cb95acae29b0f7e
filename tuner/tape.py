"""The records of a campaign as steps: a step that is recorded is read back, any other is taken and recorded.

The campaign is written as straight code over `Tape.step`. Running it again over the records of a campaign that was cut
off walks through what is known and goes on from there; nothing else is needed to resume.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

from mjolnir.tuner.bench import Bench
from mjolnir.tuner.journal import Journal, Record
from mjolnir.tuner.space import Space

KEYS: Mapping[str, tuple[str, ...]] = {
    "canary": ("fault", "number"),
    "noise": ("number",),
    "trial": ("trial",),
    "shootout": ("after", "bucket", "number"),
    "confirmation": ("after", "bucket", "number"),
    "promotion": ("after", "bucket"),
}
"""The kinds of steps, and what tells the steps of a kind apart; fields of the body."""

MEASURED = ("canary", "noise", "trial", "shootout", "confirmation")
"""The kinds that hold measurements, and with them the policy by which they were taken."""

Body = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Task:
    """A step that may be taken ahead of its turn.

    Attributes:
        key: as `KEYS` has it for its kind.
        take: does the step and returns its body.
        prepare: begins what takes its time, such as a compile, once it is certain that the step is taken here.
    """

    key: tuple[Any, ...]
    take: Callable[[], dict[str, Any]]
    prepare: Callable[[], None] = lambda: None


class Tape:
    """The steps of the epoch in force.

    Attributes:
        epoch: the epoch in force, as the last `epoch` record has it; "" without one.
        recorded: all records of the tag when the tape was opened.
        appended: number of records appended since.
        shared: whether other processes take steps of the same campaign.
    """

    shared = False

    def __init__(self, journal: Journal, bench: Bench) -> None:
        self.recorded: Sequence[Record] = tuple(journal.history())
        self.epoch = next((str(r["body"]["epoch"]) for r in reversed(self.recorded) if r["kind"] == "epoch"), "")
        self.appended = 0
        self._journal = journal
        self._bench = bench
        self._origin = bench.now()
        self._append_seconds = 0.0
        self._steps: dict[tuple[Any, ...], tuple[int, Record]] = {}
        self._last_end = -1
        for place, record in enumerate(self.recorded):
            kind, body = record["kind"], record["body"]
            if kind in KEYS and body.get("epoch", "") == self.epoch:
                self._steps.setdefault((kind, *(body[name] for name in KEYS[kind])), (place, record))
            elif kind == "end":
                self._last_end = place
        self._set_clock(self._clock_of_other_epochs())

    def _clock_of_other_epochs(self) -> float:
        """Seconds that epochs before this one took."""
        others = (r["body"] for r in self.recorded if r["body"].get("epoch", "") != self.epoch)
        return max((float(body.get("clock", 0.0)) for body in others), default=0.0)

    @property
    def append_seconds(self) -> float:
        """Seconds that the last append took; 0 in a replay, whose times are simulated."""
        return 0.0 if self._bench.simulated else self._append_seconds

    def clock(self) -> float:
        """Seconds on the bench's clock since the campaign began, time between two runs of it left out."""
        return round(self._bench.now() - self._origin, 6)

    def elsewhere(self) -> Sequence[Record]:
        """The promotion records of other tags (see `Journal`)."""
        return self._journal.elsewhere()

    def has(self, kind: str, *key: Any) -> bool:
        """Whether a step is recorded."""
        return (kind, *key) in self._steps

    def body(self, kind: str, *key: Any) -> Body | None:
        """The body of a recorded step, or None."""
        found = self._steps.get((kind, *key))
        return None if found is None else found[1]["body"]

    def old(self, kind: str, *key: Any) -> bool:
        """Whether a recorded step was recorded before this process came."""
        return self._steps[kind, *key][0] < len(self.recorded)

    def settled(self, kind: str, *key: Any) -> bool:
        """Whether a step was recorded before a run of the campaign ended: its failures are of the past."""
        return self.has(kind, *key) and self._steps[kind, *key][0] < self._last_end

    def of_epoch(self, kind: str) -> list[Record]:
        """The recorded steps of one kind, in order."""
        return [record for _, record in self._steps.values() if record["kind"] == kind]

    def step(self, kind: str, key: tuple[Any, ...], take: Callable[[], dict[str, Any]]) -> tuple[Record, bool]:
        """One step: from the records, or taken and appended.

        Args:
            kind: one of `KEYS`.
            key: the values that `KEYS` names, in order.
            take: does the step and returns its body; `epoch` and `clock` are added to it.

        Returns:
            The record, and whether it was there already.
        """
        found = self._steps.get((kind, *key))
        if found is not None:
            self._set_clock(float(found[1]["body"]["clock"]))
            return found[1], True
        body = take()
        record = self.append(kind, {**body, **dict(zip(KEYS[kind], key, strict=True))})
        self._steps[kind, *key] = (len(self.recorded) + self.appended, record)
        return record, False

    def share(self, kind: str, tasks: Sequence[Task]) -> None:
        """See that the first of these steps is recorded, by whoever; alone there is nobody to share with."""

    def alone(self, name: str, work: Callable[[], T]) -> T:
        """Do what one process of a campaign has to do by itself."""
        return work()

    def agree(self, name: str, value: Any) -> Any:
        """Settle a JSON value with the other processes: the first one given under a name stays, and is returned."""
        return value

    def agreed(self, name: str) -> Any:
        """The value that another process has settled under this name, or None."""
        return None

    def mine(self, record: Record) -> bool:
        """Whether a record is of this process; alone those of earlier runs count as such."""
        return True

    def keep_studies(self, space: Space) -> None:
        """Keep the buckets' studies where others read them; alone the records are all there is."""

    def close(self) -> None:
        """Let go of what is held for the other processes."""

    def append(self, kind: str, body: dict[str, Any]) -> Record:
        """Append a record; `epoch` and `clock`, and the policy of what was measured, are added to its body."""
        whole = self._whole(kind, body)
        begin = perf_counter()
        record = self._journal.append(kind, whole)
        self._append_seconds = perf_counter() - begin
        self.appended += 1
        return record

    def _whole(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        """A body as it is recorded."""
        policy = {"policy": self._bench.environment.get("policy")} if kind in MEASURED else {}
        return {**body, **policy, "epoch": self.epoch, "clock": self.clock()}

    def _set_clock(self, seconds: float) -> None:
        """Make `clock` say what the record says: a simulated clock is moved, a real one counted from elsewhere."""
        if self._bench.simulated:
            self._bench.advance(seconds - self.clock())
        else:
            self._origin = self._bench.now() - seconds
