"""Work for several devices: one thread each, which takes what is next for it or for any.

With a trial a device is told of the one that it does after it, if there is one and no other device is free for it.

A trial whose binary a device has had costs it less: graphs and small cases are there already. So among the first trials
that wait a device takes such a one before the oldest.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from typing import Any, TypeVar

from mjolnir.tuner.bench import Bench, BenchFailure, Instance, Outcome, Status
from mjolnir.tuner.session import MOST_FAILURES

T = TypeVar("T")

MOST_ASKED = 2
"""How many devices a trial is asked of, should it be lost with its worker."""

AT_HAND = 4
"""Trials, oldest first, among which a device looks for one whose binary it has had."""

MOST_PASSED = 2
"""How often a trial may be passed over for a younger one: records keep their order, and so wait for it."""

LOSES_WORKER = (Status.INFRASTRUCTURE, Status.HUNG, Status.CRASHED)
"""Ways to end after which a device has another process, which has had no binary."""

JOIN_SECONDS = 30.0
"""How long a thread may take to end once its bench is closed."""


@dataclass(slots=True)
class Member:
    """One device.

    Attributes:
        name: of the device.
        bench: measures on it; used by its thread alone, but for `close`.
        aside: why it gets no more work; empty while it does.
        failures: failures of its own in a row.
        next: what it was told of already, and does next.
        had: the binaries of the trials that it has taken.
    """

    name: str
    bench: Bench
    aside: str = ""
    failures: int = 0
    next: Task | None = None
    had: set[Hashable] = field(default_factory=set)


@dataclass(slots=True)
class Task:
    """Something to do on a device.

    Attributes:
        work: what.
        future: what comes of it.
        member: the device that it is for; None for any.
        ahead: announces it to the device that will do it next.
        binary: of a trial, what settings that share one binary have in common; None of all else.
        lost: the devices that lost it, and how.
        passed: how often it was passed over for a younger one.
    """

    work: Callable[[Bench], Any]
    future: Future[Any]
    member: Member | None = None
    ahead: Callable[[Bench], None] | None = None
    binary: Hashable = None
    lost: list[dict[str, str]] = field(default_factory=list)
    passed: int = 0

    def suits(self, member: Member) -> bool:
        """Whether this device may do it."""
        if self.member is not None:
            return self.member is member
        return all(entry["device"] != member.name for entry in self.lost)


class Dealer:
    """Deals tasks to devices, oldest first but for trials whose binary a device has had.

    Args:
        benches: by name of the device.
    """

    def __init__(self, benches: Mapping[str, Bench]) -> None:
        self.members = [Member(name, bench) for name, bench in benches.items()]
        self._tasks: deque[Task] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._free = 0
        self._threads = [
            threading.Thread(target=self._serve, args=(member,), name=f"mjolnir-{member.name}", daemon=True)
            for member in self.members
        ]
        for thread in self._threads:
            thread.start()

    @property
    def at_work(self) -> list[Member]:
        """The devices that are not set aside."""
        return [member for member in self.members if not member.aside]

    def deal(
        self, work: Callable[[Bench], Outcome], ahead: Callable[[Bench], None], binary: Hashable = None
    ) -> Future[Outcome]:
        """Have any device do a trial; asked again of another where the device fails, and told so in its facts.

        Args:
            work: measures it.
            ahead: announces it to the device that will.
            binary: equal for trials that share one.
        """
        return self._add(Task(work, Future(), ahead=ahead, binary=binary))

    def ask(self, member: Member, work: Callable[[Bench], T]) -> Future[T]:
        """Have one device do something, as soon as it is free."""
        return self._add(Task(work, Future(), member))

    def _add(self, task: Task) -> Future[Any]:
        with self._changed:
            if self._closed:
                task.future.cancel()
                return task.future
            self._tasks.append(task)
            self._abandon()
            self._changed.notify_all()
        return task.future

    def close(self) -> None:
        """End threads and benches; what has not begun is cancelled. Idempotent."""
        with self._changed:
            self._closed = True
            for task in self._tasks:
                task.future.cancel()
            self._tasks.clear()
            self._changed.notify_all()
        for member in self.members:
            member.bench.close()
        for thread in self._threads:
            thread.join(JOIN_SECONDS)

    def _serve(self, member: Member) -> None:
        while (task := self._next(member)) is not None:
            try:
                if task.ahead is not None:
                    self._look_ahead(member)
                result = task.work(member.bench)
            except BenchFailure as error:
                self._count(member, error.status, str(error))
                task.future.set_exception(error)
            except BaseException as error:
                task.future.set_exception(error)
            else:
                self._done(member, task, result)

    def _next(self, member: Member) -> Task | None:
        """The next task for this device, waited for; None when there will be none."""
        with self._changed:
            told, member.next = member.next, None
            if told is not None and not self._closed:
                return told
            if told is not None:  # it counts as begun, so that it cannot be cancelled any more
                told.future.set_exception(CancelledError())
            while not self._closed and not member.aside:
                task = self._take(member)
                if task is not None:
                    return task
                self._free += 1
                self._changed.wait()
                self._free -= 1
            return None

    def _take(self, member: Member, ahead: bool = False) -> Task | None:
        """Take the next task for this device from the list; `ahead` only if it can be announced."""
        while (task := self._choose(member)) is not None:
            if ahead and (task.ahead is None or task.lost):
                return None
            for older in takewhile(lambda other: other is not task, self._suiting(member)):
                older.passed += 1
            self._tasks.remove(task)
            if task.future.running() or task.future.set_running_or_notify_cancel():
                member.had.add(task.binary)
                return task
        return None

    def _choose(self, member: Member) -> Task | None:
        """The oldest task that suits this device, or a trial at hand whose binary it has had; nothing passes a task
        that is no trial, nor one that was passed often enough."""
        for task in islice(self._suiting(member), AT_HAND):
            if task.binary is not None and task.binary in member.had:
                return task
            if task.binary is None or task.passed >= MOST_PASSED:
                break
        return next(self._suiting(member), None)

    def _suiting(self, member: Member) -> Iterator[Task]:
        return (task for task in self._tasks if task.suits(member))

    def _look_ahead(self, member: Member) -> None:
        """Keep the trial that comes next for this device, and tell it, while all others have something to do."""
        with self._changed:
            if self._free or self._closed:
                return
            told = member.next = self._take(member, ahead=True)
        if told is None or told.ahead is None:
            return
        try:
            told.ahead(member.bench)
        except BaseException as error:  # the trial before it is measured all the same
            member.next = None
            told.future.set_exception(error)

    def _done(self, member: Member, task: Task, result: Any) -> None:
        if isinstance(result, Outcome | Instance):
            self._count(member, result.status, result.reason)
        if not isinstance(result, Outcome) or task.member is not None:
            task.future.set_result(result)
            return
        if result.status is Status.INFRASTRUCTURE:
            task.lost.append({"device": member.name, "reason": result.reason, "aside": member.aside})
            with self._changed:
                again = len(task.lost) < MOST_ASKED and not self._closed
                if again and self._devices_for(task):
                    self._tasks.appendleft(task)
                    self._changed.notify_all()
                    return
        facts = {**result.facts, "device": member.name, **({"lost": task.lost} if task.lost else {})}
        task.future.set_result(replace(result, facts=facts))

    def _count(self, member: Member, status: Status, reason: str) -> None:
        """Count a device's failures in a row, and set it aside after too many."""
        with self._changed:
            member.failures = member.failures + 1 if status is Status.INFRASTRUCTURE else 0
            if status in LOSES_WORKER:
                member.had.clear()
            if member.failures >= MOST_FAILURES:
                member.aside = reason or "it failed"
                if member.next is not None:  # it was told of this, and will not do it
                    self._tasks.appendleft(member.next)
                    member.next = None
                self._abandon()
                self._changed.notify_all()

    def _abandon(self) -> None:
        """Fail the tasks that no device is left for."""
        for task in [t for t in self._tasks if not self._devices_for(t)]:
            self._tasks.remove(task)
            if not task.future.running() and not task.future.set_running_or_notify_cancel():
                continue
            if task.member is None:
                facts = {"lost": task.lost} if task.lost else {}
                task.future.set_result(Outcome(Status.INFRASTRUCTURE, self.aside(), facts=facts))
            else:
                task.future.set_exception(BenchFailure(self.aside()))

    def _devices_for(self, task: Task) -> list[Member]:
        return [member for member in self.members if task.suits(member) and not member.aside]

    def aside(self) -> str:
        """Which devices were set aside, and why."""
        found = [f"{member.name}: {member.aside}" for member in self.members if member.aside]
        return f"set aside after {MOST_FAILURES} failures in a row: {'; '.join(found)}"
