"""One setting for all context lengths: weighted and robust choices, and their price."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mjolnir.tuner.choice import Choice
from mjolnir.tuner.workload import Workload, uniform

WORKLOAD = Workload("w", (uniform(1, 64), uniform(1, 128, 3.0), uniform(4, 64)))
LOGS = np.log(np.array([[0.80, 1.00, 9.0], [1.04, 0.90, 0.1], [0.90, 0.93, 1.0]]))


def test_the_weighted_choice_minimises_the_weighted_regret() -> None:
    costs = Choice(WORKLOAD, 1, robust=False).costs(LOGS)
    expected = [0.75 * math.log(1 / 0.9), 0.25 * math.log(1.04 / 0.8)]
    assert costs == pytest.approx([*expected, 0.25 * math.log(0.9 / 0.8) + 0.75 * math.log(0.93 / 0.9)])


def test_the_robust_choice_minimises_the_largest() -> None:
    costs = Choice(WORKLOAD, 1, robust=True).costs(LOGS)
    assert costs == pytest.approx([math.log(1 / 0.9), math.log(1.04 / 0.8), math.log(0.9 / 0.8)])


def test_the_two_can_disagree() -> None:
    logs = np.array([[0.0, 0.0, 0.0], [0.2, -0.08, 0.0]])
    weighted, robust = (Choice(WORKLOAD, 1, robust).costs(logs) for robust in (False, True))
    assert weighted == pytest.approx([0.06, 0.05])
    assert robust == pytest.approx([0.08, 0.2])


def test_the_price_is_told_by_length_and_put_together() -> None:
    price = Choice(WORKLOAD, 1, robust=False).price(LOGS, 2)
    assert price["points"] == {"1x64": pytest.approx(0.9 / 0.8 - 1), "1x128": pytest.approx(0.93 / 0.9 - 1)}
    assert price["weighted"] == pytest.approx((0.9 / 0.8) ** 0.25 * (0.93 / 0.9) ** 0.75 - 1)


def test_ties_are_put_together_as_the_regrets_are() -> None:
    floor = np.array([0.01, 0.02, 0.5])
    assert Choice(WORKLOAD, 1, robust=False).tie(floor) == pytest.approx(0.0175)
    assert Choice(WORKLOAD, 1, robust=True).tie(floor) == pytest.approx(0.02)
    assert Choice(WORKLOAD, 1, robust=False).fastest(LOGS) == [0, 1]
