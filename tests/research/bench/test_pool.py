"""KV sets are views of one block, and the reference beside the times is attention."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.layouts import placement_of
from mjolnir.kernel.reference import attention_f64
from mjolnir.research.bench.points import Spot
from mjolnir.research.bench.pool import LAYOUTS, Pool
from mjolnir.research.bench.truth import attention
from tests.research.bench.made import SMALL

MIXED = Spot(SMALL, (70, 16, 33))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sets_lie_in_one_block_as_the_layout_says(layout: str) -> None:
    pool = Pool("cpu", rotation=160_000)
    sets = pool.sets(MIXED, layout)
    size = 9 * 16 * SMALL.kv_bytes_per_token
    assert len(sets.items) == math.ceil(160_000 / size) == 3
    starts = [item.memory.data_ptr() for item in sets.items]
    assert [start - starts[0] for start in starts] == [number * size for number in range(len(starts))]
    assert all(item.cache.data_ptr() == item.memory.data_ptr() for item in sets.items)
    k, v = sets.items[1].k, sets.items[1].v
    assert k.shape == v.shape == (9, 16, 2, 128)
    assert placement_of(k, v).layout == ("head-major" if "HND" in layout or "head-major" in layout else "token-major")
    assert {layout: placement_of(k, v).kv} == {layout: "together"}
    assert k.data_ptr() != v.data_ptr()


def test_codes_are_finite_and_pages_are_dealt_out_once() -> None:
    pool = Pool("cpu", rotation=1)
    item, other = pool.sets(MIXED, "B2NHD").items
    values = item.memory.view(torch.float8_e4m3fn).float()
    assert values.isfinite().all()
    assert values.std() == pytest.approx(1, abs=0.03)
    used = torch.cat([row[:count] for row, count in zip(item.block_table, MIXED.pages, strict=True)])
    assert sorted(used.tolist()) == list(range(9))
    assert item.block_table[1, 1:].tolist() == [0] * 4
    assert not torch.equal(item.block_table, other.block_table)
    assert not torch.equal(item.q, other.q)
    assert item.seq_lens.tolist() == [70, 16, 33]


def test_a_pool_grows_and_draws_the_same_again() -> None:
    small, large = Pool("cpu", rotation=1), Pool("cpu", rotation=1)
    wanted = large.sets(Spot(SMALL, (256,) * 4), "B2NHD").items[0].memory.clone()
    small.sets(MIXED, "B2NHD")
    assert torch.equal(small.sets(Spot(SMALL, (256,) * 4), "B2NHD").items[0].memory, wanted)


@pytest.mark.parametrize(
    "geometry", [SMALL, replace(SMALL, q_len=4), Geometry(2, 2, 256, 16, 4, causal=False)], ids=str
)
def test_truth_is_attention(geometry: Geometry) -> None:
    place = Spot(geometry, (70, 3, 33))
    item = Pool("cpu", rotation=1).sets(place, "BHN2D head-major").items[0]
    found = attention(item.q, item.k, item.v, item.block_table, place.contexts, geometry)
    one = torch.ones(())
    wanted, _ = attention_f64(
        item.q, item.k, item.v, item.block_table, item.seq_lens, geometry=geometry, scale=geometry.head_dim**-0.5,
        k_scale=one, v_scale=one,
    )  # fmt: skip
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def test_error_is_relative_and_of_the_first_and_last_set() -> None:
    sets = Pool("cpu", rotation=160_000).sets(MIXED, "B2NHD")
    outs = [
        attention(item.q, item.k, item.v, item.block_table, MIXED.contexts, SMALL).to(item.q.dtype)
        for item in sets.items
    ]
    assert 0 < sets.error(outs) < 0.05
    rms = float(outs[-1].double().square().mean().sqrt())
    outs[-1][2, 1, 5] += 2 * rms
    assert sets.error(outs) == pytest.approx(2, abs=0.05)
    outs[0][0, 0, 0] = torch.nan
    assert math.isnan(sets.error(outs))
    assert all(out.isnan().all() for out in sets.outs())
