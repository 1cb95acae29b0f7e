"""The bench that measures on a GPU: a compile pool, ahead of a device worker that is replaced when it fails."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mjolnir.kernel.cache import default_folder
from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import Variant, infeasible
from mjolnir.tuner.bench import Instance, InstanceRequest, Outcome, Status, Timing
from mjolnir.tuner.gpu.measure import Policy
from mjolnir.tuner.gpu.plans import cases_name, plan_digests
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
        backend: for tests.

    Raises:
        DeviceUnavailable: no such device, an architecture that is not supported, or another run holds it.
    """

    simulated = False

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
        self._pool = CompilePool(self._folder, processes=processes, seconds=compile_seconds, target=backend.compiler)
        try:
            facts = self._worker.open()
        except BaseException as error:
            self.close()
            if isinstance(error, ChildError):
                raise DeviceUnavailable(f"the device worker did not open: {error}", error.log) from error
            raise
        self.device = Device(**facts["device"])
        self.uuid = str(facts["uuid"])
        self._versions = dict(facts["environment"])
        self._plan = self._pool.plan(self.device.arch)
        self.submit(Setting())

    @property
    def environment(self) -> Mapping[str, Any]:
        """What times depend on: kernel sources, policy, device, driver, packages."""
        facts = {
            "engine": "warp",
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

    def measure(self, trial: int, setting: Setting, fault: str = "none") -> Outcome:
        """Build, check and time `setting`; see `Bench.measure`."""
        return self.measure_at(trial, setting, fault=fault)

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
        waited = {"compile": time.perf_counter() - begin}
        if refusal is not None:
            status, reason = refusal
            binary, log = (str(build.facts.get("key", "")), build.log) if build else ("", "")
            return Outcome(status, reason, binary=binary, facts=_facts(build), phases=waited, log=log)
        assert build is not None
        binary, facts = str(build.facts["key"]), _facts(build)
        request = {
            "op": "measure",
            "trial": trial,
            "setting": setting.as_dict(),
            "fault": fault,
            "points": list(range(len(self.workload.points)) if points is None else points),
            "rounds": rounds,
        }
        begin = time.perf_counter()
        try:
            answer = self._ask(request, [setting])
        except ChildError as error:
            plans = tuple(self.plans(setting))
            phases = {**waited, _OUTER.get(error.phase, error.phase): time.perf_counter() - begin}
            return Outcome(*blame(error), binary=binary, plans=plans, facts=facts, phases=phases, log=error.log)
        facts.update(answer.get("facts", {}))
        if "window" in answer:
            facts["window"] = answer["window"]
        return Outcome(
            Status(answer["status"]),
            answer["reason"],
            timings=tuple(Timing.from_dict(values) for values in answer.get("timings", ())),
            correctness=answer["correctness"],
            binary=binary,
            plans=tuple(answer["plans"]),
            facts=facts,
            phases={**waited, **_folded(answer["phases"])},
        )

    def noise(self, number: int) -> tuple[Timing, ...]:
        """The default against itself on a fresh instance; see `Bench.noise`.

        Raises:
            DeviceUnavailable: it could not be measured.
        """
        return self.compare_default(number)

    def compare_default(self, number: int | None, rounds: int | None = None) -> tuple[Timing, ...]:
        """As `noise`; with no number on the inputs as they are.

        Raises:
            DeviceUnavailable: it could not be measured.
        """
        _, refusal = self._build(Setting(), "none")
        if refusal is not None:
            raise DeviceUnavailable(f"the built-in default cannot be built: {refusal[1]}")
        points = list(range(len(self.workload.points)))
        try:
            answer = self._ask({"op": "noise", "number": number, "points": points, "rounds": rounds}, [Setting()])
        except ChildError as error:
            raise DeviceUnavailable(f"the built-in default: {blame(error)[1]}", error.log) from error
        if answer["status"] != Status.MEASURED:
            raise DeviceUnavailable(f"the built-in default: {answer['status']}: {answer['reason']}")
        return tuple(Timing.from_dict(values) for values in answer["timings"])

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
            answer = self._ask(values, request.arms, process=request.process)
        except ChildError as error:
            return Instance(*blame(error))
        samples = tuple(tuple(tuple(arm) for arm in point) for point in answer.get("samples", ()))
        window = answer.get("window", {})
        return Instance(Status(answer["status"]), answer["reason"], samples, answer["correctness"], window)

    def plans(self, setting: Setting) -> list[str]:
        """Plan digest of each point."""
        return plan_digests(setting, self.workload, self.geometry, self.device.sm_count)

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
        self._pool.close()

    def _variant(self, setting: Setting, fault: str = "none") -> Variant:
        return Variant.of(setting, self.geometry, self.device, fault=fault)

    def _expect(self, setting: Setting, urgent: bool = False) -> tuple[str, Any]:
        grid, merge = self.device.sm_count * setting.ctas_per_sm, setting.max_splits != 1
        return cases_name(grid, merge), self._pool.expected(self.geometry, grid, merge=merge, urgent=urgent)

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

    def _ask(self, request: dict[str, Any], settings: Sequence[Setting], process: int | None = None) -> dict[str, Any]:
        """Ask the device worker, starting one where there is none.

        Raises:
            ChildError: it failed; it has been dropped.
        """
        expected = dict(self._expect(setting, urgent=True) for setting in (*settings, Setting()))
        builds = {name: future.result() for name, future in expected.items()}
        for build in (self._plan.result(), *builds.values()):
            if build.failure:
                raise Failed(
                    f"a part that every trial needs could not be made: {build.reason}", "expected", build.log, "Build"
                )
        paths = {name: build.facts["path"] for name, build in builds.items()}
        return self._worker.ask({**request, "expected": paths}, process)


_OUTER = {"inputs": "gate", "baseline": "measure"}
"""The worker's phases that an outcome counts with others: references are made for the gate, the baseline for timing."""


def _folded(phases: Mapping[str, float]) -> dict[str, float]:
    """The phases of an outcome from those of the worker."""
    folded: dict[str, float] = {}
    for name, seconds in phases.items():
        outer = _OUTER.get(name, name)
        folded[outer] = folded.get(outer, 0.0) + seconds
    return folded


def _facts(build: Build | None) -> dict[str, Any]:
    """The facts of an outcome: resources of the binary and what compiling took."""
    if build is None:
        return {}
    names = ("binary", "registers", "spill_bytes", "smem_bytes")
    facts = {name: build.facts[name] for name in names if name in build.facts}
    return {**facts, "compile_seconds": build.facts.get("seconds", build.seconds)}
