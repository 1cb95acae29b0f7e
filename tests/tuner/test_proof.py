"""Decisions over instances: what is proven, what speaks against it, and what a certificate says of it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.alpha import attempts, rules_of, share
from mjolnir.tuner.case import Case
from mjolnir.tuner.judges import judge_of
from mjolnir.tuner.options import Options
from mjolnir.tuner.promotion import METHOD, Arms, Decision, certificate
from mjolnir.tuner.proof import Court
from mjolnir.tuner.recording import Recording
from mjolnir.tuner.replay import ReplayBench
from mjolnir.tuner.workload import Workload, uniform

WORKLOAD = Workload("w", (uniform(1, 64), uniform(1, 128), uniform(4, 64)))
FAST, DEFAULT, ROW = Setting(1, 4), Setting(2, 6), Setting(2, 4)
FLOOR = np.array([0.02, 0.005, 0.005])
OPTIONS = Options()
ALONE = Arms.of([FAST], DEFAULT, None)
BOTH = Arms.of([FAST], DEFAULT, ROW)
NEEDED = 10
"""Processes that prove it at alpha 0.05 over two buckets, when all are in favour: 2^11 / 11 >= 4 pi^2 / (6 x 0.05)."""


def body(process: int, *ratios: Sequence[float], **facts: Any) -> dict[str, Any]:
    """A confirmation's body; `ratios[arm]` are the candidate's times over that arm's, by point."""
    samples = [[[1_000_000] * 3, *([round(1_000_000 / arm[p])] * 3 for arm in ratios)] for p in range(2)]
    arms = {1: ALONE, 2: BOTH}[len(ratios)]
    known = {"arms": [s.as_dict() for s in arms.settings], "default": arms.default, "incumbent": arms.incumbent}
    measured = {"points": [0, 1], "samples": samples, "status": "measured", "process": process, "correctness": {}}
    return {**known, **measured, "attempt": 1, **facts}


