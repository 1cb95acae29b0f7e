"""Two builds of the kernel on one GPU: each with its own sources, compile processes, cache and device worker.

What the gate expects is emulated by the base's processes, for both. Only the worker of the base holds the GPU's lock.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.bench import CANARIES, Bench, Instance, Outcome, Status, dirt
from mjolnir.tuner.gpu import answers
from mjolnir.tuner.gpu.gpu_bench import GpuBench
from mjolnir.tuner.gpu.pool import CompilePool
from mjolnir.tuner.gpu.protocol import ChildError
from mjolnir.tuner.gpu.supervisor import Backend, DeviceUnavailable, blame
from mjolnir.tuner.sources import Arm, Comparison, Source
from mjolnir.tuner.workload import Workload

TURN = 2
"""Rounds of one turn: the second begins with what the first ended with, the arm or the empty chain."""


class Build(GpuBench):
    """One of the builds: a bench whose rounds can be taken by turns with another's."""

    _process: tuple[str, int] | None = None

    @property
    def pool(self) -> CompilePool:
        """Its compile processes."""
        return self._pool

    def check(self, settings: Sequence[Setting]) -> Outcome:
        """Build settings, one for each point, and gate them there."""
        begin = time.perf_counter()
        for setting in dict.fromkeys(settings):
            self.submit(setting)
        builds = []
        for setting in dict.fromkeys(settings):
            build, refusal = self._parts.build(setting)
            if refusal is not None:
                return answers.refused(build, refusal, time.perf_counter() - begin)
            assert build is not None
            builds.append(build)
        waited, begin = time.perf_counter() - begin, time.perf_counter()
        try:
            answer = self._ask_ready(settings, 0)
        except ChildError as error:
            return answers.failed(error, builds[0], (), waited, time.perf_counter() - begin)
        phases = {"gate": time.perf_counter() - begin}
        return answers.answered({**answer, "phases": phases}, builds[0], (), waited)

    def ready(self, settings: Sequence[Setting], process: int, number: int, seed: int) -> Instance:
        """Make the arms of an instance ready in the process of that index, whose KV comes from `seed`."""
        self._process = self._name, process
        self._worker.begin(self._problem, self._process, seed)
        return answers.instance(self._ask_ready(settings, number, self._process), self._worker.opening)

    def _ask_ready(
        self, settings: Sequence[Setting], number: int, process: tuple[str, int] | None = None
    ) -> dict[str, Any]:
        values = {"op": "ready", "number": number, "settings": [setting.as_dict() for setting in settings]}
        return self._ask(values, list(dict.fromkeys(settings)), process=process)

    def turn(self, point: int, rounds: int) -> dict[str, Any]:
        """Time what is ready at a point.

        Raises:
            ChildError: the worker failed.
        """
        request = {"op": "turn", "point": point, "rounds": rounds}
        return self._worker.ask(self._problem, request, process=self._process)


@dataclass(frozen=True, slots=True)
class Tree:
    """The sources of a build: a folder that holds them as the package `mjolnir`, and the cache of what is compiled."""

    folder: Path
    cache: Path


