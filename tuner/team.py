"""Several processes on one campaign: each walks through the same steps, and each step is taken by one of them.

Every process runs the straight code of a campaign over a `SharedTape`. A step that any of them has recorded is read;
any other is taken by who gets its lease, while the others take what else is free or wait. Proposals are settled once
for all, and ask n sees the trials below n - depth whoever measured them: so three processes come to the trials of one.
Canaries are no shared steps: each process proves its own gate, and one that fails voids the campaign for all.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from mjolnir.tuner.bench import Bench, Status
from mjolnir.tuner.journal import Journal, Record
from mjolnir.tuner.leases import Heartbeat, Lease, LeaseLost, Leases
from mjolnir.tuner.session import Halt
from mjolnir.tuner.space import Space
from mjolnir.tuner.studies import Studies
from mjolnir.tuner.tape import KEYS, Tape, Task

OWN = ("canary",)
"""Steps that each process takes for itself."""

POLL_SECONDS = (0.01, 0.5)
"""First and longest pause between two looks at what the others have done."""

T = TypeVar("T")


class Team(Journal, Protocol):
    """What the processes of a shared campaign have in common; its records are those of all of them."""

    @property
    def tag(self) -> str:
        """The campaign's tag."""

    @property
    def leases(self) -> Leases:
        """The leases of the campaign's steps."""

    @property
    def writer(self) -> str:
        """The writer of the records that this process appends."""

    def news(self) -> Sequence[Record]:
        """The records, own ones too, that were added since `history` or this was asked last; in one order for all."""

    def agree(self, name: str, value: Any) -> Any:
        """Settle a JSON value for all: the first one given under a name stays, and is returned."""

    def agreed(self, name: str) -> Any:
        """The value that was settled under a name, or None."""

    def studies(self) -> Any:
        """The storage of Optuna's studies, a `BaseStorage`; None where there is none."""


