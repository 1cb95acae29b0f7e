"""Several devices as one bench: work is dealt to them, and the campaign goes on as on one.

What the campaign will ask for is announced by `begin`, `begin_noise` and `begin_instance`; a device that is free takes
it up, and `measure`, `noise` and `instance` then wait for what comes of it. Trials go to any device, asks running ahead
of the one that is recorded next (`Options.depth`); A/A comparisons, and the fresh processes of the finals, go to the
devices in turn, so that all of them are at work. A device may take a trial whose binary it has had before an older one
(see `Dealer`). Records keep their order, and follow from outcomes alone.

Ratios can be compared across devices since each is taken against the default on the same device in the same window.
Canaries go through the gate of every device; the instances of one process stay on one device.

A trial that is lost with its worker is asked again of another device, once, and says so. A device that fails
`MOST_FAILURES` times in a row is set aside: it gets nothing any more, and nothing is done to it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import KNOBS, Setting
from mjolnir.kernel.variant import resolve
from mjolnir.tuner.bench import REJECTED, Bench, BenchFailure, Instance, InstanceRequest, Outcome, Race, Status, Timing
from mjolnir.tuner.dealer import Dealer, Member
from mjolnir.tuner.workload import Workload


class FleetBench:
    """Implements `mjolnir.tuner.bench.Bench` over benches of equal devices.

    Args:
        benches: by name of the device; this bench closes them.
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
        self._noises: dict[int, tuple[Member, Future[tuple[Timing, ...]]]] = {}
        self._instances: dict[int, tuple[Member, Future[Instance]]] = {}

    @property
    def environment(self) -> Mapping[str, Any]:
        """That of the first device, with the names of all."""
        return {**self._first.environment, "devices": [member.name for member in self._dealer.members]}

    @property
    def width(self) -> int:
        """See `Bench`; those that are not set aside."""
        return max(1, len(self._dealer.at_work))

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

    def foresee(self, settings: Iterable[Setting]) -> None:
        """See `Bench`; the devices share what is compiled."""
        self._first.foresee(settings)

    def begin(self, trial: int, setting: Setting, race: Race | None = None) -> None:
        """Have the trial measured by the next device that is free."""
        if trial not in self._begun:
            work = partial(_measure, trial=trial, setting=setting, race=race)
            ahead = partial(_begin, trial=trial, setting=setting, race=race)
            self._begun[trial] = setting, self._dealer.deal(work, ahead, self._binary(setting))

    def _binary(self, setting: Setting) -> Hashable:
        """Equal for settings that share a binary: the knobs that are compiled in, and whether partials are merged."""
        values = resolve(setting, self.geometry, self.device).as_dict()
        return (*(values[knob.name] for knob in KNOBS if knob.baked), setting.max_splits != 1)

    def begun(self, trial: int) -> bool:
        """See `Bench`; a trial that a younger one has passed counts as taken up with it, since records keep order."""
        if any(number > trial and (it.running() or it.done()) for number, (_, it) in self._begun.items()):
            return True
        if trial in self._begun and not self._begun[trial][1].cancel():
            return True
        self._begun.pop(trial, None)
        return False

    def measure(self, trial: int, setting: Setting, fault: str = "none", race: Race | None = None) -> Outcome:
        """See `Bench`; facts say which device it was, and which ones lost the trial before."""
        if fault != "none":
            return self._canary(trial, setting, fault)
        self.begin(trial, setting, race)
        begun, future = self._begun.pop(trial)
        if begun != setting:
            raise ValueError(f"trial {trial} was announced with ({begun}), and is asked for with ({setting})")
        return future.result()

    def _canary(self, trial: int, setting: Setting, fault: str) -> Outcome:
        """Send a canary through the gate of each device; the outcome is the worst of those that are not set aside."""
        sent = [
            (member, self._dealer.ask(member, lambda bench: bench.measure(trial, setting, fault)))
            for member in self._dealer.at_work
        ]
        made = [(member, _outcome(future)) for member, future in sent]
        kept = [(member, outcome) for member, outcome in made if not member.aside]
        if not kept:
            return Outcome(Status.INFRASTRUCTURE, self._dealer.aside())
        worst = max((outcome for _, outcome in kept), key=lambda outcome: _severity(outcome.status))
        if len(self._dealer.members) == 1:
            return worst
        return replace(worst, correctness={"devices": {m.name: dict(outcome.correctness) for m, outcome in kept}})

    def begin_noise(self, number: int) -> None:
        """Have the comparison taken by the device whose turn it is."""
        if number not in self._noises:
            member = self._in_turn(number)
            self._noises[number] = member, self._dealer.ask(member, lambda bench: bench.noise(number))

    def noise(self, number: int) -> tuple[Timing, ...]:
        """See `Bench`; on the devices in turn."""
        self.begin_noise(number)
        member, future = self._noises.pop(number)
        return tuple(replace(timing, window={**timing.window, "device": member.name}) for timing in future.result())

    def begin_instance(self, request: InstanceRequest) -> None:
        """Have the instance taken by the device whose turn its process is."""
        if request.number not in self._instances:
            member = self._in_turn(request.process)
            self._instances[request.number] = member, self._dealer.ask(member, lambda bench: bench.instance(request))

    def instance(self, request: InstanceRequest) -> Instance:
        """See `Bench`; the processes on the devices in turn."""
        self.begin_instance(request)
        member, future = self._instances.pop(request.number)
        try:
            instance = future.result()
        except BenchFailure as error:
            return Instance(error.status, str(error))
        return replace(instance, window={**instance.window, "device": member.name})

    def close(self) -> None:
        """Close all benches. Idempotent."""
        self._dealer.close()
        self._close()

    def _in_turn(self, number: int) -> Member:
        """The device whose turn it is; when all are set aside what it is asked for fails, and says so."""
        members = self._dealer.at_work or self._dealer.members
        return members[number % len(members)]


def _measure(bench: Bench, trial: int, setting: Setting, race: Race | None) -> Outcome:
    return bench.measure(trial, setting, race=race)


def _begin(bench: Bench, trial: int, setting: Setting, race: Race | None) -> None:
    bench.begin(trial, setting, race)


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