class GpuSourceBench:
    """Implements `mjolnir.tuner.sources.SourceBench` on one GPU.

    Args:
        geometry, placement, workload: the problem.
        base, change: the sources.
        backend: what the workers run on.
        options: further options of `GpuBench`, for both.

    Raises:
        DeviceUnavailable: as for `GpuBench`; or a worker does not run the sources that it should.
    """

    canaries = CANARIES

    def __init__(
        self,
        geometry: Geometry,
        placement: Placement,
        workload: Workload,
        base: Tree,
        change: Tree,
        backend: Backend,
        **options: Any,
    ) -> None:
        self.geometry, self.placement, self.workload = geometry, placement, workload
        self._trees = {Source.BASE: base, Source.CHANGE: change, Source.TWIN: base}
        self._backend, self._options = backend, options
        self._seeds: dict[int, int] = {}
        self._open = ExitStack()
        with ExitStack() as opening:
            opening.callback(self._open.close)
            self._base = self._build(Source.BASE)
            self._change = self._build(Source.CHANGE, judge=self._base.pool)
            opening.pop_all()

    def _build(self, source: Source, **options: Any) -> Build:
        tree = self._trees[source]
        backend = replace(self._backend, tree=tree.folder, locks=source is Source.BASE)
        shared = {**self._options, **options, "folder": tree.cache, "backend": backend}
        build = Build(self.geometry, self.placement, self.workload, **shared)
        self._open.callback(build.close)
        if build.kernel.resolve() != (tree.folder / "mjolnir" / "kernel").resolve():
            raise DeviceUnavailable(f"the worker of the {source} runs the kernel of {build.kernel}, not its own")
        return build

    @cached_property
    def _twin(self) -> Build:
        """The base in a second process; it shares the base's compile processes and binaries."""
        return self._build(Source.TWIN, pool=self._base.pool)

    @property
    def device(self) -> Device:
        """The device."""
        return self._base.device

    @property
    def environment(self) -> Mapping[str, Any]:
        """See `Bench.environment`."""
        return self._base.environment

    def now(self) -> float:
        """The monotonic clock."""
        return time.monotonic()

    def canary(self, fault: str) -> Outcome:
        """See `SourceBench.canary`."""
        return self._base.measure(0, Setting(), fault)

    def check(self, arm: Arm) -> Outcome:
        """See `SourceBench.check`."""
        return self._of(arm).check(arm.settings)

    def side(self, source: Source) -> Bench:
        """See `SourceBench.side`."""
        return self._base if source is Source.BASE else self._change

    def compare(self, comparison: Comparison) -> Instance:
        """See `SourceBench.compare`."""
        builds = [self._of(arm) for arm in comparison.arms]
        # The two get equal contents and pages, so that nothing but the kernels tells them apart.
        seed = self._seeds.setdefault(comparison.process, secrets.randbits(48))
        made: list[Mapping[str, Any]] = []
        for build, arm in zip(builds, comparison.arms, strict=True):
            try:
                instance = build.ready(arm.settings, comparison.process, comparison.number, seed)
            except ChildError as error:
                return _failed(arm, *blame(error), made)
            made.append(instance.correctness)
            if instance.status is not Status.MEASURED:
                return _failed(arm, instance.status, instance.reason, made)
        return self._in_turns(builds, comparison, made)

    def _in_turns(self, builds: Sequence[Build], comparison: Comparison, made: list[Mapping[str, Any]]) -> Instance:
        """The rounds of all points; who begins a pair of turns changes from pair to pair."""
        samples: list[list[list[int]]] = []
        windows: list[Mapping[str, Any]] = []
        for point in range(len(self.workload.points)):
            samples.append([[], []])
            for pair in range(max(1, comparison.rounds // TURN)):
                for place in (0, 1) if pair % 2 == 0 else (1, 0):
                    try:
                        answer = builds[place].turn(point, TURN)
                    except ChildError as error:
                        return _failed(comparison.arms[place], *blame(error), made)
                    if answer["status"] != Status.MEASURED:
                        return _failed(comparison.arms[place], Status(answer["status"]), answer["reason"], made)
                    samples[point][place] += answer["samples"]
                    windows.append(answer["window"])
        dirty = dirt([_Seen(window) for window in windows])
        status, reason = (Status.DIRTY, f"the window was dirty: {dirty}") if dirty else (Status.MEASURED, "")
        taken = tuple(tuple(tuple(arm) for arm in point) for point in samples)
        window = {"before": windows[0]["before"], "after": windows[-1]["after"], "dirty": dirty}
        return Instance(status, reason, taken, {"arms": made}, window)

    def _of(self, arm: Arm) -> Build:
        builds: Mapping[Source, Callable[[], Build]] = {
            Source.BASE: lambda: self._base,
            Source.CHANGE: lambda: self._change,
            Source.TWIN: lambda: self._twin,
        }
        return builds[arm.source]()

    def close(self) -> None:
        """End all processes. Idempotent."""
        self._open.close()


@dataclass(frozen=True, slots=True)
class _Seen:
    window: Mapping[str, Any]


def _failed(arm: Arm, status: Status, reason: str, made: Sequence[Mapping[str, Any]]) -> Instance:
    """Only what the change does is the change's fault."""
    if arm.source is not Source.CHANGE and status is not Status.DIRTY:
        status = Status.INFRASTRUCTURE
    return Instance(status, f"the {arm.source}: {reason}", correctness={"arms": list(made)})
