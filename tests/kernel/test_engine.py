"""Engines: which one runs a geometry, how rows are dealt out, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mjolnir.kernel.device import ARCHITECTURES
from mjolnir.kernel.engine import ENGINES, MOST_ROWS, Engine, engine_for, refusal
from mjolnir.kernel.geometry import HEAD_DIMS, Geometry

geometries = st.builds(
    lambda heads_kv, gqa, head_dim, q_len: Geometry(heads_kv * gqa, heads_kv, head_dim, q_len=q_len),
    st.integers(1, 8),
    st.integers(1, 128),
    st.sampled_from(HEAD_DIMS),
    st.integers(1, 16),
)
architectures = st.sampled_from(ARCHITECTURES)


@given(geometries, architectures, st.sampled_from([None, *ENGINES]))
def test_every_row_has_its_place_in_one_item(geometry: Geometry, arch: str, name: str | None) -> None:
    if name and refusal(name, geometry, arch):
        return
    engine = engine_for(geometry, arch, name)
    assert (engine.blocks - 1) * engine.rows < geometry.rows <= engine.blocks * engine.rows
    assert engine.rows <= MOST_ROWS[engine.name, geometry.head_dim]
    if engine.blocks == 1:
        assert engine.rows == geometry.rows
    else:
        assert engine.rows % 8 == 0


@given(geometries, architectures)
def test_kv_is_read_as_seldom_as_registers_allow(geometry: Geometry, arch: str) -> None:
    engine = engine_for(geometry, arch)
    assert engine.blocks == -(-geometry.rows // MOST_ROWS[engine.name, geometry.head_dim])


@given(geometries, st.sampled_from([4, 8]))
def test_only_hopper_leaves_rows_to_wgmma(geometry: Geometry, warps: int) -> None:
    for arch in ("sm_100a", "sm_110a"):
        assert engine_for(geometry, arch, warps=warps).name == "warp"
    name = engine_for(geometry, "sm_90a", warps=warps).name
    if geometry.head_dim == 128 and geometry.rows <= 8:
        assert name == "warp"
    elif geometry.rows > MOST_ROWS["warp", geometry.head_dim]:
        assert name == "wgmma"
    else:
        assert name == {4: "wgmma", 8: "warp"}[warps]


@given(geometries, st.sampled_from(ARCHITECTURES))
def test_the_number_of_warps_changes_no_items(geometry: Geometry, arch: str) -> None:
    """Plans may be made without knowing it."""
    four, eight = (engine_for(geometry, arch, warps=warps) for warps in (4, 8))
    assert (four.rows, four.blocks) == (eight.rows, eight.blocks)


@pytest.mark.parametrize(
    ("text", "arch", "engine"),
    [
        ("32/8xd128", "sm_90a", Engine("warp", 4, 1)),
        ("8/8xd128", "sm_90a", Engine("warp", 1, 1)),
        ("64/8xd128", "sm_90a", Engine("warp", 8, 1)),
        ("128/8xd128", "sm_90a", Engine("wgmma", 16, 1)),
        ("128/8xd128", "sm_110a", Engine("warp", 16, 1)),
        ("16/2xd256", "sm_90a", Engine("wgmma", 8, 1)),
        ("18/2xd256", "sm_90a", Engine("wgmma", 9, 1)),
        ("32/8xd128,q=8", "sm_90a", Engine("wgmma", 32, 1)),
        ("64/8xd128,q=8", "sm_90a", Engine("wgmma", 64, 1)),
        ("64/8xd128,q=9", "sm_90a", Engine("wgmma", 40, 2)),
        ("64/8xd128,q=16", "sm_90a", Engine("wgmma", 64, 2)),
        ("16/2xd256,q=5", "sm_90a", Engine("wgmma", 24, 2)),
        ("32/8xd128,q=8", "sm_110a", Engine("warp", 16, 2)),
        ("20/4xd128,q=7", "sm_100a", Engine("warp", 16, 3)),
        ("128/1xd128,q=16", "sm_90a", Engine("wgmma", 64, 32)),
    ],
)
def test_rows_and_blocks_by_value(text: str, arch: str, engine: Engine) -> None:
    assert engine_for(Geometry.parse(text), arch) == engine


def test_a_named_engine_is_used_or_refused() -> None:
    wide = Geometry(64, 8, q_len=8)
    assert engine_for(wide, "sm_90a", "warp") == Engine("warp", 16, 4)
    assert engine_for(Geometry(32, 8), "sm_90a", "wgmma") == Engine("wgmma", 4, 1)
    assert refusal("wgmma", wide, "sm_90a") is None
    with pytest.raises(ValueError, match="engine wgmma needs sm_90a, not sm_110a"):
        engine_for(wide, "sm_110a", "wgmma")
    with pytest.raises(ValueError, match="engine 'tcgen05' is not one of warp, wgmma"):
        engine_for(wide, "sm_100a", "tcgen05")
