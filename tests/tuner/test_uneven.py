"""What a split limit would cost a batch with one long sequence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mjolnir.kernel.device import H200
from mjolnir.kernel.geometry import TILE, Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.uneven import LONG, MOST, SHORT, serves, stretch, worst

GEOMETRY = Geometry(32, 8)


def test_a_sequence_that_may_not_be_split_is_one_ctas_run() -> None:
    tiles = 8 * (LONG + 31 * SHORT) // TILE
    alone, even = LONG // TILE, tiles / (2 * H200.sm_count)
    assert stretch(Setting(2, max_splits=1), 32, GEOMETRY, H200) == pytest.approx(alone / even, rel=0.15)
    assert stretch(Setting(1, max_splits=1), 32, GEOMETRY, H200) == pytest.approx(alone / even / 2, rel=0.15)


@pytest.mark.parametrize(
    ("limit", "batch", "expected"),
    [(0, 32, True), (1, 32, False), (16, 2, False), (512, 32, True), (1, 1, True), (16, 1, True), (1, 256, False)],
)
def test_which_limits_may_be_rows(limit: int, batch: int, expected: bool) -> None:
    assert serves(Setting(2, max_splits=limit), batch, GEOMETRY, H200) is expected


@given(
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2, 4, 16, 64, 512]),
    st.integers(2, 64),
    st.sampled_from([GEOMETRY, Geometry(16, 2, 256), Geometry(64, 8, q_len=4)]),
)
def test_no_limit_always_serves_and_a_limit_only_lengthens(
    ctas: int, limit: int, batch: int, geometry: Geometry
) -> None:
    limited = stretch(Setting(ctas, max_splits=limit), batch, geometry, H200)
    over_all = worst(Setting(ctas, max_splits=limit), batch, geometry, H200)
    assert serves(Setting(ctas), batch, geometry, H200)
    assert serves(Setting(ctas, max_splits=limit), batch, geometry, H200) == (over_all <= MOST)
    assert over_all >= limited >= 0.8  # runs are rounded to whole items where that costs little


def test_a_bucket_is_looked_at_from_its_smallest_batch_on() -> None:
    """The fewer short sequences there are, the more of the whole is the long one's."""
    setting = Setting(1, 4, max_splits=16)
    assert stretch(setting, 16, GEOMETRY, H200) <= MOST < stretch(setting, 9, GEOMETRY, H200)
    assert worst(setting, 16, GEOMETRY, H200) == stretch(setting, 9, GEOMETRY, H200)
    assert not serves(setting, 16, GEOMETRY, H200)
