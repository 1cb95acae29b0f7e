"""A bench with a script: it measures like a replay, but for the steps that the script makes fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.bench import Instance, InstanceRequest, OneByOne, Outcome, Race, Status, Timing
from mjolnir.tuner.recording import Recording
from mjolnir.tuner.replay import ReplayBench
from mjolnir.tuner.workload import Workload


@dataclass
class Script:
    """What fails, and how; everything else is replayed.

    Attributes:
        trials: outcomes by trial number.
        canaries: outcomes by fault, used up one by one.
        noise: numbers of A/A comparisons that return nothing.
        instances: what instances return, by instance number.
        settings: outcomes by setting, in trials; instances with one of them as an arm end with its status.
    """

    trials: Mapping[int, Outcome] = field(default_factory=dict)
    canaries: dict[str, list[Outcome]] = field(default_factory=dict)
    noise: Sequence[int] = ()
    instances: Mapping[int, Instance] = field(default_factory=dict)
    settings: Mapping[Setting, Outcome] = field(default_factory=dict)


class ScriptedBench(OneByOne):
    """`Bench` over a recording and a script; it remembers what it was asked.

    Attributes:
        measured: trial numbers and settings that it was asked to measure, canaries left out.
        instances: the requests that it got.
        closed: whether it was closed.
    """

    def __init__(
        self, recording: Recording, script: Script | None = None, seed: int = 0, simulated: bool = True
    ) -> None:
        self._inner = ReplayBench(recording, seed)
        self._script = script or Script()
        self._simulated = simulated
        self.measured: list[tuple[int, Setting]] = []
        self.submitted: list[Setting] = []
        self.instances: list[InstanceRequest] = []
        self.closed = False

    @property
    def simulated(self) -> bool:
        return self._simulated

    @property
    def device(self) -> Device:
        return self._inner.device

    @property
    def geometry(self) -> Geometry:
        return self._inner.geometry

    @property
    def placement(self) -> Placement:
        return self._inner.placement

    @property
    def workload(self) -> Workload:
        return self._inner.workload

    @property
    def environment(self) -> Mapping[str, Any]:
        return self._inner.environment

    @property
    def canaries(self) -> Sequence[str]:
        return self._inner.canaries

    def settings(self) -> Sequence[Setting] | None:
        return self._inner.settings()

    def now(self) -> float:
        return self._inner.now()

    def advance(self, seconds: float) -> None:
        if self._simulated:
            self._inner.advance(seconds)

    def submit(self, setting: Setting) -> None:
        self.submitted.append(setting)
        self._inner.submit(setting)

    def measure(self, trial: int, setting: Setting, fault: str = "none", race: Race | None = None) -> Outcome:
        if fault != "none":
            waiting = self._script.canaries.get(fault)
            return waiting.pop(0) if waiting else self._inner.measure(trial, setting, fault)
        self.measured.append((trial, setting))
        outcome = self._inner.measure(trial, setting, race=race)
        scripted = self._script.trials.get(trial) or self._script.settings.get(setting)
        return scripted or outcome

    def noise(self, number: int) -> tuple[Timing, ...]:
        timings = self._inner.noise(number)
        return () if number in self._script.noise else timings

    def instance(self, request: InstanceRequest) -> Instance:
        self.instances.append(request)
        bad = [self._script.settings[arm] for arm in request.arms if arm in self._script.settings]
        if bad:
            return Instance(bad[0].status, bad[0].reason)
        instance = self._inner.instance(request)
        return self._script.instances.get(request.number, instance)

    def close(self) -> None:
        self.closed = True


def failed(status: Status, reason: str = "as scripted") -> Outcome:
    """An outcome without timings."""
    return Outcome(status, reason)
