"""The figures follow from the rows, and what cannot follow is absent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mjolnir.kernel.geometry import Geometry
from mjolnir.research.bench.figures import TARGETS, comparisons, figures, interval, is_void, problems
from mjolnir.research.bench.points import MAIN, MIXED, Spot, spot
from mjolnir.research.bench.rows import TOKEN_MAJOR, Row, merge
from tests.research.bench.made import ceiling_us, row, whole

BIG = spot(MAIN, 64, 8192)


def changed(*rows: Row) -> dict[str, float]:
    return figures(merge(whole(), rows))


def test_a_whole_run_has_every_figure() -> None:
    found = figures(whole())
    assert set(TARGETS) <= set(found)
    assert found["geomean_vs_best_peer"] == pytest.approx(1.5, abs=1e-3)
    assert found["worst_vs_best_peer"] == pytest.approx(1.5, abs=1e-3)
    assert 1.5 < found["worst_vs_best_peer_high"] < 1.54
    assert found["points_compared"] == 44
    assert found["points_below_best_peer"] == 0
    assert all(found[name] == pytest.approx(0.8, abs=1e-3) for name in found if name.startswith("ceiling_share"))
    assert found["us_1x4096"] == 7.2
    assert found["page16_vs_page64_max"] == found["mixed_vs_uniform"] == 1
    assert found["nhd_vs_hnd_max"] == pytest.approx(1.02, abs=1e-3)
    assert found["qlen8_gqa4"] == found["qlen8_gqa8"] == 1


def test_mean_is_geometric_over_the_eight_points_alone() -> None:
    best = 2 * row("mjolnir", BIG, 1.25 * ceiling_us(BIG))["us"]
    rows = [row("flashinfer-xqa", BIG, best), row("flashinfer-tc", BIG, best), row("fa3", BIG, best)]
    assert changed(*rows)["geomean_vs_best_peer"] == pytest.approx(1.5 * (2 / 1.5) ** (1 / 8), abs=1e-3)
    other = spot(Geometry(64, 8), 64, 8192)
    assert changed(*[row(one["kernel"], other, best) for one in rows])["geomean_vs_best_peer"] == pytest.approx(
        1.5, abs=1e-3
    )


def test_the_fastest_right_peer_counts() -> None:
    us = 1.25 * ceiling_us(BIG)
    assert changed(row("fa3", BIG, 1.2 * us))["worst_vs_best_peer"] == pytest.approx(1.2, abs=1e-3)
    assert changed(row("fa3", BIG, 1.2 * us, error=1.5))["worst_vs_best_peer"] == pytest.approx(1.5, abs=1e-3)
    assert changed(row("fa3", BIG, 1.2 * us, error=float("nan")))["worst_vs_best_peer"] == pytest.approx(1.5, abs=1e-3)


def test_a_point_is_below_only_when_its_whole_interval_is() -> None:
    us = 1.25 * ceiling_us(BIG)
    near = changed(row("fa3", BIG, 0.9999 * us))
    assert near["worst_vs_best_peer"] < 1 <= near["worst_vs_best_peer_high"]
    assert near["points_below_best_peer"] == 0
    rows = merge(whole(), [row("fa3", BIG, 0.9 * us)])
    far = figures(rows)
    assert far["points_below_best_peer"] == 1
    assert far["worst_vs_best_peer"] == pytest.approx(0.9, abs=1e-3)
    assert far["worst_vs_best_peer_high"] < 0.93
    (told,) = problems(rows)
    assert told.startswith("mjolnir 32/8xd128,page=64,q=1 64x8192: fa3 is faster, ratio 0.9")


def test_interval_holds_the_ratio_and_is_the_same_again() -> None:
    above, below = [10.0, 11.0, 12.0, 13.0, 14.0] * 6, [5.0, 5.5, 6.0, 6.5, 7.0] * 6
    low, high = interval(above, below)
    assert (low, high) == interval(above, below)
    assert 1.7 < low < 2 < high < 2.4
    assert interval([3.0] * 30, [2.0] * 30) == (1.5, 1.5)


def test_share_is_the_worst_of_the_points_of_a_size() -> None:
    both = [spot(MAIN, 1, 65536), spot(MAIN, 8, 8192)]
    assert {place.kv_bytes for place in both} == {128 << 20}
    found = changed(row("mjolnir", both[1], ceiling_us(both[1]) / 0.7))
    assert found["ceiling_share_128mb"] == pytest.approx(0.7, abs=1e-3)
    assert found["ceiling_share_64mb"] == pytest.approx(0.8, abs=1e-3)


def test_share_of_a_void_ceiling_is_absent() -> None:
    us = ceiling_us(BIG)
    assert not is_void(row("ceiling", BIG, 1.029 * us))
    slow = row("ceiling", BIG, 1.035 * us)
    assert is_void(slow)
    rows = merge(whole(), [slow])
    assert "ceiling_share_1gb" not in figures(rows)
    assert "ceiling_share_512mb" in figures(rows)
    (told,) = problems(rows)
    assert "ceiling 32/8xd128,page=64,q=1 64x8192: void" in told


def test_ours_against_ours_takes_the_worst() -> None:
    paged = spot(replace(MAIN, page_size=16), 1, 4096)
    strided = spot(Geometry(16, 2, head_dim=256), 4, 8192)
    found = changed(
        row("mjolnir", paged, 1.25 * 1.2 * ceiling_us(paged)),
        row("mjolnir", strided, 1.25 * 1.3 * ceiling_us(strided), layout=TOKEN_MAJOR),
        row("mjolnir", spot(replace(MAIN, q_len=8), 64, 4096), 1.25 * 1.1 * ceiling_us(spot(MAIN, 64, 4096))),
        row("mjolnir", spot(Geometry(64, 8, q_len=8), 64, 4096), 1.25 * 1.4 * ceiling_us(spot(MAIN, 64, 4096))),
        row("mjolnir", Spot(MAIN, MIXED), 1.25 * 1.07 * ceiling_us(Spot(MAIN, MIXED))),
    )
    assert found["page16_vs_page64_max"] == pytest.approx(1.2, abs=1e-3)
    assert found["nhd_vs_hnd_max"] == pytest.approx(1.3, abs=1e-3)
    assert found["qlen8_gqa4"] == pytest.approx(1.1, abs=1e-3)
    assert found["qlen8_gqa8"] == pytest.approx(1.4, abs=1e-3)
    assert found["mixed_vs_uniform"] == pytest.approx(1.07, abs=1e-3)


def test_part_of_a_run_claims_nothing_about_the_rest() -> None:
    few = [one for one in whole() if one["lengths"] != "64x8192" and one["page_size"] == 64 and one["q_len"] == 1]
    found = figures(few)
    absent = {"geomean_vs_best_peer", "ceiling_share_1gb", "page16_vs_page64_max", "qlen8_gqa4", "qlen8_gqa8"}
    assert not absent & set(found)
    assert figures([]) == {}


def test_wrong_results_of_ours_are_told_and_compared_with_nothing() -> None:
    rows = merge(whole(), [row("mjolnir", BIG, 1.0, error=2.0)])
    assert len(comparisons(rows)) == 43
    assert "geomean_vs_best_peer" not in figures(rows)
    assert problems(rows) == ["mjolnir 32/8xd128,page=64,q=1 64x8192: the result is wrong (error 2.0)"]


def test_rows_of_two_kernels_are_told() -> None:
    other = {**row("mjolnir", BIG, 1.25 * ceiling_us(BIG)), "kernel_hash": "def"}
    assert problems(merge(whole(), [other])) == ["the rows of mjolnir are of 2 kernels: abc, def"]
