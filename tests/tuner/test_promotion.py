"""Decisions over evidence: who leads, what is proven, and what speaks against it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.options import Options
from mjolnir.tuner.promotion import Arms, certificate, judge, rank, resources, table_key
from mjolnir.tuner.recording import Recording
from mjolnir.tuner.replay import ReplayBench
from mjolnir.tuner.workload import Workload, uniform

WORKLOAD = Workload("w", (uniform(1, 64), uniform(1, 128), uniform(4, 64)))
FAST, DEFAULT, ROW = Setting(1, 4), Setting(2, 6), Setting(2, 4)
FLOOR = np.array([0.02, 0.005, 0.005])
OPTIONS = Options()


def body(*ratios: Sequence[float], points: Sequence[int] = (0, 1), **facts: Any) -> dict[str, Any]:
    """A confirmation's body; `ratios[arm]` are the candidate's times over that arm's, by point."""
    samples = [[[100_000] * 3, *([round(100_000 / arm[p])] * 3 for arm in ratios)] for p in range(len(points))]
    return {"points": list(points), "samples": samples, "status": "measured", "process": 1, "correctness": {}, **facts}


def decide(bodies: list[dict[str, Any]], arms: Arms | None = None, options: Options = OPTIONS) -> Any:
    return judge(bodies, arms or Arms.of([FAST], DEFAULT, None), 1, WORKLOAD, FLOOR, options)


def test_twelve_of_twelve_beyond_the_margin_are_a_promotion() -> None:
    decision = decide([body([0.95, 0.97])] * 12)
    assert decision.decision == "promote"
    assert decision.ratio("default")["value"] == pytest.approx(math.sqrt(0.95 * 0.97), abs=1e-4)
    assert decision.worst == ("1x128", pytest.approx(0.97, abs=1e-4))
    assert "12 of 12 instances" in decision.reason


def test_one_instance_at_the_margin_is_enough_to_refuse() -> None:
    for at, expected in ((1 / 1.0101, "promote"), (1 / 1.0099, "not-proven"), (1.02, "not-proven")):
        assert decide([body([0.95, 0.95])] * 11 + [body([at, at])]).decision == expected
    decision = decide([body([0.95, 0.95])] * 3 + [body([1.02, 1.02])])
    assert decision.reason == "instance 4: 1.96% slower than the default, the margin is 1.00%"


def test_fewer_instances_than_planned_prove_nothing() -> None:
    assert decide([body([0.9, 0.9])] * 11).reason == "only 11 of 12 instances could be measured"
    assert decide([]).reason == "no instance could be measured"


def test_instances_have_to_fit_the_error_budget() -> None:
    few = replace(OPTIONS, instances=5)
    assert decide([body([0.9, 0.9])] * 5, options=few).reason.startswith(
        "5 instances cannot prove anything at alpha 0.05"
    )
    enough = replace(OPTIONS, instances=6)
    assert decide([body([0.9, 0.9])] * 6, options=enough).decision == "promote"


def test_a_point_slower_than_its_noise_refuses() -> None:
    assert decide([body([0.85, 1.004])] * 12).decision == "promote"
    decision = decide([body([0.85, 1.007])] * 12)
    assert decision.decision == "not-proven"
    assert decision.reason == "1x128 is 0.7% slower than the default, its noise is 0.5%"
    assert decide([body([1.015, 0.85])] * 12).decision == "promote"


def test_the_row_in_force_has_to_be_beaten_too() -> None:
    arms = Arms.of([FAST], DEFAULT, ROW)
    assert decide([body([0.9, 0.9], [0.95, 0.95])] * 12, arms).decision == "promote"
    decision = decide([body([0.9, 0.9], [0.995, 0.995])] * 12, arms)
    assert decision.reason == "instance 1: 0.50% faster than the incumbent, the margin is 1.00%"
    assert decision.ratio("incumbent")["value"] == pytest.approx(0.995, abs=1e-4)


def test_arms_name_each_setting_once() -> None:
    both = Arms.of([FAST], DEFAULT, DEFAULT)
    assert (both.settings, both.baselines(0)) == ((FAST, DEFAULT), {"default": 1})
    default_first = Arms.of([DEFAULT], DEFAULT, ROW)
    assert (default_first.settings, default_first.baselines(0)) == ((DEFAULT, ROW), {"incumbent": 1})
    assert Arms.of([FAST, ROW], DEFAULT, ROW).baselines(1) == {"default": 2}


@pytest.mark.parametrize(
    ("values", "incumbent", "chosen", "why"),
    [
        ([-0.05, -0.01, 0.0, -0.02], ROW, 0, "the fastest"),
        ([-0.05, -0.049, 0.0, -0.046], ROW, 3, "the row in force is as fast"),
        ([-0.004, -0.003, 0.0, -0.004], ROW, 3, "the row in force is as fast"),
        ([-0.004, -0.003, 0.0], None, 2, "the default is as fast"),
        ([-0.05, -0.048, 0.0], None, 1, "fewest resources of 2"),
        ([-0.05, -0.044, 0.0], None, 0, "the fastest"),
    ],
)
def test_ties_go_to_the_row_then_the_default_then_the_smaller(
    values: list[float], incumbent: Setting | None, chosen: int, why: str
) -> None:
    arms = Arms.of([Setting(2, 5), FAST], DEFAULT, incumbent)
    order, place, reason = rank(arms, values, 0.005)
    assert place == chosen
    assert why in reason
    assert [values[p] for p in order] == sorted(values)


def test_resources_count_ring_then_prefetch_then_splits() -> None:
    ascending = [
        Setting(1, 4, 1),
        Setting(1, 4, 8),
        Setting(1, 4, 0),
        Setting(1, 4, 1, 0, 2),
        Setting(2, 3, 1),
        Setting(2, 4),
    ]
    shuffled = [ascending[place] for place in (3, 0, 5, 1, 4, 2)]
    assert sorted(shuffled, key=resources) == ascending


def test_a_certificate_is_json_and_names_its_evidence(modelled: Recording) -> None:
    bench = ReplayBench(modelled)
    bodies = [body([0.9, 0.9], process=n // 4, correctness={"worst": 0.1}) for n in range(12)]
    paper = certificate(decide(bodies), bench, FLOOR, OPTIONS, bodies)
    assert json.loads(json.dumps(paper)) == paper
    assert (paper["instances"], paper["processes"], paper["alpha"]) == (12, 3, 2**-12)
    assert paper["noise_floor"] == {"1x4096": 0.02, "1x16384": 0.005, "32x4096": 0.005}
    assert (paper["kernel_hash"], paper["policy"]) == ("synthetic", "synthetic")
    assert paper["ratio_default"]["low"] <= paper["ratio_default"]["value"] <= paper["ratio_default"]["high"]


def test_the_table_key_is_the_designs(modelled: Recording) -> None:
    assert table_key(ReplayBench(modelled), 32) == {
        "arch": "sm_90a", "device": "NVIDIA H200", "sm_count": 132, "mig": "", "heads_q": 32, "heads_kv": 8,
        "head_dim": 128, "page_size": 64, "q_len": 1, "causal": True, "kv_format": "fp8", "q_format": "native",
        "layout": "head-major", "kv": "together", "batch": 32,
    }  # fmt: skip
