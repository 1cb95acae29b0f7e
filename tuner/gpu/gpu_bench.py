"""The bench that measures on a GPU: a compile pool, ahead of a device worker that is replaced when it fails."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mjolnir.kernel.cache import default_folder
from mjolnir.kernel.device import Device
from mjolnir.kernel.engine import engine_for
from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.bench import (
    CANARIES,
    RACED,
    Instance,
    InstanceRequest,
    OneByOne,
    Outcome,
    Race,
    Status,
    Timing,
    dirt,
)
from mjolnir.tuner.clean_window import CleanWindow
from mjolnir.tuner.gpu import answers, requests
from mjolnir.tuner.gpu.measure import Policy
from mjolnir.tuner.gpu.parts import Parts
from mjolnir.tuner.gpu.plans import plan_digests
from mjolnir.tuner.gpu.pool import COMPILE_SECONDS, CompilePool, Need
from mjolnir.tuner.gpu.protocol import ChildError
from mjolnir.tuner.gpu.supervisor import Backend, DeviceUnavailable, Supervisor, backend_of, blame
from mjolnir.tuner.workload import Workload


class GpuBench(OneByOne):
    """Implements `mjolnir.tuner.bench.Bench` on one GPU.

    The trial that comes next is sent to the device worker while it is at the one before, if what it takes is built.

    Args:
        geometry, placement, workload: the problem.
        index: the CUDA device.
        folder: the compile cache, None = the user's.
        policy: how is measured.
        processes: compile processes, None = one a CPU, at most 16.
        compile_seconds: limit of one compile job.
        limits: other limits than `LIMITS`.
        pool: compiles; stays open. None = one of its own.
        judge: its processes emulate what the gate expects; stays open. None = `pool`.
        worker: of the device, which may have been at another problem; stays open. None = one of its own.
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
        judge: CompilePool | None = None,
        worker: Supervisor | None = None,
        gate: CleanWindow | None = None,
        backend: Backend | None = None,
    ) -> None:
        self.geometry, self.placement, self.workload = geometry, placement, workload
        self.policy = policy or Policy()
        self._folder = folder or default_folder()
        self._own_worker, self._own_pool = worker is None, pool is None
        self._worker = worker or Supervisor(backend or backend_of(index), limits)
        self._problem = requests.opening(self._worker.backend, geometry, placement, workload, self.policy, self._folder)
        self._gate = gate
        self._name = secrets.token_hex(8)
        self._waiting: dict[int, tuple[Setting, Race | None]] = {}
        self._pool = pool or CompilePool(
            self._folder,
            processes=processes,
            seconds=compile_seconds,
            target=self._worker.backend.compiler,
            tree=self._worker.backend.tree,
        )
        self._pool.warm()
        try:
            facts = self._worker.open(self._problem)
        except BaseException as error:
            self.close()
            if isinstance(error, ChildError):
                raise DeviceUnavailable(f"the device worker did not open: {error}", error.log) from error
            raise
        self.device = Device(**facts["device"])
        self.uuid, self.kernel = str(facts["uuid"]), Path(facts["kernel"])
        self._versions = dict(facts["environment"])
        self._parts = Parts(self._pool, geometry, self.device, judge=judge)
        self._parts.submit_canaries(self.canaries)

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
        self._parts.submit(setting)

    def foresee(self, settings: Iterable[Setting]) -> None:
        """See `Bench`."""
        for setting in settings:
            self._parts.submit(setting, Need.PERHAPS)

    def begin(self, trial: int, setting: Setting, race: Race | None = None) -> None:
        """See `Bench`; a trial waits here until the one before it is measured."""
        self._waiting[trial] = setting, race

    def begun(self, trial: int) -> bool:
        """See `Bench`."""
        if self._worker.sent((self._name, trial)):
            return True
        self._waiting.pop(trial, None)
        return False

    def _send_next(self) -> None:
        """Send the next trial that was announced behind the one at hand, if nothing has to be waited for."""
        trial, (setting, race) = next(iter(self._waiting.items()), (0, (None, None)))
        if setting is None or self._gate is not None:
            return
        if self._parts.ready(setting):
            asked = requests.measuring(trial, setting, self._points(race.points if race else None))
            request = self._parts.told(asked, [setting])
            self._worker.send(self._problem, request, (self._name, trial))
            del self._waiting[trial]

    def measure(self, trial: int, setting: Setting, fault: str = "none", race: Race | None = None) -> Outcome:
        """Build, check and time `setting`; see `Bench.measure`. A race is a request of its own."""
        self._waiting.pop(trial, None)
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
        build, refusal = self._parts.build(setting, fault)
        serve = None
        if fault == "stale" and refusal is None:
            serve, refusal = self._parts.stand_in(setting)
        waited = time.perf_counter() - begin
        if refusal is not None:
            return answers.refused(build, refusal, waited)
        assert build is not None
        request = requests.measuring(trial, setting, self._points(points), rounds, fault, serve)
        plans = tuple(self.plans(setting))
        begin = time.perf_counter()
        try:
            answer = self._ask(request, [setting], fault=fault, ticket=(self._name, trial))
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
        _, refusal = self._parts.build(Setting(), "none")
        if refusal is not None:
            raise DeviceUnavailable(f"the built-in default cannot be built: {refusal[1]}")
        request = {"op": "noise", "number": number, "points": self._points(None), "rounds": rounds}
        try:
            answer = self._ask(request, [])
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
            _, refusal = self._parts.build(setting, "none")
            if refusal is not None:
                return Instance(refusal[0], f"{setting}: {refusal[1]}")
        values = {
            "op": "instance",
            "number": request.number,
            "points": list(request.points),
            "arms": [setting.as_dict() for setting in request.arms],
            "rounds": request.rounds,
        }
        try:
            answer = self._ask(values, request.arms, process=(self._name, request.process))
        except ChildError as error:
            return Instance(*blame(error), phases=self._worker.opening)
        return answers.instance(answer, self._worker.opening)

    def _points(self, points: Sequence[int] | None) -> list[int]:
        """Some points, or all."""
        return list(range(len(self.workload.points)) if points is None else points)

    def plans(self, setting: Setting) -> list[str]:
        """Plan digest of each point."""
        return plan_digests(setting, self.workload, self.geometry, self.device)

    def binary(self, setting: Setting) -> str:
        """Key of the setting's binary, built now; empty where it cannot be."""
        build, refusal = self._parts.build(setting, "none")
        return str(build.facts["key"]) if build and refusal is None else ""

    def renew_process(self) -> None:
        """Have the next request answered by a new process, with new KV contents."""
        self._worker.drop()

    def close(self) -> None:
        """End all processes. Idempotent."""
        if self._own_worker:
            self._worker.close()
        if self._own_pool:
            self._pool.close()

    def _ask(
        self,
        request: dict[str, Any],
        settings: Sequence[Setting],
        *,
        fault: str = "none",
        process: tuple[str, int] | None = None,
        ticket: Any = None,
    ) -> dict[str, Any]:
        """Ask the device worker, starting one where there is none; in a clean window, where a gate is set.

        Raises:
            ChildError: it failed; it has been dropped.
        """
        told = self._parts.told(request, settings, fault)
        ask = partial(self._worker.ask, self._problem, told, process=process, ticket=ticket, behind=self._send_next)
        return ask() if self._gate is None or fault != "none" else self._gate.guard(ask)
