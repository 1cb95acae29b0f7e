"""The bench that measures on a GPU: a compile pool, ahead of a device worker that is replaced when it fails."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mjolnir.kernel.cache import default_folder
from mjolnir.kernel.device import Device
from mjolnir.kernel.engine import engine_for
from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import Variant, infeasible
from mjolnir.tuner.bench import CANARIES, RACED, Instance, InstanceRequest, Outcome, Race, Status, Timing, dirt
from mjolnir.tuner.clean_window import CleanWindow
from mjolnir.tuner.gpu import answers
from mjolnir.tuner.gpu.canaries import baked, stand_in
from mjolnir.tuner.gpu.expectation import Expectation
from mjolnir.tuner.gpu.measure import Policy
from mjolnir.tuner.gpu.plans import plan_digests
from mjolnir.tuner.gpu.pool import COMPILE_SECONDS, Build, CompilePool
from mjolnir.tuner.gpu.protocol import ChildError, Failed
from mjolnir.tuner.gpu.supervisor import LIMITS, Backend, DeviceUnavailable, Supervisor, blame
from mjolnir.tuner.workload import Workload


class GpuBench:
    """Implements `mjolnir.tuner.bench.Bench` on one GPU.

    Args:
        geometry, placement, workload: the problem.
        index: the CUDA device.
        folder: the compile cache, None = the user's.
        policy: how is measured.
        processes: compile processes, None = one a CPU, at most 16.
        compile_seconds: limit of one compile job.
        limits: other limits than `LIMITS`.
        pool: compiles; stays open. None = one of its own.
        gate: measuring waits for its clean windows.
        backend: for tests.

    Raises:
        DeviceUnavailable: no such device, an architecture that is not supported, or another run holds it.
    """

    simulated = False
    canaries = CANARIES

    def __init__(
        self,
        geometry: Geometry,
        placement: Placement,
        workload: Workload,
        *,
        index: int = 0,
        folder: Path | None = None,
        policy: Policy | None = None,
        processes: int | None = None,
        compile_seconds: float = COMPILE_SECONDS,
        limits: Mapping[str, float] | None = None,
        pool: CompilePool | None = None,
        gate: CleanWindow | None = None,
        backend: Backend | None = None,
    ) -> None:
        self.geometry, self.placement, self.workload = geometry, placement, workload
        self.policy = policy or Policy()
        self._folder = folder or default_folder()
        backend = backend or Backend(options={"index": index})
        request = {
            "op": "open",
            "card": backend.card,
            "options": dict(backend.options or {}),
            "geometry": geometry.as_dict(),
            "placement": asdict(placement),
            "workload": workload.as_dict(),
            "policy": self.policy.as_dict(),
            "folder": str(self._folder),
        }
        self._worker = Supervisor(backend, request, {**LIMITS, **(limits or {})})
        self._gate = gate
        self._own_pool = pool is None
        self._pool = pool or CompilePool(
            self._folder, processes=processes, seconds=compile_seconds, target=backend.compiler, tree=backend.tree
        )
        try:
            facts = self._worker.open()
        except BaseException as error:
            self.close()
            if isinstance(error, ChildError):
                raise DeviceUnavailable(f"the device worker did not open: {error}", error.log) from error
            raise
        self.device = Device(**facts["device"])
        self.uuid, self.kernel = str(facts["uuid"]), Path(facts["kernel"])
        self._versions = dict(facts["environment"])
        self._plan = self._pool.plan(self.device.arch)
        self.submit(Setting())

    @property
    def environment(self) -> Mapping[str, Any]:
        """What times depend on: kernel sources, policy, device, driver, packages."""
        facts = {
            "engine": engine_for(self.geometry, self.device.arch).name,
            "device": self.device.name,
            "device_uuid": self.uuid,
            "policy": self.policy.as_dict(),
        }
        names = ("driver", "torch", "dsl", "cuda")
        versions = {name: self._versions[name] for name in names if name in self._versions}
        return {**self._versions, **facts, "versions": versions}

    @property
    def worker_pid(self) -> int | None:
        """Process id of the device worker, None while there is none."""
        return self._worker.pid

    def settings(self) -> Sequence[Setting] | None:
        """Every feasible setting can be measured."""
        return None

    def now(self) -> float:
        """The monotonic clock."""
        return time.monotonic()

    def advance(self, seconds: float) -> None:
        """Does nothing: this clock is real."""

    def submit(self, setting: Setting) -> None:
        """Start compiling `setting`, and making the outputs that its gate expects."""
        if infeasible(setting, self.geometry, self.device) is None:
            self._pool.variant(self._variant(setting))
            self._expect(setting)

    def begin(self, trial: int, setting: Setting) -> None:
        """Does nothing: this is one device, and it is busy with the trial before."""

    def measure(self, trial: int, setting: Setting, fault: str = "none", race: Race | None = None) -> Outcome:
        """Build, check and time `setting`; see `Bench.measure`. A race is a request of its own."""
        if race is None or not race.points:
            return self.measure_at(trial, setting, fault=fault)
        first = self.measure_at(trial, setting, fault=fault, points=race.points)
        if first.status is not Status.MEASURED or fault != "none":
            return first
        if not race(first.timings):
            return replace(first, status=Status.RACED, reason=RACED)
        others = [point for point in range(len(self.workload.points)) if point not in race.points]
        return answers.joined(first, self.measure_at(trial, setting, points=others))

    def measure_at(
        self,
        trial: int | None,
        setting: Setting,
        *,
        fault: str = "none",
        points: Sequence[int] | None = None,
        rounds: int | None = None,
    ) -> Outcome:
        """As `measure`, at some points (None = all), for other rounds; without a trial no inputs are renewed."""
        begin = time.perf_counter()
        build, refusal = self._build(setting, fault)
        serve = None
        if fault == "stale" and refusal is None:
            serve, refusal = self._stand_in(setting)
        waited = time.perf_counter() - begin
        if refusal is not None:
            return answers.refused(build, refusal, waited)
        assert build is not None
        request = {
            "op": "measure",
            "trial": trial,
            "setting": setting.as_dict(),
            "fault": fault,
            "serve": serve.as_dict() if serve else None,
            "points": list(range(len(self.workload.points)) if points is None else points),
            "rounds": rounds,
        }
        plans = tuple(self.plans(setting))
        begin = time.perf_counter()
        try:
            answer = self._ask(request, [setting], fault=fault)
        except ChildError as error:
            return answers.failed(error, build, plans, waited, time.perf_counter() - begin)
        return answers.answered(answer, build, plans, waited)

    def noise(self, number: int) -> tuple[Timing, ...]:
        """The default against itself on a fresh instance; see `Bench.noise`.

        Raises:
            DeviceUnavailable: it could not be measured.
        """
        return self._compare(number, None)

    def compare_default(self, number: int | None, rounds: int | None = None) -> tuple[Timing, ...]:
        """As `noise`; with no number on the inputs as they are.

        Raises:
            DeviceUnavailable: it could not be measured, or not in a clean window.
        """
        timings = self._compare(number, rounds)
        if dirty := dirt(timings):
            raise DeviceUnavailable(f"the built-in default: {dirty}", status=Status.DIRTY)
        return timings

    def _compare(self, number: int | None, rounds: int | None) -> tuple[Timing, ...]:
        _, refusal = self._build(Setting(), "none")
        if refusal is not None:
            raise DeviceUnavailable(f"the built-in default cannot be built: {refusal[1]}")
        points = list(range(len(self.workload.points)))
        try:
            answer = self._ask({"op": "noise", "number": number, "points": points, "rounds": rounds}, [])
        except ChildError as error:
            raise DeviceUnavailable(f"the built-in default: {blame(error)[1]}", error.log) from error
        dirty = answer["status"] == Status.DIRTY
        if answer["status"] != Status.MEASURED and not (dirty and "timings" in answer):
            status = Status.DIRTY if dirty else Status.INFRASTRUCTURE
            reason = f"the built-in default: {answer['status']}: {answer['reason']}"
            raise DeviceUnavailable(reason, status=status)
        return answers.timings(answer)

    def instance(self, request: InstanceRequest) -> Instance:
        """Take one instance in the process that the request names; see `Bench.instance`."""
        for setting in request.arms:
            self.submit(setting)
        for setting in request.arms:
            _, refusal = self._build(setting, "none")
            if refusal is not None:
                return Instance(refusal[0], f"{setting}: {refusal[1]}")
        if self._worker.process != request.process:
            self._worker.drop()
        values = {
            "op": "instance",
            "number": request.number,
            "points": list(request.points),
            "arms": [setting.as_dict() for setting in request.arms],
            "rounds": request.rounds,
        }
        try:
            return answers.instance(self._ask(values, request.arms, process=request.process))
        except ChildError as error:
            return Instance(*blame(error))

    def plans(self, setting: Setting) -> list[str]:
        """Plan digest of each point."""
        return plan_digests(setting, self.workload, self.geometry, self.device)

    def binary(self, setting: Setting) -> str:
        """Key of the setting's binary, built now; empty where it cannot be."""
        build, refusal = self._build(setting, "none")
        return str(build.facts["key"]) if build and refusal is None else ""

    def renew_process(self) -> None:
        """Have the next request answered by a new process, with new KV contents."""
        self._worker.drop()

    def close(self) -> None:
        """End all processes. Idempotent."""
        self._worker.close()
        if self._own_pool:
            self._pool.close()

    def _variant(self, setting: Setting, fault: str = "none") -> Variant:
        return Variant.of(setting, self.geometry, self.device, fault=baked(fault))

    def _expect(self, setting: Setting, urgent: bool = False) -> tuple[str, Any]:
        expectation = Expectation.of(setting, self.device)
        return expectation.name, self._pool.expected(self.geometry, expectation, urgent=urgent)

    def _build(self, setting: Setting, fault: str) -> tuple[Build | None, tuple[Status, str] | None]:
        """The binary of a setting, and why it cannot be measured, if so."""
        reason = infeasible(setting, self.geometry, self.device)
        if reason:
            return None, (Status.INFEASIBLE, reason)
        build = self._pool.variant(self._variant(setting, fault), urgent=True).result()
        if build.failure:
            return build, (build.failure, build.reason)
        spilled = build.facts["spill_bytes"]
        if spilled:
            return build, (Status.INFEASIBLE, f"registers: the compiled code spills {spilled} bytes a thread")
        return build, None

    def _stand_in(self, setting: Setting) -> tuple[Setting | None, tuple[Status, str] | None]:
        """A setting whose binary a canary serves for that of `setting`; or why the canary ends here."""
        other = stand_in(setting, self.geometry, self.device)
        builds = [self._build(each, "none") for each in (setting, other)]
        for _, refusal in builds:
            if refusal is not None:
                return None, (Status.INFRASTRUCTURE, f"no canary could be built: {refusal[1]}")
        codes = {build.facts["binary"] for build, _ in builds if build}
        if len(codes) == 1:  # not rejected: where all binaries are alike, a stale one cannot be told
            return None, (Status.MEASURED, f"({setting}) and ({other}) were compiled to one binary")
        return other, None

    def _ask(
        self, request: dict[str, Any], settings: Sequence[Setting], *, fault: str = "none", process: int | None = None
    ) -> dict[str, Any]:
        """Ask the device worker, starting one where there is none; in a clean window, where a gate is set.

        Raises:
            ChildError: it failed; it has been dropped.
        """
        expected = dict(self._expect(setting, urgent=True) for setting in (*settings, Setting()))
        parts = {name: future.result() for name, future in expected.items()}
        wanted = [*((setting, fault) for setting in settings), (Setting(), "none")]
        builds = [self._pool.variant(self._variant(*each), urgent=True).result() for each in wanted]
        for build in (self._plan.result(), *parts.values(), *builds):
            if build.failure:
                raise Failed(
                    f"a part that every trial needs could not be made: {build.reason}", "expected", build.log, "Build"
                )
        told = {
            **request,
            "expected": {name: build.facts["path"] for name, build in parts.items()},
            "binaries": [
                {"setting": each.as_dict(), "fault": made, "key": build.facts["key"], "binary": build.facts["binary"]}
                for (each, made), build in zip(wanted, builds, strict=True)
            ],
        }
        if self._gate is None or fault != "none":
            return self._worker.ask(told, process)
        return self._gate.guard(lambda: self._worker.ask(told, process))
