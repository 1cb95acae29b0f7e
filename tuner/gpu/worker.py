"""The device worker: one process that owns one GPU, holds its lock, and gates and times what it is asked to.

The phase that it reports says whom a failure is to be blamed on: in `KERNEL_PHASES` it is the kernel under test, in the
others the bench itself. An answer with "spoiled" asks for this process to be replaced: a kernel that went wrong has
written where it should not.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjolnir import kernel
from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.bench import Status, Timing, dirt
from mjolnir.tuner.gpu.child import Handler, Report, resolve
from mjolnir.tuner.gpu.measure import Policy, TimingError
from mjolnir.tuner.workload import Workload

if TYPE_CHECKING:
    from filelock import BaseFileLock

    from mjolnir.tuner.gpu.chain import Arm
    from mjolnir.tuner.gpu.comparison import Check
    from mjolnir.tuner.gpu.measure import Block
    from mjolnir.tuner.gpu.session import Session

KERNEL_PHASES = ("gate", "measure")
"""Phases in which a hang or a crash is the kernel's."""


def create() -> Handler:
    """The handler of a device worker; what takes long to import comes before the first request."""
    import torch

    import mjolnir.tuner.gpu.session  # noqa: F401

    torch.set_num_threads(1)  # the work is on the device; threads would only take the CPUs from other processes
    return Worker()


def create_warm() -> Handler:
    """The same with the kernel's compiler loaded, which a worker on a GPU needs to load objects."""
    import cutlass.cute  # noqa: F401

    return create()


