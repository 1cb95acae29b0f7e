"""The problems of the kernel bench are those that are promised, and options choose among them."""

from __future__ import annotations

from collections import Counter

import pytest

from mjolnir.kernel.geometry import Geometry
from mjolnir.research.answer import UsageFailure
from mjolnir.research.bench.points import EIGHT, MAIN, MIXED, UNIFORM, Spot, parse, select, spot, spots


def test_every_geometry_has_its_points() -> None:
    names = Counter(str(place).split()[0] for place in spots())
    assert names == {
        "32/8xd128,page=64,q=1": 8 + 2 + 1,  # the eight, mixed and uniform, 64 x 4096
        "32/8xd128,page=16,q=1": 8,
        "64/8xd128,page=64,q=1": 8 + 1,
        "16/2xd256,page=64,q=1": 8,
        "32/8xd128,page=64,q=4": 2,
        "32/8xd128,page=64,q=8": 2,
        "64/8xd128,page=64,q=4": 2,
        "64/8xd128,page=64,q=8": 2,
    }
    assert [(place.batch, place.context) for place in spots()[:8]] == list(EIGHT)


def test_mixed_lengths_have_the_tokens_of_the_uniform_ones() -> None:
    mixed, uniform = Spot(MAIN, MIXED), Spot(MAIN, UNIFORM)
    assert (mixed.lengths, uniform.lengths) == ("1x65536+31x4096", "32x6016")
    assert mixed.kv_bytes == uniform.kv_bytes == 192_512 * 2048
    assert mixed.context == uniform.context == 6016
    assert (mixed.width, mixed.pages[:2]) == (1024, (1024, 64))


def test_bytes_are_those_of_the_named_sizes() -> None:
    sizes = {place.lengths: place.kv_bytes >> 20 for place in spots()[:8]}
    assert sizes == {
        "1x4096": 8, "1x16384": 32, "1x65536": 128, "4x8192": 64, "8x8192": 128, "32x4096": 256, "64x8192": 1024,
        "128x2048": 512,
    }  # fmt: skip


def test_options_choose() -> None:
    assert select([], []) == spots()
    assert {place.geometry for place in select([Geometry(64, 8)], [])} == {Geometry(64, 8)}
    assert [str(place) for place in select([], ["64x4096"])] == [
        f"{heads}xd128,page=64,q={q} 64x4096" for heads in ("32/8", "64/8") for q in (1, 4, 8)
    ]
    assert select([MAIN], ["3x77+1x5"]) == (Spot(MAIN, (77, 77, 77, 5)),)
    other = Geometry(8, 8, page_size=32)
    assert select([other], []) == tuple(spot(other, *point) for point in EIGHT)


@pytest.mark.parametrize("text", ["8", "8x", "0x5", "5x0", "axb", "8x8192+", "1x99999999", "999999x1"])
def test_a_point_that_is_none_is_told(text: str) -> None:
    with pytest.raises(UsageFailure, match="--point"):
        parse(text)


def test_a_point_of_no_geometry_is_told() -> None:
    with pytest.raises(UsageFailure, match="no geometry is timed at 5x5; name one with --geometry"):
        select([], ["5x5"])