def processes(count: int, *ratios: Sequence[float], first: int = 1) -> list[dict[str, Any]]:
    """Two instances in each of `count` processes."""
    return [body(first + number // 2, *ratios) for number in range(2 * count)]


def court(options: Options = OPTIONS, attempt: int = 1) -> Court:
    return Court(1, WORKLOAD, FLOOR, options, attempt)


def decide(bodies: list[dict[str, Any]], arms: Arms = ALONE, **keywords: Any) -> Decision:
    return court(**keywords).judge(bodies, arms)


def test_a_gain_is_proven_when_every_claim_has_its_evidence() -> None:
    assert decide(processes(NEEDED - 1, [0.95, 0.97])).decision == "open"
    decision = decide(processes(NEEDED, [0.95, 0.97]))
    assert decision.decision == "promote"
    assert decision.evidence == pytest.approx((2 ** (NEEDED + 1) - 1) / (NEEDED + 1))
    ratio = decision.ratio("default")
    assert ratio is not None
    assert ratio["value"] == pytest.approx(math.sqrt(0.95 * 0.97), abs=1e-5)
    assert decision.worst is not None
    assert (decision.worst[0], decision.instances) == ("1x128", 2 * NEEDED)
    assert decision.worst[1] == pytest.approx(0.97, abs=1e-5)
    assert "4.2% faster than the default" in decision.reason


def test_instances_of_one_process_are_one_unit_of_evidence() -> None:
    assert decide([body(1, [0.9, 0.9])] * 60).decision == "open"
    assert decide([body(n % 2, [0.9, 0.9]) for n in range(60)]).evidence == pytest.approx(7 / 3)
    spread = [body(number // 6, [0.9, 0.9]) for number in range(60)]
    assert decide(spread).decision == "promote"


def test_the_value_of_a_process_is_the_median_of_its_instances() -> None:
    one_of_three = [body(n // 3, [0.95, 0.95] if n % 3 else [1.1, 1.1]) for n in range(3 * NEEDED)]
    two_of_three = [body(n // 3, [1.1, 1.1] if n % 3 else [0.95, 0.95]) for n in range(3 * NEEDED)]
    assert decide(one_of_three).decision == "promote"
    assert decide(two_of_three).decision == "not-proven"


@pytest.mark.parametrize(("ratio", "expected"), [(1 / 1.0101, "promote"), (1 / 1.0099, "open"), (1.02, "open")])
def test_the_margin_is_what_counts_as_in_favour(ratio: float, expected: str) -> None:
    decision = decide([*processes(1, [ratio, ratio]), *processes(NEEDED - 1, [0.95, 0.95], first=2)])
    assert decision.decision == expected
    if expected == "open":
        assert decision.reason == f"in 1 of {NEEDED} processes not faster than the default by the margin of 1.0%"


def test_a_point_slower_by_its_noise_refuses_however_large_the_gain() -> None:
    assert decide(processes(NEEDED, [0.85, 1.0049])).decision == "promote"
    assert decide(processes(NEEDED, [1.0199, 0.85])).decision == "promote"
    decision = decide(processes(NEEDED, [0.85, 1.0052]))
    assert decision.decision == "not-proven"
    assert decision.reason == "in 10 of 10 processes slower than the default at 1x128 by its noise of 0.5% or more"


def test_the_row_in_force_has_to_be_beaten_too() -> None:
    assert decide(processes(NEEDED, [0.9, 0.9], [0.95, 0.95]), BOTH).decision == "promote"
    decision = decide(processes(NEEDED, [0.9, 0.9], [0.995, 0.995]), BOTH)
    assert decision.reason == "in 10 of 10 processes not faster than the incumbent by the margin of 1.0%"
    assert decision.ratio("incumbent")["value"] == pytest.approx(0.995, abs=1e-4)  # type: ignore[index]


def test_it_ends_when_the_cap_is_too_near() -> None:
    most = rules_of(OPTIONS, 2, 1).most
    spared = most - int(rules_of(OPTIONS, 2, 1).needed()[-1])
    assert decide(processes(spared, [1.0, 1.0])).decision == "open"
    assert decide(processes(spared + 1, [1.0, 1.0])).decision == "not-proven"


def test_nothing_is_promoted_before_three_processes() -> None:
    single = Workload("one", WORKLOAD.points[:2])
    easy = replace(OPTIONS, alpha=0.999, processes=5)
    loose = Court(1, single, FLOOR[:2], easy, 1)
    assert loose.rules.threshold < 4
    assert [loose.judge(processes(n, [0.9, 0.9]), ALONE).decision for n in (4, 5)] == ["open", "promote"]


def test_instances_have_to_fit_the_error_budget() -> None:
    few = replace(OPTIONS, instances=18)
    decision = decide(processes(9, [0.5, 0.5]), options=few)
    assert decision.decision == "not-proven"
    assert decision.reason.startswith("18 instances in 9 processes cannot prove anything at alpha 0.05 over 2 buckets")
    assert decide([]).reason == "no instance could be measured"


def test_each_further_attempt_needs_more() -> None:
    assert [share(0.05, k) / 0.05 for k in (1, 2, 3)] == pytest.approx([0.6079, 0.1520, 0.0675], abs=1e-4)
    assert sum(share(0.05, k) for k in range(1, 100_000)) == pytest.approx(0.05, rel=1e-4)
    bodies = processes(NEEDED, [0.9, 0.9])
    assert [decide(bodies, attempt=k).decision for k in (1, 2)] == ["promote", "open"]
    assert decide(processes(13, [0.9, 0.9]), attempt=2).decision == "promote"
    assert court(attempt=2).rules.threshold == pytest.approx(4 * court().rules.threshold)


def test_attempts_are_counted_over_tags_and_epochs() -> None:
    key = {"device": "card", "batch": 1}

    def promotion(key: dict[str, Any], kernel: str, instances: int) -> dict[str, Any]:
        return {
            "kind": "promotion",
            "body": {"key": key, "certificate": {"kernel_hash": kernel, "instances": instances}},
        }

    def confirmation(epoch: str, after: int, bucket: int) -> dict[str, Any]:
        return {"kind": "confirmation", "body": {"epoch": epoch, "after": after, "bucket": bucket}}

    others = [promotion(key, "h", 24), promotion(key, "h", 0), promotion(key, "g", 24), promotion({"batch": 1}, "h", 9)]
    assert attempts([], others, 1, key, "h") == 1
    mine = [confirmation("a", 20, 1), confirmation("a", 20, 1), confirmation("b", 20, 1), confirmation("a", 40, 4)]
    assert attempts(mine, others, 1, key, "h") == 3
    assert attempts([{"kind": "trial", "body": {}}], [], 1, key, "h") == 0


def test_a_certificate_is_json_and_says_what_it_rests_on(modelled: Recording) -> None:
    bench = ReplayBench(modelled)
    bodies = processes(NEEDED, [0.9, 0.9])
    decision = decide(bodies)
    paper = certificate(decision, court().members(decision), bench, FLOOR, bodies)
    assert json.loads(json.dumps(paper)) == paper
    assert (paper["method"], paper["instances"], paper["processes"], paper["attempt"]) == (METHOD, 20, 10, 1)
    assert paper["alpha"] == pytest.approx(0.05 * 6 / math.pi**2 / 2)
    assert paper["evidence"] >= paper["threshold"] == pytest.approx(4 * math.pi**2 / (6 * 0.05))
    assert paper["noise_floor"] == {"1x4096": 0.02, "1x16384": 0.005, "32x4096": 0.005}
    assert (paper["kernel_hash"], paper["policy"]) == ("synthetic", "synthetic")
    assert paper["ratio_default"]["low"] <= paper["ratio_default"]["value"] <= paper["ratio_default"]["high"]


def test_a_case_is_decided_again_as_it_was() -> None:
    bodies = processes(NEEDED, [0.9, 0.9])
    lost = body(1, [0.9, 0.9], status="dirty", samples=[])
    other = {"arms": [Setting(1, 5).as_dict(), DEFAULT.as_dict()]}
    failed = [{**entry, **other} for entry in processes(8, [1.0, 1.0], first=50)]
    case = Case(1, WORKLOAD, FLOOR, (*failed, lost, *bodies), OPTIONS.as_dict(), (), {}, "h")
    verdict = judge_of(METHOD)(case)
    assert (verdict.decision, verdict.reason) == ("promote", decide(bodies).reason)
    assert verdict.members == court().members(decide(bodies))
    worse = judge_of(METHOD)(replace(case, confirmations=tuple(failed)))
    assert (worse.decision, worse.members["instances"]) == ("not-proven", 16)
