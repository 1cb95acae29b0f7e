"""The seam of a source experiment: two builds of the kernel, that of a base and that of a change, timed in turns.

There are two implementations: `tuner.gpu.source_bench` on a GPU, and a fake for tests. Whatever measures, the gate, the
emulator and the clock are those of the base, for both builds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.bench import Bench, Instance, Outcome
from mjolnir.tuner.workload import Workload


class Source(StrEnum):
    """Whose sources a build is of; the twin is the base once more, in a process of its own, for the noise."""

    BASE = "base"
    CHANGE = "change"
    TWIN = "twin"


@dataclass(frozen=True, slots=True)
class Arm:
    """One side of a comparison: a build, and the knobs that it has at each point of the workload, resolved."""

    source: Source
    settings: tuple[Setting, ...]

    def as_dict(self, workload: Workload) -> dict[str, Any]:
        """JSON form; the settings by bucket, as all points of one bucket have the same."""
        knobs = {str(bucket): self.settings[workload.of_bucket(bucket)[0]].as_dict() for bucket in workload.buckets}
        return {"source": str(self.source), "knobs": knobs}


Pair = tuple[Arm, Arm]
"""The candidate and what it is compared with: the change and the base."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One instance of two builds: equal fresh inputs, fresh graphs, rounds taken in turns at every point.

    Attributes:
        process: index of the pair of fresh processes that take it; instances of one index share them.
        number: index of the instance, which seeds its inputs.
        arms: the candidate and what it is compared with.
        rounds: rounds per point.
    """

    process: int
    number: int
    arms: Pair
    rounds: int = 10


class SourceBench(Protocol):
    """Two builds of the kernel on one device."""

    @property
    def device(self) -> Device:
        """The device that is measured."""

    @property
    def geometry(self) -> Geometry:
        """The problem."""

    @property
    def placement(self) -> Placement:
        """How the KV caches lie in memory."""

    @property
    def workload(self) -> Workload:
        """The points."""

    @property
    def environment(self) -> Mapping[str, Any]:
        """As `Bench.environment`, of the base."""

    @property
    def canaries(self) -> Sequence[str]:
        """Faults that can be sent through the gate."""

    def now(self) -> float:
        """Seconds on a monotonic clock."""

    def canary(self, fault: str) -> Outcome:
        """Send a planted fault, in a build of the base, through the gate."""

    def check(self, arm: Arm) -> Outcome:
        """Build an arm and send it through the gate at every point, before anything of it is timed. Never raises."""

    def compare(self, comparison: Comparison) -> Instance:
        """Take one instance; `samples[point][arm]` as `Instance` has them. Never raises for what a build does."""

    def side(self, source: Source) -> Bench:
        """One of the builds as a bench of its own, to tune its knobs."""

    def close(self) -> None:
        """End workers and give the device back. Idempotent."""
