"""Who is asked for: the bucket with the most to gain, and none is forgotten."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest

from mjolnir.tuner.allocation import PATIENCE, Allocation
from mjolnir.tuner.proposers import Gain
from mjolnir.tuner.stopping import is_flat

BUCKETS = (1, 8, 64)


def asks(allocation: Allocation, gains: dict[int, Gain], numbers: range) -> list[int]:
    chosen = []
    for number in numbers:
        chosen.append(allocation.choose(number, gains.get))
        allocation.note(chosen[-1], number)
    return chosen


def test_asks_are_shared_about_in_proportion_to_the_roots_of_the_gains() -> None:
    gains = {1: Gain(0.01, 0.1), 8: Gain(0.04, 0.1), 64: Gain(0.09, 0.1)}
    found = Counter(asks(Allocation(BUCKETS), gains, range(1, 601)))
    assert [found[bucket] / 600 for bucket in BUCKETS] == pytest.approx([1 / 6, 2 / 6, 3 / 6], abs=0.11)


def test_no_bucket_starves() -> None:
    gains = {1: Gain(0.0, 0.0), 8: Gain(0.04, 0.1), 64: Gain(1e-9, 0.1)}
    chosen = asks(Allocation(BUCKETS), gains, range(1, 121))
    for bucket in BUCKETS:
        places = [-1, *(place for place, found in enumerate(chosen) if found == bucket), len(chosen)]
        assert max(b - a for a, b in itertools.pairwise(places)) <= PATIENCE * len(BUCKETS) + 2
    assert Counter(chosen)[8] > 100


def test_without_a_model_recent_improvement_decides_and_else_the_turn() -> None:
    allocation = Allocation(BUCKETS)
    assert asks(allocation, {}, range(1, 7)) == [1, 8, 64, 1, 8, 64]
    for step in range(5):
        allocation.tell(1, math.log(0.99))
        allocation.tell(8, math.log(0.99 - 0.02 * step))
        allocation.tell(64, None)
    assert asks(allocation, {}, range(7, 12)) == [8] * 5
    for _ in range(20):
        allocation.tell(8, 0.0)
    assert asks(allocation, {}, range(12, 15)) == [1, 64, 8]


def test_flat_means_that_every_bucket_is_below_its_noise() -> None:
    floors = {1: 0.005, 8: 0.01}
    assert is_flat({1: Gain(0.0, 0.004), 8: Gain(0.0, 0.009)}.get, floors)
    assert not is_flat({1: Gain(0.0, 0.006), 8: Gain(0.0, 0.009)}.get, floors)
    assert not is_flat({1: Gain(0.0, 0.004)}.get, floors)
    assert not is_flat({1: Gain(0.0, 0.0)}.get, {})