class Worker:
    """Answers requests; the first must be "open".

    - "open": "card" (`module:function` that makes it) with "options", "geometry", "placement", "workload", "policy",
      "folder" of the compile cache, "seed" of the KV contents, "lock_seconds" (None: the lock is another's to hold).
      Answers with facts of the device, and with the folder that the kernel came from. Asked again, it is for another
      problem: what was there for the one before is given back.
    - "measure": gate "setting" (with "fault"), then time it against the default at "points" for "rounds" rounds.
      "trial" renews a rotating point, None renews nothing. "expected": the cases' outputs by name.
    - "noise": time the default against itself; on a fresh instance seeded by "number", or as it is where that is None.
    - "instance": time "arms" against one another at "points" on a fresh instance, gated first.
    - "ready", "turn": see `turns`.

    All but "turn" tell in "binaries" what was built (see `Session.expect`); a binary that is another one never runs.
    "serve" of a "measure" is the setting that a canary runs in the place of its own.
    """

    def __init__(self) -> None:
        self._session: Session | None = None
        self._lock: BaseFileLock | None = None

    def __call__(self, request: dict[str, Any], report: Report) -> dict[str, Any]:
        """Answer one request."""
        if request["op"] == "open":
            report("open")
            return self._open(request)
        if self._session is None:
            raise RuntimeError("the first request must be 'open'")
        from mjolnir.tuner.gpu.turns import ready, turn

        operations = {"measure": measure, "noise": noise, "instance": instance, "ready": ready, "turn": turn}
        return operations[request["op"]](self._session, request, report)

    def _open(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        from mjolnir.tuner.gpu.session import Session

        begin = time.perf_counter()
        if self._session is not None:  # another problem: what lies on the card has to make room
            card, self._session = self._session.card, None
            card.release()
        geometry = Geometry.from_dict(spec["geometry"])
        card = resolve(spec["card"])(spec["options"], geometry, Path(spec["folder"]))
        if self._lock is None and spec["lock_seconds"] is not None:
            self._lock = hold(card.uuid, spec["lock_seconds"])
        placement, workload = Placement(**spec["placement"]), Workload.from_dict(spec["workload"])
        self._session = Session(card, geometry, placement, workload, Policy(**spec["policy"]), spec["seed"])
        device = card.device
        facts = {"arch": device.arch, "name": device.name, "sm_count": device.sm_count, "mig": device.mig}
        return {
            "device": facts,
            "uuid": card.uuid,
            "environment": card.environment(),
            "kernel": str(Path(str(kernel.__file__)).parent),
            "seconds": time.perf_counter() - begin,
        }


def hold(uuid: str, seconds: float) -> BaseFileLock:
    """Take the lock of a GPU within `seconds`; the system frees it when this process ends, however it ends.

    Raises:
        RuntimeError: another run has it.
    """
    import platformdirs
    from filelock import FileLock, Timeout

    folder = Path(platformdirs.user_runtime_dir("mjolnir", ensure_exists=True))
    lock = FileLock(folder / f"{uuid}.lock")
    try:
        lock.acquire(timeout=seconds)
    except Timeout:
        raise RuntimeError(
            f"{uuid} is in use by another mjolnir run, which holds {lock.lock_file}; wait for it or use another device"
        ) from None
    return lock


class Phases:
    """Reports phases and adds up their seconds."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._name = ""
        self._begin = 0.0
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str) -> None:
        self.end()
        self._name, self._begin = name, time.perf_counter()
        self._report(name)

    def end(self) -> dict[str, float]:
        """End the phase that is on."""
        if self._name:
            self.seconds[self._name] = self.seconds.get(self._name, 0.0) + time.perf_counter() - self._begin
            self._name = ""
        return self.seconds


def _failure(checks: list[Check]) -> Check | None:
    return next((check for check in checks if not check.passed), None)


def measure(session: Session, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Gate a setting, then time it against the built-in default; see `Worker`."""
    from mjolnir.tuner.gpu.session import seed_of

    fault, points = request["fault"], list(request["points"])
    phases, trial = Phases(report), request["trial"]
    phases("inputs")
    session.expect(request["binaries"])
    renewed = None if trial is None else session.turn(points)
    for point in points:
        session.inputs(point, seed_of("trial", session.seed, trial) if point == renewed else None)
    phases("gate")
    arm, answer = _gated(session, request)
    answer = {"plans": session.plans(Setting.from_dict(request["setting"])), "phases": phases.seconds, **answer}
    if answer["status"] != Status.MEASURED:
        phases.end()
        return answer
    if fault != "none":  # what is known to be wrong is not timed, even when the gate was blind
        phases.end()
        return {**answer, "reason": f"the gate let a {fault!r} fault pass"}
    assert arm is not None
    phases("baseline")
    baseline, wrong = session.baseline(points, request["expected"])
    if wrong:
        phases.end()
        reason = f"the built-in default, which all are timed against, fails the gate: {wrong.reason}"
        return {**answer, "status": str(Status.INFRASTRUCTURE), "reason": reason, "spoiled": True}
    phases("measure")
    try:
        blocks = session.time([arm, baseline], points, request["rounds"])
        plan_ns = session.time_plans(arm, points) if trial is not None else []
    except TimingError as error:
        phases.end()
        return {**answer, "status": str(Status.NAN), "reason": str(error)}
    phases.end()
    return {**answer, **_timed(points, blocks), "facts": {"plan_ns": plan_ns} if plan_ns else {}}


def _gated(session: Session, request: Mapping[str, Any]) -> tuple[Arm | None, dict[str, Any]]:
    """The arm that a request measures, where its binary could be made, and the answer if it ends with the gate."""
    from mjolnir.tuner.gpu.canaries import StaleBinary
    from mjolnir.tuner.gpu.comparison import summary

    setting, fault, points = Setting.from_dict(request["setting"]), request["fault"], list(request["points"])
    arm: Arm | None = None
    checks: dict[str, list[Check]] = {"cases": session.gate_binary(setting, request["expected"], fault)}
    answer: dict[str, Any] = {"status": str(Status.MEASURED), "reason": ""}
    if not _failure(checks["cases"]):
        try:
            serve = Setting.from_dict(request["serve"]) if request.get("serve") else None
            arm = session.arm(setting) if fault == "none" else session.fresh_arm(setting, fault, serve)
        except StaleBinary as error:
            if fault != "stale":
                raise
            correctness = {**summary(checks), "kv_seed": session.seed}
            return None, {"status": str(Status.INCORRECT), "reason": str(error), "correctness": correctness}
        if fault == "replayed":
            for point in points:
                arm.rehearse(point)
        checks["points"] = session.gate_points(arm, points)
        if not _failure(checks["points"]):
            checks["fresh"] = session.gate_fresh(arm, points)
    failed = _failure([check for kind in checks.values() for check in kind])
    answer["correctness"] = {**summary(checks), "kv_seed": session.seed}
    if failed:
        answer |= {"status": str(failed.status), "reason": failed.reason, "spoiled": session.spoiled()}
    return arm, answer


def noise(session: Session, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Time the built-in default against itself, with two sets of buffers and graphs; see `Worker`."""
    from mjolnir.tuner.gpu.session import seed_of

    points, number = list(request["points"]), request["number"]
    report("inputs")
    session.expect(request["binaries"])
    for point in points:
        seed = None if number is None else seed_of("noise", session.seed, number, point)
        session.inputs(point, seed, move=True)
    report("gate")
    checks = list(session.gate_binary(Setting(), request["expected"]))
    arms = [session.fresh_arm(Setting()) for _ in range(2)]
    for arm in arms:
        checks += session.gate_points(arm, points)
    failed = _failure(checks)
    if failed:
        return {"status": str(failed.status), "reason": failed.reason, "spoiled": True}
    report("measure")
    try:
        return {"reason": "", **_timed(points, session.time(arms, points, request["rounds"]))}
    except TimingError as error:
        return {"status": str(Status.NAN), "reason": str(error)}


def instance(session: Session, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Gate and time several settings on a fresh instance; see `Worker`."""
    from mjolnir.tuner.gpu.comparison import summary
    from mjolnir.tuner.gpu.session import seed_of

    points, phases = list(request["points"]), Phases(report)
    phases("inputs")
    session.expect(request["binaries"])
    for point in points:
        session.inputs(point, seed_of("instance", session.seed, request["number"], point), move=True)
    phases("gate")
    arms: list[Arm] = []
    made: list[dict[str, Any]] = []
    correctness: dict[str, Any] = {"kv_seed": session.seed, "arms": made}
    told: dict[str, Any] = {"correctness": correctness, "phases": phases.seconds}
    for number, values in enumerate(request["arms"]):
        setting = Setting.from_dict(values)
        checks: dict[str, list[Check]] = {"cases": session.gate_binary(setting, request["expected"])}
        if not _failure(checks["cases"]):
            arms.append(session.fresh_arm(setting))
            checks["points"] = session.gate_points(arms[-1], points)
        if not _failure(checks.get("points", checks["cases"])):
            checks["fresh"] = session.gate_fresh(arms[-1], points)
        made.append(summary(checks))
        failed = _failure([check for kind in checks.values() for check in kind])
        if failed:
            reason, spoiled = f"arm {number} ({setting}): {failed.reason}", session.spoiled()
            phases.end()
            return {**told, "status": str(failed.status), "reason": reason, "spoiled": spoiled}
        made[-1]["bitwise"] = session.bitwise(arms[-1], points)
    phases("measure")
    try:
        blocks = session.time(arms, points, request["rounds"])
    except TimingError as error:
        return {**told, "status": str(Status.NAN), "reason": str(error)}
    finally:
        phases.end()
    dirty = dirt(blocks)
    whole = {"before": blocks[0].window["before"], "after": blocks[-1].window["after"], "dirty": dirty}
    return {
        **told,
        "status": str(Status.DIRTY if dirty else Status.MEASURED),
        "reason": f"the window was dirty: {dirty}" if dirty else "",
        "samples": [block.net for block in blocks],
        "window": {**whole, "points": [dict(block.window) for block in blocks]},
    }


def _timed(points: list[int], blocks: list[Block]) -> dict[str, Any]:
    """Status and timings of a candidate (arm 0) against a baseline (arm 1)."""
    timings = [
        Timing(point, block.samples[0], block.samples[1], block.empty, block.window).as_dict()
        for point, block in zip(points, blocks, strict=True)
    ]
    dirty = dirt(blocks)
    if dirty:
        return {"status": str(Status.DIRTY), "reason": f"the window was dirty: {dirty}", "timings": timings}
    return {"status": str(Status.MEASURED), "timings": timings}
