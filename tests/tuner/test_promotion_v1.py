"""The first method of proof decides as it did when its rows were made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mjolnir.tuner import promotion, promotion_v1, proof
from mjolnir.tuner.case import Case
from mjolnir.tuner.judges import JUDGES, judge_of
from mjolnir.tuner.workload import Workload, uniform

WORKLOAD = Workload("w", (uniform(1, 64), uniform(1, 128), uniform(4, 64)))
OPTIONS = {"margin": 0.01, "alpha": 0.05, "instances": 12}
RUN = Path(__file__).parents[2] / "research" / "runs" / "h200-decode8" / "ledger.jsonl"


def body(*ratios: Sequence[float], process: int = 1, **facts: Any) -> dict[str, Any]:
    """A confirmation of two points; `ratios[arm]` are the candidate's times over that arm's, by point."""
    samples = [[[100_000] * 3, *([round(100_000 / arm[p])] * 3 for arm in ratios)] for p in range(2)]
    incumbent = 2 if len(ratios) == 2 else None
    base = {"points": [0, 1], "samples": samples, "status": "measured", "process": process}
    return {**base, "default": 1, "incumbent": incumbent, **facts}


def case(*bodies: dict[str, Any], **changes: Any) -> Case:
    made = Case(1, WORKLOAD, np.array([0.02, 0.005, 0.005]), bodies, OPTIONS, (), {"batch": 1}, "k")
    return replace(made, **changes)


def decide(*bodies: dict[str, Any], **changes: Any) -> tuple[str, str]:
    verdict = promotion_v1.judge(case(*bodies, **changes))
    return verdict.decision, verdict.reason


def test_both_methods_are_known_by_name():
    assert judge_of(promotion_v1.METHOD) is promotion_v1.judge
    assert judge_of(promotion.METHOD) is proof.rejudge
    assert len(JUDGES) == 2
    with pytest.raises(ValueError, match="'a feeling' is unknown here"):
        judge_of("a feeling")


def test_every_instance_has_to_be_beyond_the_margin():
    good = body([0.95, 0.95])
    assert decide(*[good] * 12)[0] == "promote"
    for at, decision in ((1 / 1.0101, "promote"), (1 / 1.0099, "not-proven")):
        assert decide(*[good] * 11, body([at, at]))[0] == decision
    assert decide(good, body([1.02, 1.02]))[1] == "instance 2: 2.0% slower than the default, the margin is 1.0%"
    assert decide(body([0.9, 0.9], [0.995, 0.995]))[1].startswith("instance 1: 0.5% faster than the incumbent")


@pytest.mark.parametrize(
    ("bodies", "changes", "reason"),
    [
        ([], {}, "no instance could be measured"),
        ([body([0.9, 0.9])] * 11, {}, "only 11 of 12 instances could be measured"),
        ([body([0.85, 1.007])] * 12, {}, "1x128 is 0.7% slower than the default, its noise is 0.5%"),
        (
            [body([0.9, 0.9])] * 5,
            {"options": {**OPTIONS, "instances": 5}},
            "5 instances cannot prove anything at alpha 0.05 over 2 buckets",
        ),
    ],
)
def test_what_spoke_against_a_promotion(bodies, changes, reason):
    assert decide(*bodies, **changes) == ("not-proven", reason)


def test_attempts_are_counted_on_the_same_key_and_kernel():
    def earlier(key: int, kernel: str, instances: int) -> dict[str, Any]:
        paper = {"kernel_hash": kernel, "instances": instances}
        return {"kind": "promotion", "body": {"key": {"batch": key}, "certificate": paper}}

    records = (earlier(1, "k", 12), earlier(1, "k", 0), earlier(4, "k", 12), earlier(1, "old", 12))
    assert promotion_v1.judge(case(body([0.9, 0.9]), earlier=records)).members["attempt"] == 2


def test_the_committed_decisions_come_out_again():
    records = [json.loads(line) for line in RUN.read_text().splitlines()]
    campaign = records[0]["body"]
    floor = [r["body"]["floor"] for r in records if r["kind"] == "noise"][-1]
    promotions = [record["body"] for record in records if record["kind"] == "promotion"]
    assert len(promotions) == 6
    for made in promotions:
        mine = [r["body"] for r in records if r["kind"] == "confirmation" and r["body"]["bucket"] == made["bucket"]]
        workload = Workload.from_dict(campaign["workload"])
        again = promotion_v1.judge(
            Case(made["bucket"], workload, np.array(floor), tuple(mine), campaign["options"], (), made["key"], "k")
        )
        assert (again.decision, again.reason) == (made["decision"], made["reason"])
        paper = made["certificate"]
        assert again.members["ratio_default"] == pytest.approx(paper["ratio_default"], rel=1e-9)
        assert again.members["worst_point"]["ratio"] == pytest.approx(paper["worst_point"]["ratio"], rel=1e-9)
        for name in ("instances", "processes", "margin", "alpha", "attempt", "ratio_incumbent"):
            assert again.members[name] == paper[name], name
