"""Effects of knobs: planted ones are found with their intervals, and knobs that do nothing are named."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.additive import Model
from mjolnir.tuner.effects import effects

DEFAULT = Setting(kv_stages=6).as_dict()
FLOORS = {"all": 0.005, "8": 0.005}
GAINS = {"pdl": {1: -0.03}, "kv_stages": {4: -0.05, 2: 0.10}}
"""Planted log ratios, by knob and value."""


def trial(noise: float = 0.0, **knobs: int) -> dict[str, Any]:
    setting = {**DEFAULT, **knobs}
    log = sum(GAINS.get(name, {}).get(value, 0.0) for name, value in setting.items()) + noise
    ratio = math.exp(log)
    baked = [value for name, value in setting.items() if name not in ("max_splits", "l2_prefetch")]
    plans = [f"plan of {setting['max_splits']}"]
    return {
        "resolved": setting,
        "ratio": ratio,
        "ratios": {"8": ratio},
        "facts": {"binary": str(baked)},
        "plans": plans,
    }


def grid(**values: tuple[int, ...]) -> list[dict[str, Any]]:
    rng = np.random.RandomState(1)
    names = list(values)
    return [
        trial(rng.normal(0, 0.002), **dict(zip(names, row, strict=True))) for row in itertools.product(*values.values())
    ]


def effect(found: dict[str, Any], knob: str, value: int, response: str = "8") -> dict[str, Any]:
    match: dict[str, Any]
    (match,) = [entry for entry in found["knobs"][knob]["effects"][response] if entry["value"] == value]
    return match


def test_pairs_that_differ_in_one_knob_give_its_effect():
    found = effects(grid(pdl=(0, 1), kv_stages=(2, 4, 6), ctas_per_sm=(1, 2, 3)), DEFAULT, FLOORS)
    assert found["settings"] == 18
    pdl = effect(found, "pdl", 1)
    assert (pdl["method"], pdl["pairs"]) == ("pairs", 9)
    assert pdl["low"] <= math.expm1(-0.03) <= pdl["high"]
    assert pdl["change"] == pytest.approx(math.expm1(-0.03), abs=0.003)
    assert found["knobs"]["pdl"]["dead"] is False
    shallow = effect(found, "kv_stages", 2)
    assert (shallow["method"], shallow["pairs"]) == ("pairs", 6)
    assert shallow["low"] <= math.expm1(0.10) <= shallow["high"]
    assert "max_splits" not in found["knobs"], "it did not vary"


def test_a_knob_without_pairs_is_fitted():
    rng = np.random.RandomState(2)
    trials = []
    for number in range(60):
        alone = {"max_splits": 1 << number % 9, "l2_prefetch": number % 8}  # no two settings share both
        drawn = {"pdl": int(rng.randint(2)), "kv_stages": int(rng.choice([2, 4, 6]))}
        trials.append(trial(rng.normal(0, 0.002), **alone, **drawn))
    found = effects(trials, DEFAULT, FLOORS)
    for knob, value in (("pdl", 1), ("kv_stages", 4)):
        entry = effect(found, knob, value)
        assert (entry["method"], entry["pairs"]) == ("model", 0)
        assert entry["change"] == pytest.approx(math.expm1(GAINS[knob][value]), abs=0.003)
        assert 0 < entry["high"] - entry["low"] < 0.02
    assert effects(trials, DEFAULT, FLOORS) == found, "the bootstrap is the same each time"


def test_importance_is_the_share_that_a_knob_explains():
    found = effects(grid(pdl=(0, 1), kv_stages=(2, 6), ctas_per_sm=(1, 2)), DEFAULT, FLOORS)
    share = {knob: facts["importance"]["8"] for knob, facts in found["knobs"].items()}
    assert share["kv_stages"] == pytest.approx(0.1**2 / (0.1**2 + 0.03**2), abs=0.03)
    assert share["pdl"] == pytest.approx(0.03**2 / (0.1**2 + 0.03**2), abs=0.03)
    assert share["ctas_per_sm"] < 0.01
    assert found["explained"]["8"] > 0.99


def test_a_dead_knob_changes_nothing_and_a_slow_or_rebuilt_one_is_alive():
    found = effects(grid(l2_prefetch=(0, 3), ctas_per_sm=(1, 2), max_splits=(0, 4)), DEFAULT, {"all": 0.02, "8": 0.02})
    dead = found["knobs"]["l2_prefetch"]
    assert (dead["dead"], dead["binary_changed"], dead["pairs"]) == (True, False, 4)
    assert found["knobs"]["ctas_per_sm"]["dead"] is False, "its binary differs"
    assert found["knobs"]["max_splits"]["dead"] is False, "its plans differ"
    assert found["knobs"]["max_splits"]["binary_changed"] is False
    slow = [{**t, "ratio": t["ratio"] * 1.03} if t["resolved"]["l2_prefetch"] else t for t in grid(l2_prefetch=(0, 3))]
    assert effects(slow, DEFAULT, FLOORS)["knobs"]["l2_prefetch"]["dead"] is False, "its time differs"


def test_what_nothing_tells_is_not_told():
    assert effects([], DEFAULT, FLOORS) == {"settings": 0, "knobs": {}, "explained": {}}
    failed = [{"resolved": {**DEFAULT, "pdl": 1}, "ratio": None, "ratios": {}}]
    assert effects([*failed, trial()], DEFAULT, FLOORS)["knobs"] == {}
    two = effects([trial(), trial(pdl=1, kv_stages=4)], DEFAULT, FLOORS)
    assert two["knobs"]["pdl"] == {
        "default": 0,
        "pairs": 0,
        "dead": None,
        "binary_changed": None,
        "importance": {},
        "effects": {"all": [], "8": []},
    }


def test_a_setting_measured_twice_counts_once():
    once = [trial(), trial(pdl=1)]
    found = effects([*once, trial(0.01, pdl=1)], DEFAULT, FLOORS)
    assert (found["settings"], found["knobs"]["pdl"]["pairs"]) == (2, 1)


def test_a_contrast_needs_both_values_in_most_samples():
    levels = np.array([[0], [0], [0], [0], [0], [0], [0], [1]])
    (model,) = Model.fit(levels, np.log(np.arange(1.0, 9.0))[:, None])
    assert model.contrast(0, 1, 0) is None, "one setting is missing from a third of the samples"
    assert model.contrast(0, 7, 0) is None


def test_the_bootstrap_covers_the_truth():
    hits = 0
    for seed in range(30):
        rng = np.random.RandomState(seed)
        levels = np.array([[rng.randint(2), rng.choice([2, 4, 6]), 1 << n % 9, n % 8] for n in range(60)])
        truth = -0.03 * levels[:, 0] + np.where(levels[:, 1] == 4, -0.05, 0.0)
        (model,) = Model.fit(levels, (truth + rng.normal(0, 0.002, 60))[:, None])
        for place, value, base, effect_of in ((0, 1, 0, -0.03), (1, 4, 6, -0.05), (1, 2, 6, 0.0)):
            contrast = model.contrast(place, value, base)
            assert contrast is not None
            hits += contrast[1] <= effect_of <= contrast[2]
    assert hits >= 0.9 * 90
