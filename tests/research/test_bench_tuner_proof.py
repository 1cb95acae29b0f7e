"""The proof's benchmark on a small scale: it finds what is false, and what is true."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mjolnir.kernel.knobs import Setting
from mjolnir.research.bench import tuner_proof
from mjolnir.research.bench.tuner_nulls import NULLS, Nulls
from mjolnir.research.bench.tuner_power import planted, power
from mjolnir.tuner import recording
from mjolnir.tuner.options import Options
from mjolnir.tuner.recording import Recording
from mjolnir.tuner.replay import ReplayBench


@pytest.fixture(scope="module")
def h200() -> Recording:
    return recording.packaged("h200-32x8-d128-p64")


def test_false_promotions_are_rare_and_other_tests_make_many(h200: Recording) -> None:
    nulls = Nulls(h200, Options())
    found = {name: nulls.promoted(name, 150) for name in NULLS}
    assert max(shares["e_process"] for shares in found.values()) <= 0.05
    assert found["margin"]["pairs"] > 0.8
    assert found["margin"]["instances_as_units"] > 0.15
    assert found["one point slower"]["instances_as_units"] > 0.15


def test_the_nulls_would_notice_a_test_that_is_too_lenient(h200: Recording) -> None:
    lenient = Nulls(h200, Options(alpha=0.9))
    assert lenient.promoted("margin", 200)["e_process"] == pytest.approx(0.206, abs=0.09)


def test_planting_makes_one_setting_faster_and_all_others_equal(h200: Recording) -> None:
    winner = Setting(2, 4)
    made = planted(h200, winner, 0.03)
    arrays = made.arrays
    medians = {name: np.median(arrays[name], axis=1) for name in ("candidate", "baseline", "empty")}
    ratios = (medians["candidate"] - medians["empty"]) / (medians["baseline"] - medians["empty"])
    for place, setting in enumerate(made.settings):
        cells = arrays["cell"][0, place]
        if cells[0] >= 0:
            assert ratios[cells] == pytest.approx(1 / 1.03 if setting == winner else 1.0, abs=1e-4)
    assert ReplayBench(made).deviation == ReplayBench(h200).deviation


def test_a_gain_of_three_percent_is_proven_and_one_below_the_margin_is_not(h200: Recording) -> None:
    found = power(h200, 0.03, 3)
    assert found.promoted >= 0.9
    assert found.instances < 40
    assert power(h200, 0.005, 2).promoted == 0.0


def test_the_figures_are_written_with_how_they_came_about(tmp_path: Path) -> None:
    answer = tuner_proof.proof(tmp_path, campaigns=20, power_campaigns=1)
    data = json.loads((tmp_path / "tuner-proof.json").read_text())
    assert data == json.loads(json.dumps(answer.data))
    assert set(data["figures"]) == {"false_promotions_per_1000", "naive_false_promotions_per_1000", "power_3pct"}
    assert data["taken"]["command"] == "mjolnir bench tuner --part proof"
    assert data["taken"]["exact"]["a campaign"] < 0.05
    assert data["figures"]["naive_false_promotions_per_1000"] > data["figures"]["false_promotions_per_1000"]
