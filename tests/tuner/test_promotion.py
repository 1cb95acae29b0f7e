"""Who leads a shoot-out, and the settings and keys that decisions are about."""

from __future__ import annotations

import pytest

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.promotion import Arms, rank, resources, table_key
from mjolnir.tuner.recording import Recording
from mjolnir.tuner.replay import ReplayBench

FAST, DEFAULT, ROW = Setting(1, 4), Setting(2, 6), Setting(2, 4)


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
        ([-0.05, -0.049, 0.0, -0.046], ROW, 3, "what is in force is as fast"),
        ([-0.004, -0.003, 0.0, -0.004], ROW, 3, "what is in force is as fast"),
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


def test_resources_count_ring_then_prefetch_then_how_much_splits_are_limited() -> None:
    ascending = [
        Setting(1, 4, max_splits=0),
        Setting(1, 4, consumer_warps=8, max_splits=0),
        Setting(1, 4, max_splits=8),
        Setting(1, 4, max_splits=1),
        Setting(1, 4, max_splits=0, pdl=0, l2_prefetch=2),
        Setting(2, 3, max_splits=1),
        Setting(2, 4),
    ]
    shuffled = [ascending[place] for place in (3, 0, 6, 5, 1, 4, 2)]
    assert sorted(shuffled, key=resources) == ascending


def test_the_table_key_is_the_designs(modelled: Recording) -> None:
    assert table_key(ReplayBench(modelled), 32) == {
        "arch": "sm_90a", "device": "NVIDIA H200", "sm_count": 132, "mig": "", "heads_q": 32, "heads_kv": 8,
        "head_dim": 128, "page_size": 64, "q_len": 1, "causal": True, "kv_format": "fp8", "q_format": "native",
        "layout": "head-major", "kv": "together", "batch": 32,
    }  # fmt: skip
