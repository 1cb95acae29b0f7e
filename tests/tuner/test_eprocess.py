"""The sequential sign test against integrals, enumeration and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from mjolnir.tuner.eprocess import (
    HOPELESS,
    OPEN,
    PROVEN,
    Rules,
    chance,
    interval,
    log_evidence,
    rule,
    smallest_provable_gain,
)

RULES = Rules(threshold=240, least=3, most=30)


@given(st.integers(0, 40), st.integers(0, 40))
def test_the_evidence_is_the_mean_of_the_bets(favour: int, against: int) -> None:
    """e = 2 x the integral over p in (1/2, 1) of (2p)^S (2 (1 - p))^(n - S)."""
    mean = quad(lambda p: 2 * (2 * p) ** favour * (2 * (1 - p)) ** against, 0.5, 1, epsrel=1e-10)[0]
    assert math.exp(float(log_evidence(favour, favour + against))) == pytest.approx(mean, rel=1e-7)


@given(st.integers(0, 60), st.integers(0, 60))
def test_a_coin_gains_nothing_on_average(favour: int, against: int) -> None:
    count = favour + against
    here, up, down = np.exp(log_evidence([favour, favour + 1, favour], [count, count + 1, count + 1]))
    assert (up + down) / 2 == pytest.approx(here) if not count else (up + down) / 2 <= here * (1 + 1e-9)
    assert up >= here


def test_how_many_units_are_needed() -> None:
    needed = RULES.needed()
    assert [int(needed[n]) for n in (2, 10, 11, 14, 15, 20, 30)] == [3, 11, 11, 14, 14, 18, 25]
    assert Rules(240, 13, 30).needed()[:14].tolist() == [*range(1, 14), 13]
    assert RULES.attainable
    assert not Rules(240, 3, 10).attainable
    assert [Rules(240, 3, 10).fewest, Rules(240, 13, 30).fewest, Rules(math.inf, 3, 10).fewest] == [11, 13, 2048]


def test_a_test_ends_at_the_first_look_that_decides() -> None:
    series = np.ones((4, 30, 2), dtype=bool)
    series[1, 4, 1] = False  # one unit against one of the claims
    series[2, :6, 0] = False  # six can not be made good: 24 of 30 are too few
    series[3, 9:] = False
    state, looks = rule(series, RULES)
    assert list(zip(state.tolist(), looks.tolist(), strict=True)) == [
        (PROVEN, 11), (PROVEN, 15), (HOPELESS, 6), (HOPELESS, 15),
    ]  # fmt: skip
    assert [int(found) for found in rule(series[0, :10], RULES)] == [OPEN, 10]


def test_both_claims_have_to_hold_at_one_look() -> None:
    series = np.ones((30, 2), dtype=bool)
    series[11:16, 0] = False
    series[:3, 1] = False
    assert rule(series[:, :1], RULES)[0] == PROVEN
    assert rule(series[:, 1:], RULES)[0] == PROVEN
    assert rule(series, RULES)[0] == PROVEN
    series[16, 0] = False
    assert [int(found) for found in rule(series, RULES)] == [HOPELESS, 17]


def test_a_coin_is_proven_as_rarely_as_ville_says() -> None:
    exact = chance(0.5, RULES)
    assert 0.001 < exact < 1 / RULES.threshold
    loose = Rules(threshold=20, least=3, most=30)
    coins = np.random.default_rng(0).random((40_000, 30, 1)) < 0.5
    assert (rule(coins, loose)[0] == PROVEN).mean() == pytest.approx(chance(0.5, loose), abs=0.0025)
    assert chance(0.5, loose) < 1 / 20
    assert chance(1.0, RULES) == 1.0


def test_the_interval_is_what_the_test_does_not_refute() -> None:
    values = np.random.default_rng(1).normal(size=24)
    found = interval(values.tolist())
    grid = np.linspace(-2, 2, 4001)
    refuted = [
        max(log_evidence((values < limit).sum(), 24), log_evidence((values > limit).sum(), 24)) >= math.log(40)
        for limit in grid
    ]
    kept = grid[~np.array(refuted)]
    assert [found.low, found.high] == pytest.approx([kept[0], kept[-1]], abs=2e-3)
    assert found.coverage >= 0.95


def test_too_few_values_make_an_interval_that_says_so() -> None:
    few = interval([3.0, 1.0, 2.0])
    assert [few.low, few.high, few.coverage] == pytest.approx([1.0, 3.0, 1 - 2 / (15 / 4)])
    assert interval([1.0]).coverage == 0.0


def test_intervals_hold_at_every_look() -> None:
    """Of a thousand series that are looked at 30 times, 95 % keep the true median in every interval."""
    draws = np.random.default_rng(2).normal(size=(1000, 30))
    counts = np.arange(1, 31)
    below, above = np.cumsum(draws < 0, axis=1), np.cumsum(draws > 0, axis=1)
    refuted = np.maximum(log_evidence(below, counts), log_evidence(above, counts)) >= math.log(40)
    assert refuted.any(axis=1).mean() < 0.05
    for series in draws[:50]:
        for count in (12, 20, 30):
            found = interval(series[:count].tolist())
            limits = (below, above)
            row = int(np.flatnonzero((draws == series).all(axis=1))[0])
            kept = max(float(log_evidence(side[row, count - 1], count)) for side in limits) < math.log(40)
            assert (found.low <= 0 <= found.high) == kept


def test_the_smallest_provable_gain_has_the_power_it_claims() -> None:
    gain = smallest_provable_gain(0.006, 0.01, RULES, power=0.8)
    draws = np.random.default_rng(0).normal(gain, 0.006, (20_000, 30, 1))
    assert (rule(draws > 0.01, RULES)[0] == PROVEN).mean() == pytest.approx(0.8, abs=0.01)
    assert smallest_provable_gain(0.0, 0.01, RULES) == pytest.approx(0.01)
    assert smallest_provable_gain(0.006, 0.01, Rules(240, 3, 10)) == math.inf
