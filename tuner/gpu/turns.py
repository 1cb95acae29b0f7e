"""Timing in turns: two workers with two builds of the kernel take the rounds of one comparison by turns.

Builds of different sources cannot live in one process. So each worker makes its arm ready on equal inputs, gated as
any other; then they are asked round by round, and while the one measures the other waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.bench import Status
from mjolnir.tuner.gpu.child import Report
from mjolnir.tuner.gpu.measure import TimingError

if TYPE_CHECKING:
    from mjolnir.tuner.gpu.chain import Arm
    from mjolnir.tuner.gpu.comparison import Check
    from mjolnir.tuner.gpu.session import Session


def ready(session: Session, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Gate the arms of a fresh instance and keep them at hand.

    The request has "settings", one for each point of the workload, "number" of the instance, "expected" and "binaries".
    """
    from mjolnir.tuner.gpu.comparison import summary
    from mjolnir.tuner.gpu.session import seed_of

    settings = [Setting.from_dict(values) for values in request["settings"]]
    report("inputs")
    session.expect(request["binaries"])
    for point in range(len(settings)):
        session.inputs(point, seed_of("instance", session.seed, request["number"], point), move=True)
    report("gate")
    session.at_hand = {}
    gates: list[dict[str, Any]] = []
    correctness: dict[str, Any] = {"kv_seed": session.seed, "arms": gates}
    for setting in dict.fromkeys(settings):
        points = [point for point, wanted in enumerate(settings) if wanted == setting]
        arm, checks = _gated(session, setting, points, request["expected"])
        gates.append(summary(checks))
        failed = next((check for kind in checks.values() for check in kind if not check.passed), None)
        if failed or arm is None:
            reason = failed.reason if failed else ""
            status = failed.status if failed else Status.INCORRECT
            spoiled = session.spoiled()
            return {"status": str(status), "reason": reason, "correctness": correctness, "spoiled": spoiled}
        gates[-1]["bitwise"] = session.bitwise(arm, points)
        session.at_hand |= dict.fromkeys(points, arm)
    return {"status": str(Status.MEASURED), "reason": "", "correctness": correctness}


def _gated(
    session: Session, setting: Setting, points: list[int], expected: Mapping[str, str]
) -> tuple[Arm | None, dict[str, list[Check]]]:
    """A fresh arm and its checks; none where its binary failed the small cases."""
    checks = {"cases": session.gate_binary(setting, expected)}
    if not all(check.passed for check in checks["cases"]):
        return None, checks
    arm = session.fresh_arm(setting)
    checks["points"] = session.gate_points(arm, points)
    if all(check.passed for check in checks["points"]):
        checks["fresh"] = session.gate_fresh(arm, points)
    return arm, checks


def turn(session: Session, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Time the arm at hand at "point" for "rounds" rounds, each with the empty chain, which is taken off.

    Raises:
        RuntimeError: no arm is at hand there: this process was not made ready.
    """
    point = request["point"]
    if point not in session.at_hand:
        raise RuntimeError(f"nothing is ready at point {point}: the process that was is gone")
    report("measure")
    try:
        block = session.time([session.at_hand[point]], [point], request["rounds"])[0]
    except TimingError as error:
        return {"status": str(Status.NAN), "reason": str(error)}
    return {"status": str(Status.MEASURED), "reason": "", "samples": list(block.net[0]), "window": dict(block.window)}
