"""The merge: how many rows and partials a warp reads at a time."""

from __future__ import annotations

import pytest

pytest.importorskip("cutlass", reason="the extra `dsl` is not installed")

from mjolnir.kernel.engine import engine_for
from mjolnir.kernel.engines.merge import Merge
from mjolnir.kernel.engines.output import Output
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.plan import MERGE_GROUP


def merge(text: str, warps: int, reads: int) -> Merge:
    geometry = Geometry.parse(text)
    engine = engine_for(geometry, "sm_90a", warps=warps)
    return Merge(geometry, engine, Output(geometry, engine, False, False, "none"), warps, 1, reads)


@pytest.mark.parametrize(
    ("text", "warps", "reads", "ways"),
    [
        ("64/8xd128,q=8", 4, 32, [(4, 8), (2, 16)]),
        ("16/2xd256,q=4", 4, 32, [(2, 8), (1, 16)]),
        ("64/8xd128", 4, 16, [(2, 8), (1, 16)]),
        ("32/8xd128", 4, 16, [(1, 16)]),
        ("64/8xd128", 8, 16, [(1, 16)]),
        ("64/8xd128", 4, 8, [(1, 8)]),
    ],
)
def test_rows_are_read_together_where_their_partials_are_few(
    text: str, warps: int, reads: int, ways: list[tuple[int, int]]
) -> None:
    made = merge(text, warps, reads)
    assert made.ways == ways
    for rows, batch in ways:
        assert rows * batch * made.quads <= reads
        assert batch <= MERGE_GROUP
        assert batch & (batch - 1) == 0  # lanes share out a batch by powers of two
