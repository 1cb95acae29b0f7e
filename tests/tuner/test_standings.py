"""Leads by the mean of all instances."""

from __future__ import annotations

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.session import Best
from mjolnir.tuner.standings import Standings

A, B, C, D = Setting(1, 2), Setting(1, 4), Setting(2, 2), Setting(2, 4)


def leads(best: dict[int, Best], bucket: int) -> tuple[Setting, int, float]:
    return best[bucket].setting, best[bucket].trial, round(best[bucket].ratio, 9)


def test_a_lead_that_is_measured_again_can_lose_its_place() -> None:
    best: dict[int, Best] = {}
    standings = Standings(best)
    assert standings.would_lead(A, {1: 0.90, 8: 1.0}) == [1, 8]
    standings.add(A, {1: 0.90, 8: 1.0}, 1)
    assert standings.would_lead(B, {1: 0.91, 8: 0.99}) == [8]
    standings.add(B, {1: 0.91, 8: 0.99}, 2)
    assert (leads(best, 1), leads(best, 8)) == ((A, 1, 0.90), (B, 2, 0.99))
    assert standings.would_lead(A, {1: 0.94}) == []
    standings.add(A, {1: 0.94}, 3)
    assert leads(best, 1) == (B, 2, 0.91)
    standings.add(A, {1: 0.85}, 4)
    assert leads(best, 1) == (A, 4, round((0.90 * 0.94 * 0.85) ** (1 / 3), 9))


def test_contenders_are_near_the_lead_and_not_measured_often() -> None:
    standings = Standings({})
    for trial, (setting, ratio) in enumerate([(A, 0.900), (B, 0.905), (C, 0.907), (D, 0.908)], 1):
        standings.add(setting, {1: ratio}, trial)
    assert [standings.contends(1, s, 0.005) for s in (A, B, C, D)] == [True, True, True, False]
    assert [standings.contends(1, s, 0.003) for s in (A, B, C, D)] == [True, True, False, False]
    assert not standings.contends(8, A, 0.005)
    standings.add(A, {1: 0.9}, 5)
    standings.add(A, {1: 0.9}, 6)
    assert not standings.contends(1, A, 0.005)
