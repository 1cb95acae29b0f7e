"""What a request to the device worker takes, made by the compile pool: binaries, expected outputs, the plan kernel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import Variant, infeasible
from mjolnir.tuner.bench import Status
from mjolnir.tuner.gpu.canaries import baked, stand_in
from mjolnir.tuner.gpu.expectation import Expectation
from mjolnir.tuner.gpu.pool import Build, CompilePool, Need
from mjolnir.tuner.gpu.protocol import Failed

Refusal = tuple[Status, str]


class Parts:
    """The parts of one problem on one kind of device.

    Args:
        pool: makes them.
        geometry, device: whose.
        judge: makes what the gate expects, None = `pool`.
        need: how soon the built-in default is needed, which everything is timed against.
    """

    def __init__(
        self,
        pool: CompilePool,
        geometry: Geometry,
        device: Device,
        need: Need = Need.SOON,
        judge: CompilePool | None = None,
    ) -> None:
        self._pool, self._geometry, self._device = pool, geometry, device
        self._judge = judge or pool
        self._plan = pool.plan(device.arch)
        self.submit(Setting(), need)

    def submit(self, setting: Setting, need: Need = Need.SOON) -> None:
        """Start compiling `setting`, and making the outputs that its gate expects."""
        if infeasible(setting, self._geometry, self._device) is None:
            self._variant(setting, need=need)
            self._expected(setting, need)

    def submit_canaries(self, faults: Iterable[str], need: Need = Need.SOON) -> None:
        """Start compiling what the canaries take."""
        for fault in faults:
            self._variant(Setting(), fault, need)
        with contextlib.suppress(ValueError):  # the canary will say that there is none
            self.submit(stand_in(Setting(), self._geometry, self._device), need)

    def build(self, setting: Setting, fault: str = "none") -> tuple[Build | None, Refusal | None]:
        """The binary of a setting, waited for, and why it cannot be measured, if so."""
        reason = infeasible(setting, self._geometry, self._device)
        if reason:
            return None, (Status.INFEASIBLE, reason)
        build = self._variant(setting, fault, Need.NOW).result()
        if build.failure:
            return build, (build.failure, build.reason)
        spilled = build.facts["spill_bytes"]
        if spilled:
            return build, (Status.INFEASIBLE, f"registers: the compiled code spills {spilled} bytes a thread")
        return build, None

    def stand_in(self, setting: Setting) -> tuple[Setting | None, Refusal | None]:
        """A setting whose binary a canary serves for that of `setting`; or why the canary ends here."""
        other = stand_in(setting, self._geometry, self._device)
        builds = [self.build(each) for each in (setting, other)]
        for _, refusal in builds:
            if refusal is not None:
                return None, (Status.INFRASTRUCTURE, f"no canary could be built: {refusal[1]}")
        codes = {build.facts["binary"] for build, _ in builds if build}
        if len(codes) == 1:  # not rejected: where all binaries are alike, a stale one cannot be told
            return None, (Status.MEASURED, f"({setting}) and ({other}) were compiled to one binary")
        return other, None

    def ready(self, setting: Setting) -> bool:
        """Whether a request with this setting can be made without waiting, and has a binary to measure."""
        if infeasible(setting, self._geometry, self._device):
            return False
        settings = (setting, Setting())
        jobs = [self._plan, *map(self._variant, settings), *(self._expected(each)[1] for each in settings)]
        return all(job.done() and not job.result().failure for job in jobs) and self.build(setting)[1] is None

    def told(self, request: Mapping[str, Any], settings: Sequence[Setting], fault: str = "none") -> dict[str, Any]:
        """A request with what its settings take, waited for.

        Raises:
            Failed: a part that every trial needs could not be made.
        """
        expected = dict(self._expected(setting, Need.NOW) for setting in (*settings, Setting()))
        parts = {name: future.result() for name, future in expected.items()}
        wanted = [*((setting, fault) for setting in settings), (Setting(), "none")]
        builds = [self._variant(*each, Need.NOW).result() for each in wanted]
        for build in (self._plan.result(), *parts.values(), *builds):
            if build.failure:
                raise Failed(
                    f"a part that every trial needs could not be made: {build.reason}", "expected", build.log, "Build"
                )
        return {
            **request,
            "expected": {name: build.facts["path"] for name, build in parts.items()},
            "binaries": [
                {"setting": each.as_dict(), "fault": made, "key": build.facts["key"], "binary": build.facts["binary"]}
                for (each, made), build in zip(wanted, builds, strict=True)
            ],
        }

    def _variant(self, setting: Setting, fault: str = "none", need: Need = Need.SOON) -> Future[Build]:
        return self._pool.variant(Variant.of(setting, self._geometry, self._device, fault=baked(fault)), need)

    def _expected(self, setting: Setting, need: Need = Need.SOON) -> tuple[str, Future[Build]]:
        expectation = Expectation.of(setting, self._device)
        return expectation.name, self._judge.expected(self._geometry, expectation, need)
