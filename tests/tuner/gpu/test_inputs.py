"""The timed inputs: permutations, offsets, written rows, references, and noticing that they were written to."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mjolnir.kernel.geometry import Placement
from mjolnir.kernel.reference import attention_f64
from mjolnir.tuner.gpu import inputs as inputs_of
from mjolnir.tuner.gpu.inputs import HOSTILE_PAGE, LAYOUT, OFFSET_STEP, PointInputs
from mjolnir.tuner.workload import Point
from tests.tuner.gpu.conftest import GEOMETRY

POINT = Point(4, (130, 0, 65, 16))
PLACEMENTS = [Placement(layout, kv) for layout, kv in LAYOUT]


def make(placement: Placement | None = None, seed: int = 5) -> PointInputs:
    return PointInputs(GEOMETRY, placement or Placement(), POINT, width=14, sets=3, device="cpu", seed=seed)


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_tables_deal_every_page_once_and_are_hostile_behind(placement: Placement) -> None:
    inputs = make(placement)
    inputs.renew(1, move=True)
    used = [9, 0, 5, 1]
    for item in inputs.sets:
        table = item.block_table.tolist()
        dealt = [page for row, count in zip(table, used, strict=True) for page in row[:count]]
        assert sorted(dealt) == list(range(15))
        assert all(page == HOSTILE_PAGE for row, count in zip(table, used, strict=True) for page in row[count:])
    assert not torch.equal(inputs.sets[0].block_table, inputs.sets[1].block_table)


@pytest.mark.parametrize("move", [True, False])
@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_the_writer_writes_the_last_token_of_each_sequence(placement: Placement, move: bool) -> None:
    inputs = make(placement)
    inputs.renew(1, move=True)
    inputs.renew(2, move=move)
    for item in inputs.sets:
        before = inputs.pool.clone()
        inputs.pool.index_fill_(0, item.words, 0)
        assert len(item.words) == 3 * 2 * GEOMETRY.heads_kv * GEOMETRY.head_dim // 8
        for row, last in ((0, 129), (2, 64), (3, 15)):
            page = item.block_table[row, last // 16]
            assert (item.k[page, last % 16] == 0).all()
            assert (item.v[page, last % 16] == 0).all()
            assert (item.k[page, last % 16 - 1] != 0).any()
        changed = (inputs.pool != before).sum()
        assert changed <= len(item.words)
        inputs.pool.copy_(before)


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_several_query_tokens_have_rows_of_their_own_in_queries_outputs_and_cache(placement: Placement) -> None:
    geometry = replace(GEOMETRY, q_len=3)
    inputs = PointInputs(geometry, placement, Point(4, (130, 0, 65, 2)), width=14, sets=2, device="cpu", seed=5)
    inputs.renew(1, move=True)
    assert inputs.q.shape == inputs.out.shape == (2, 12, geometry.heads_q, geometry.head_dim)
    out, allowed = inputs.reference()
    assert out.shape == allowed.shape == inputs.out.shape
    assert out[:, 3:6].eq(0).all()  # the sequence without tokens
    item = inputs.sets[0]
    assert len(item.words) == len(set(item.words.tolist())) == (3 + 3 + 2) * 2 * 2 * geometry.head_dim // 8
    inputs.pool.index_fill_(0, item.words, 0)
    for row, tokens in ((0, (129, 128, 127)), (2, (64, 63, 62)), (3, (1, 0))):
        for token in tokens:
            page = item.block_table[row, token // 16]
            assert (item.k[page, token % 16] == 0).all()
            assert (item.v[page, token % 16] == 0).all()
    assert (item.k[item.block_table[0, 126 // 16], 126 % 16] != 0).any()


def test_all_values_are_finite_and_sets_differ() -> None:
    inputs = make()
    inputs.renew(1, move=True)
    codes = inputs.pool.view(torch.uint8)
    assert not (codes & 0x7F == 0x7F).any()
    assert not torch.equal(inputs.sets[0].k, inputs.sets[1].k)
    assert torch.isfinite(inputs.q.float()).all()
    assert 0.9 < float(inputs.q.float().std()) < 1.1


def test_renewing_in_place_keeps_addresses_and_moving_changes_them() -> None:
    inputs = make()
    inputs.renew(1, move=True)
    first, version, table = inputs.sets, inputs.version, inputs.tables.clone()
    addresses = [tensor.data_ptr() for item in first for tensor in (item.k, item.words, item.word_source, item.q)]
    inputs.renew(2, move=False)
    assert inputs.sets is first
    assert addresses == [t.data_ptr() for item in inputs.sets for t in (item.k, item.words, item.word_source, item.q)]
    assert inputs.version == version
    assert inputs.seed == 2
    assert not torch.equal(inputs.tables, table)
    offsets = {item.k.data_ptr() for item in inputs.sets}
    inputs.renew(3, move=True)
    assert inputs.version == version + 1
    assert {item.k.data_ptr() for item in inputs.sets} != offsets
    assert all(item.k.storage_offset() % OFFSET_STEP == 0 for item in inputs.sets)


def test_a_seed_decides_all_that_it_draws() -> None:
    one, two = make(), make()
    for inputs in (one, two):
        inputs.renew(9, move=True)
    assert torch.equal(one.pool, two.pool)
    assert torch.equal(one.tables, two.tables)
    assert torch.equal(one.q_source, two.q_source)
    two.renew(10, move=False)
    assert not torch.equal(one.q_source, two.q_source)


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_the_reference_is_attention_on_what_the_writer_leaves(placement: Placement) -> None:
    inputs = make(placement)
    inputs.renew(1, move=True)
    inputs.renew(2, move=False)
    reference, allowed = inputs.reference()
    for number, item in enumerate(inputs.sets):
        item.q.copy_(item.q_source)
        inputs.pool.index_copy_(0, item.words, item.word_source)
        right, _ = attention_f64(
            item.q, item.k, item.v, item.block_table, inputs.seq_lens, geometry=GEOMETRY,
            scale=inputs.scale, k_scale=inputs.k_scale, v_scale=inputs.v_scale,
        )  # fmt: skip
        assert (reference[number] - right).abs().max() < 1e-5
        assert (reference[number][1] == 0).all()
    assert (allowed[:, 0] > 0).all()
    assert (allowed[:, 1] == 0).all()
    assert not inputs.changed()


def test_a_pool_of_several_chunks_is_finite_and_no_page_comes_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_of, "FILL_ELEMENTS", 1 << 13)
    inputs = make()
    codes = inputs.pool.view(torch.uint8)
    assert not (codes & 0x7F == 0x7F).any()
    assert 0.9 < float(codes.view(torch.float8_e4m3fn).float().std()) < 1.1
    pages = codes[: len(codes) // 256 * 256].view(-1, 256)
    assert len(pages.unique(dim=0)) == len(pages)


def test_what_is_written_to_is_named() -> None:
    inputs = make()
    inputs.renew(1, move=True)
    assert inputs.changed() == ""
    inputs.sets[2].v[3, 1, 0, 5] ^= 1
    assert inputs.changed() == "KV cache"
    inputs.tables[0, 0, 13] -= 1
    inputs.q[1, 0, 0, 0] += 1
    assert inputs.changed() == "KV cache, block table, queries"
