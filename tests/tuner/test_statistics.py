"""Ratios, floors and intervals against values worked out by hand or by brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from mjolnir.tuner.bench import Timing
from mjolnir.tuner.statistics import (
    LEAST_FLOOR,
    Weights,
    instance_values,
    median_interval,
    noise_floor,
    point_ratios,
)
from mjolnir.tuner.workload import Workload, uniform


def timing(candidate: tuple[int, ...], baseline: tuple[int, ...], empty: tuple[int, ...], point: int = 0) -> Timing:
    return Timing(point, candidate, baseline, empty)


def test_the_chain_is_taken_off_both_arms() -> None:
    ratios = point_ratios([timing((150, 90, 100), (190, 170, 180), (20, 20, 900)), timing((50,), (50,), (10,), 1)])
    assert ratios.tolist() == [80 / 160, 1.0]


def test_points_may_have_different_numbers_of_rounds() -> None:
    ratios = point_ratios([timing((110, 130), (210, 230), (20,)), timing((60,), (110,), (10, 10), 1)])
    assert ratios.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("candidate", "baseline", "empty"),
    [
        ((10,), (5,), (5,)),
        ((5,), (10,), (5,)),
        ((10,), (20,), ()),
        ((math.nan, 9, 9), (20, 20, 20), (1, 1)),
        ((4,), (3,), (5,)),
    ],
)
def test_times_that_make_no_ratio_are_refused(candidate: tuple, baseline: tuple, empty: tuple) -> None:  # type: ignore[type-arg]
    good = timing((30,) * len(candidate), (20,) * len(baseline), (10,) * len(empty or (1,)))
    with pytest.raises(ValueError, match="point 3 has no ratio"):
        point_ratios([good, timing(candidate, baseline, empty, 3)])


def test_means_are_weighted_and_geometric() -> None:
    workload = Workload("w", (uniform(1, 64), uniform(1, 128, 3.0), uniform(4, 64)))
    buckets, overall = Weights(workload).means(np.array([0.5, 2.0, 8.0]))
    assert buckets == pytest.approx({1: 2 ** ((-1 + 3) / 4), 4: 8.0})
    assert overall == pytest.approx(2 ** ((-1 + 3 + 3) / 5))
    assert Weights(workload).of_bucket(1, np.array([1.0, 2.0, 100.0])) == pytest.approx(7 / 4)


def test_the_floor_is_the_95th_percentile_of_the_size_but_never_below_half_a_percent() -> None:
    values = np.array([[-0.02, 0.001], [0.01, -0.001], [0.0, 0.0]])
    floor = noise_floor(values)
    assert floor[0] == pytest.approx(0.01 + 0.9 * 0.01)
    assert floor[1] == LEAST_FLOOR


def test_an_instance_value_is_the_median_of_paired_logarithms() -> None:
    samples = [[[100, 200, 400], [200, 200, 100]], [[50, 50, 50], [100, 100, 100]]]
    assert instance_values(samples, 0, 1) == pytest.approx([0.0, math.log(0.5)])
    with pytest.raises(ValueError, match="not above zero"):
        instance_values([[[0], [5]]], 0, 1)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=40), st.sampled_from([0.8, 0.95, 0.99]))
def test_the_interval_is_the_narrowest_with_its_coverage(values: list[float], confidence: float) -> None:
    interval = median_interval(values, confidence)
    ordered, count = sorted(values), len(values)
    ranks = [r for r in range(1, count // 2 + 1) if 1 - 2 * binom.cdf(r - 1, count, 0.5) >= confidence]
    rank = max(ranks, default=1)
    assert (interval.low, interval.high) == (ordered[rank - 1], ordered[-rank])
    assert interval.coverage == pytest.approx(max(0.0, 1 - 2 * binom.cdf(rank - 1, count, 0.5)))
    assert (interval.coverage >= confidence) == bool(ranks)


def test_the_interval_of_twelve_is_the_third_from_each_end() -> None:
    interval = median_interval(list(range(12)))
    assert (interval.low, interval.high) == (2, 9)
    assert interval.coverage == pytest.approx(1 - 2 * 79 / 4096)
