"""Several devices as one bench: whole trials are dealt to them, and the campaign goes on as on one.

Asks run ahead of the trial that is recorded next (`Options.depth`). The search announces each of them by `begin`, and a
device that is free takes it up; `measure` then waits for the trial of its number. So records keep their order, and
follow from outcomes alone. Ratios can be compared across devices since each is taken against the default on the same
device in the same window; A/A comparisons are dealt out in turn, canaries go through the gate of every device, and the
instances of one process stay on one device.

A trial that is lost with its worker is asked again of another device, once, and says so. A device that fails
`MOST_FAILURES` times in a row is set aside: it gets nothing any more, and nothing is done to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.bench import REJECTED, Bench, BenchFailure, Instance, InstanceRequest, Outcome, Race, Status, Timing
from mjolnir.tuner.dealer import Dealer, Member
from mjolnir.tuner.workload import Workload


class FleetBench:
    """Implements `mjolnir.tuner.bench.Bench` over benches of equal devices.

    Args:
        benches: by name of the device, two at least; this bench closes them.
        close: what is to be closed after them.

    Raises:
        ValueError: they are of different devices, problems or versions.
    """

    simulated = False

    def __init__(self, benches: Mapping[str, Bench], close: Callable[[], None] = lambda: None) -> None:
        self._first = next(iter(benches.values()))
        for name, bench in benches.items():
            for what in ("device", "geometry", "placement", "workload"):
                one, other = getattr(self._first, what), getattr(bench, what)
                if one != other:
                    raise ValueError(f"{name} differs from the other devices in its {what}: {other} instead of {one}")
        self.device: Device = self._first.device
        self.geometry: Geometry = self._first.geometry
        self.placement: Placement = self._first.placement
        self.workload: Workload = self._first.workload
        self.canaries: Sequence[str] = self._first.canaries
        self._close = close
        self._dealer = Dealer(benches)
        self._begun: dict[int, tuple[Setting, Future[Outcome]]] = {}

    @property
    def environment(self) -> Mapping[str, Any]:
        """That of the first device, with the names of all."""
        return {**self._first.environment, "devices": [member.name for member in self._dealer.members]}

    def settings(self) -> Sequence[Setting] | None:
        """See `Bench`."""
        return self._first.settings()

    def now(self) -> float:
        """See `Bench`."""
        return self._first.now()

    def advance(self, seconds: float) -> None:
        """Does nothing: this clock is real."""

    def submit(self, setting: Setting) -> None:
        """Start compiling; the devices share what is compiled."""
        self._first.submit(setting)

    def begin(self, trial: int, setting: Setting) -> None:
        """Have the trial measured by the next device that is free."""
        if trial not in self._begun:
            self._begun[trial] = setting, self._dealer.deal(lambda bench: bench.measure(trial, setting))

    def measure(self, trial: int, setting: Setting, fault: str = "none", race: Race | None = None) -> Outcome:
        """See `Bench`; facts say which device it was, and which ones lost the trial before.

        Nothing is raced: a trial has begun before the leads are known that it would race against.
        """
        if fault != "none":
            return self._canary(trial, setting, fault)
        self.begin(trial, setting)
        begun, future = self._begun.pop(trial)
        if begun != setting:
            raise ValueError(f"trial {trial} was announced with ({begun}), and is asked for with ({setting})")
        return future.result()

    def _canary(self, trial: int, setting: Setting, fault: str) -> Outcome:
        """Send a canary through the gate of each device; the outcome is the worst of those that are not set aside."""
        sent = [
            (member, self._dealer.ask(member, lambda bench: bench.measure(trial, setting, fault)))
            for member in self._dealer.members
            if not member.aside
        ]
        made = [(member, _outcome(future)) for member, future in sent]
        kept = [(member, outcome) for member, outcome in made if not member.aside]
        if not kept:
            return Outcome(Status.INFRASTRUCTURE, self._dealer.aside())
        worst = max((outcome for _, outcome in kept), key=lambda outcome: _severity(outcome.status))
        return replace(worst, correctness={"devices": {m.name: dict(outcome.correctness) for m, outcome in kept}})

    def noise(self, number: int) -> tuple[Timing, ...]:
        """See `Bench`; on the devices in turn."""
        member = self._in_turn(number)
        timings = self._dealer.ask(member, lambda bench: bench.noise(number)).result()
        return tuple(replace(timing, window={**timing.window, "device": member.name}) for timing in timings)

    def instance(self, request: InstanceRequest) -> Instance:
        """See `Bench`; the processes on the devices in turn."""
        try:
            member = self._in_turn(request.process)
            instance = self._dealer.ask(member, lambda bench: bench.instance(request)).result()
        except BenchFailure as error:
            return Instance(error.status, str(error))
        return replace(instance, window={**instance.window, "device": member.name})

    def close(self) -> None:
        """Close all benches. Idempotent."""
        self._dealer.close()
        self._close()

    def _in_turn(self, number: int) -> Member:
        """The device whose turn it is; trials that were announced and not begun are taken back: the search is over.

        Raises:
            BenchFailure: all are set aside.
        """
        for _, future in self._begun.values():
            future.cancel()
        self._begun.clear()
        members = [member for member in self._dealer.members if not member.aside]
        if not members:
            raise BenchFailure(self._dealer.aside())
        return members[number % len(members)]


def _outcome(future: Future[Outcome]) -> Outcome:
    try:
        return future.result()
    except BenchFailure as error:
        return Outcome(error.status, str(error))


def _severity(status: Status) -> int:
    """A canary that passed is the worst; then one that could not be sent."""
    if status in REJECTED:
        return 0
    return 1 if status in (Status.INFRASTRUCTURE, Status.DIRTY) else 2