class SharedTape(Tape):
    """The steps of an epoch that several processes take.

    Args:
        team: records and leases.
        bench: of this process.
        stop: asked while waiting for others.
    """

    shared = True

    def __init__(self, team: Team, bench: Bench, stop: Callable[[], bool]) -> None:
        super().__init__(team, bench)
        self._team = team
        self._stop = stop
        self._heartbeat = Heartbeat(team.leases)
        self._leased: deque[tuple[Task, Lease]] = deque()
        # One trial for each device, and one that compiles meanwhile.
        self._devices = len(bench.environment.get("devices", ())) or 1
        self._sole: Lease | None = None
        self._studies: Studies | None = None
        self._count = len(self.recorded)
        self._steps = {step: found for step, found in self._steps.items() if step[0] not in OWN}
        self._faults = [record for record in self.recorded if self._passed_canary(record)]

    def step(self, kind: str, key: tuple[Any, ...], take: Callable[[], dict[str, Any]]) -> tuple[Record, bool]:
        """See `Tape`; a step that another process has in hand is waited for.

        Raises:
            Halt: somebody asked to stop meanwhile, or a wrong kernel passed the gate of another process.
            LeaseLost: what this process was to do alone was taken over by another.
        """
        if kind in OWN:
            return super().step(kind, key, take)
        self._refresh()
        if self._sole is None:
            self.share(kind, [Task(key, take)])
        elif not self.has(kind, *key):
            self._take(kind, Task(key, take), self._sole, keep=True)
        record = self._steps[kind, *key][1]
        self._set_clock(float(record["body"]["clock"]))
        if kind == "trial" and self._studies is not None:
            self._studies.tell(record["body"])
        return record, self.old(kind, *key)

    def share(self, kind: str, tasks: Sequence[Task]) -> None:
        """See `Tape`."""
        pause, longest = POLL_SECONDS
        while not self.has(kind, *tasks[0].key):
            if self._stop():
                raise Halt("interrupted")
            found = self._next(kind, tasks)
            if found is not None:
                self._take(kind, *found)
                pause = POLL_SECONDS[0]
            elif not self._refresh():
                time.sleep(pause)
                pause = min(2 * pause, longest)

    def alone(self, name: str, work: Callable[[], T]) -> T:
        """See `Tape`; begun again, over what is recorded by then, when the lease was lost."""
        self._release()
        while True:
            self._sole = self._wait_for(self._name(name, ()))
            try:
                self._refresh()
                return work()
            except LeaseLost:
                continue
            finally:
                self._give_back(self._sole)
                self._sole = None

    def agree(self, name: str, value: Any) -> Any:
        """See `Tape`."""
        return self._team.agree(self._name(name, ()), value)

    def agreed(self, name: str) -> Any:
        """See `Tape`."""
        return self._team.agreed(self._name(name, ()))

    def mine(self, record: Record) -> bool:
        """See `Tape`."""
        return bool(record["writer"] == self._team.writer)

    def of_epoch(self, kind: str) -> list[Record]:
        """See `Tape`; in the order of records, whenever each of them was heard of here."""
        return sorted(super().of_epoch(kind), key=lambda record: (record["lamport"], record["writer"], record["seq"]))

    def keep_studies(self, space: Space) -> None:
        """See `Tape`."""
        self._studies = Studies(self._team, space, self._bench.workload.buckets, self.epoch)

    def close(self) -> None:
        """Give back what is held, and finish the studies. Idempotent."""
        self._heartbeat.stop()
        self._leased.clear()
        if self._studies is not None:
            self._studies.close()

    def _name(self, kind: str, key: tuple[Any, ...]) -> str:
        """The name of a lease or of a settled value; each epoch has its own."""
        return "/".join([self.epoch, kind, *(str(part) for part in key)])

    def _next(self, kind: str, tasks: Sequence[Task]) -> tuple[Task, Lease] | None:
        """What to do now, leased; its successor is leased with it, so that it can compile meanwhile."""
        names = {self._name(kind, task.key): task for task in tasks if not self.has(kind, *task.key)}
        held = {lease.name for _, lease in self._leased}
        while len(self._leased) <= self._devices:
            lease = self._team.leases.take([name for name in names if name not in held])
            if lease is None:
                break
            self._heartbeat.hold(lease)
            held.add(lease.name)
            self._leased.append((names[lease.name], lease))
            names[lease.name].prepare()
        return self._leased.popleft() if self._leased else None

    def _take(self, kind: str, task: Task, lease: Lease, *, keep: bool = False) -> None:
        """Do a step and record it under its lease; a late answer is kept as a note that counts for nothing."""
        body = {**task.take(), **dict(zip(KEYS[kind], task.key, strict=True))}
        whole = self._whole(kind, body)
        begin = time.perf_counter()
        try:
            record = self._team.leases.finish(lease, kind, whole, keep=keep)
        except LeaseLost as lost:
            self._heartbeat.drop(lease)
            self.append(
                "note", {"text": f"a late answer, which does not count: {lost}", "about": lease.name, "late": body}
            )
            if keep:
                raise
            return
        self._append_seconds = time.perf_counter() - begin
        self.appended += 1
        self._absorb(record)
        if not keep:
            self._heartbeat.drop(lease)

    def _wait_for(self, name: str) -> Lease:
        """Wait until the lease is free and take it."""
        while (lease := self._team.leases.take([name])) is None:
            self._refresh()
            if self._stop():
                raise Halt("interrupted")
            time.sleep(POLL_SECONDS[1] / 5)
        self._heartbeat.hold(lease)
        return lease

    def _refresh(self) -> bool:
        """Hear what was recorded meanwhile; whether there was anything.

        Raises:
            Halt: a wrong kernel passed the gate of another process.
        """
        news = self._team.news()
        for record in news:
            self._absorb(record)
        if self._faults:
            raise Halt("canary")
        return bool(news)

    def _absorb(self, record: Record) -> None:
        kind, body = record["kind"], record["body"]
        self._count += 1
        if self._passed_canary(record) and not self.mine(record):
            self._faults.append(record)
        if kind in KEYS and kind not in OWN and body.get("epoch", "") == self.epoch:
            self._steps.setdefault((kind, *(body[name] for name in KEYS[kind])), (self._count, record))

    def _passed_canary(self, record: Record) -> bool:
        """Whether this is a canary of the epoch that a gate let through."""
        body = record["body"]
        inconclusive = (Status.INFRASTRUCTURE, Status.DIRTY)
        return (
            record["kind"] == "canary"
            and body.get("epoch", "") == self.epoch
            and not body["rejected"]
            and body["status"] not in inconclusive
        )

    def _release(self) -> None:
        """Give back the trials that were leased and not begun."""
        while self._leased:
            self._give_back(self._leased.popleft()[1])

    def _give_back(self, lease: Lease) -> None:
        self._heartbeat.drop(lease)
        self._team.leases.abandon(lease)

    def _set_clock(self, seconds: float) -> None:
        """The campaign's clock never goes back: what others did took place beside what was done here."""
        if seconds > self.clock():
            super()._set_clock(seconds)
