"""A bench of two builds without a device: what a build does is read from its sources.

A line in `kernel/engines/warp.py` says it: `# speed 0.95`, its time over what it would be; `# fate crashed`, how it
ends when it is checked, with any status of a trial; `# late hung`, how it ends when it is timed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.research.benches import Problem
from mjolnir.research.checkout import Checkout
from mjolnir.research.source.change import Change
from mjolnir.tuner import synthetic
from mjolnir.tuner.bench import Bench, Instance, Outcome, Status
from mjolnir.tuner.sources import Arm, Comparison, Source
from mjolnir.tuner.workload import Workload
from tests.fakes.bench import ScriptedBench

PLACE = "kernel/engines/warp.py"
VALUES = {"kv_stages": (2, 4), "pdl": (0, 1)}


class FakeSources:
    """`SourceBench` of two texts.

    Attributes:
        compared: the comparisons that it was asked for.
        canaries_sent: the faults that it was sent.
    """

    canaries = ("mask", "skip")

    def __init__(self, problem: Problem, base: str, change: str, blind: bool = False) -> None:
        self._texts = {Source.BASE: base, Source.CHANGE: change, Source.TWIN: base}
        recording = synthetic.make(values=VALUES)
        self._sides = {source: ScriptedBench(recording, simulated=False) for source in Source}
        self.problem, self._blind = problem, blind
        self.compared: list[Comparison] = []
        self.canaries_sent: list[str] = []
        self.closed = False
        self._clock = 0.0

    @property
    def device(self) -> Device:
        return self._sides[Source.BASE].device

    @property
    def geometry(self) -> Geometry:
        return self._sides[Source.BASE].geometry

    @property
    def placement(self) -> Placement:
        return self._sides[Source.BASE].placement

    @property
    def workload(self) -> Workload:
        return self._sides[Source.BASE].workload

    @property
    def environment(self) -> Mapping[str, Any]:
        return self._sides[Source.BASE].environment

    def now(self) -> float:
        self._clock += 1.0
        return self._clock

    def canary(self, fault: str) -> Outcome:
        self.canaries_sent.append(fault)
        return Outcome(Status.MEASURED if self._blind else Status.INCORRECT, "as planted")

    def check(self, arm: Arm) -> Outcome:
        fate = self._said(arm.source, "fate")
        if fate:
            return Outcome(Status(fate), "as its source says", log="the end of the log")
        return Outcome(Status.MEASURED, binary="b" * 32, phases={"compile": 0.5, "gate": 0.25})

    def compare(self, comparison: Comparison) -> Instance:
        self.compared.append(comparison)
        late = self._said(Source.CHANGE, "late")
        if late and comparison.arms[0].source is Source.CHANGE:
            return Instance(Status(late), "the change: as its source says")
        draw = random.Random(len(self.compared))
        speeds = [float(self._said(arm.source, "speed") or 1) for arm in comparison.arms]

        def rounds(speed: float, stray: float) -> tuple[int, ...]:
            return tuple(round(1e6 * speed * stray * draw.gauss(1, 1e-4)) for _ in range(comparison.rounds))

        samples = tuple(tuple(rounds(speed, draw.gauss(1, 0.001)) for speed in speeds) for _ in self.workload.points)
        return Instance(Status.MEASURED, samples=samples, window={"dirty": ""})

    def side(self, source: Source) -> Bench:
        return self._sides[source]

    def close(self) -> None:
        self.closed = True

    def _said(self, source: Source, word: str) -> str:
        found = re.search(rf"# {word} (\S+)", self._texts[source])
        return found[1] if found else ""


class FakeOpener:
    """`Opener` of `FakeSources`; keeps what it opened."""

    def __init__(self, blind: bool = False) -> None:
        self.benches: list[FakeSources] = []
        self.blind = blind

    def require(self, device: str) -> None:
        pass

    @contextmanager
    def open(self, device: str, problem: Problem, checkout: Checkout, change: Change) -> Iterator[FakeSources]:
        base, text = (checkout.read(PLACE, commit).decode() for commit in (change.base, change.commit))
        self.benches.append(FakeSources(problem, base, text, self.blind))
        yield self.benches[-1]
        self.benches[-1].close()
