"""The gate's cases: as hostile as they claim, and such that no slip hides."""

import pickle
from functools import cache

import pytest
import torch
from torch.nn.functional import pad

from mjolnir.kernel.cases import MAX_TOKENS, Case, expected, gate_cases, make_inputs
from mjolnir.kernel.formats import FORMATS
from mjolnir.kernel.geometry import PAGE_SIZES, Geometry
from mjolnir.kernel.layouts import LAYOUTS, layout_of, placement_of
from mjolnir.kernel.reference import attention_f64
from mjolnir.kernel.tolerance import bound, excess

GRID = 132
GEOMETRIES = (
    Geometry(32, 8),
    Geometry(16, 1, page_size=16, dtype="f16"),
    Geometry(4, 4, page_size=128, dtype="f16"),
)


made = cache(make_inputs)
"""Inputs are only read here, so tests may share them."""


def of_all(*, merge: bool) -> list[Case]:
    return [case for geometry in GEOMETRIES for case in gate_cases(geometry, GRID, merge=merge)]


def named(case: Case) -> str:
    return f"{case.geometry.heads_q}-{case.geometry.heads_kv}-{case.name}"


def test_the_cases_cover_every_split_class_length_and_layout() -> None:
    for geometry in GEOMETRIES:
        cases = gate_cases(geometry, GRID)
        most = {case.name: max(_chunks(case).values()) for case in cases}
        assert most["one-long"] > 8
        assert most["halves"] == 2
        assert most["fifths"] == 5
        assert {case.layout for case in cases} == set(LAYOUTS)
        assert {case.scales for case in cases} == {"one", "head", "sequence"}
        assert {case.fused_query for case in cases} == {True, False}
        page = geometry.page_size
        assert {0, 1, 15, 16, 17, 63, 64, 65, page - 1, page, page + 1} <= set(cases[0].lengths)
        assert cases[0].lengths[-2:] == (0, 0)
        assert all(sum(case.tokens) <= MAX_TOKENS for case in cases)
        assert all(case.max_splits == 1 for case in gate_cases(geometry, GRID, merge=False))


def _chunks(case: Case) -> dict[int, int]:
    counts: dict[int, int] = {}
    for chunk in case.plan(GRID).chunks():
        counts[chunk.item] = counts.get(chunk.item, 0) + 1
    return counts


@pytest.mark.parametrize("grid", [1, 2, 132, 528])
@pytest.mark.parametrize("heads_kv", [1, 2, 64])
def test_the_crowd_puts_several_items_into_a_run(grid: int, heads_kv: int) -> None:
    case = next(case for case in gate_cases(Geometry(heads_kv, heads_kv), grid) if case.name == "crowd")
    assert sum(case.tokens) <= MAX_TOKENS
    runs: dict[int, set[int]] = {}
    for chunk in case.plan(grid).chunks():
        runs.setdefault(chunk.cta, set()).add(chunk.item)
    assert max(map(len, runs.values())) >= 2


def test_some_lengths_grew_since_the_plan_and_into_another_tile() -> None:
    case = next(case for case in gate_cases(GEOMETRIES[0], GRID) if case.name == "grown")
    grown = [seen - planned for seen, planned in zip(case.lengths, case.planned, strict=True)]
    assert 0 in grown
    assert 0 < max(grown) <= case.margin
    assert any(-(-s // 64) > -(-p // 64) for s, p in zip(case.lengths, case.planned, strict=True))
    assert all(-(-s // 64) <= tiles for s, tiles in zip(case.tokens, case.plan(GRID).tiles, strict=True) if s)


def test_the_layout_can_be_chosen() -> None:
    for token_major in (False, True):
        for case in gate_cases(GEOMETRIES[0], GRID, layout="BHN2D", token_major=token_major)[::3]:
            inputs = make_inputs(case)
            assert layout_of(inputs.cache.shape, case.geometry) == "BHN2D"
            assert placement_of(inputs.k, inputs.v).layout == ("token-major" if token_major else "head-major")


@pytest.mark.parametrize("case", of_all(merge=True), ids=named)
def test_everything_that_must_not_be_read_is_poison(case: Case) -> None:
    inputs, page = made(case), case.geometry.page_size
    used = torch.zeros(inputs.k.shape[:2], dtype=torch.bool)
    for row, tokens in zip(inputs.block_table.long(), case.tokens, strict=True):
        place = torch.arange(tokens)
        assert not used[row[place // page], place % page].any()
        used[row[place // page], place % page] = True
        assert row.numel() * page >= tokens
    for part in (inputs.k, inputs.v):
        number = FORMATS["fp8"].dequantise(part).isfinite()
        assert number[used].all()
        assert not number[~used].any()
    assert (~used).all(1).sum() >= 3
    past = torch.arange(case.width) * page >= torch.tensor(case.tokens)[:, None]
    hostile = inputs.block_table[past]
    if hostile.numel() > 20:
        assert {2**31 - 1, -1, -(2**31)} <= set(hostile.tolist())


def test_huge_queries_do_not_fit_f16() -> None:
    loud = next(case for case in gate_cases(GEOMETRIES[0], GRID) if case.name == "loud")
    assert make_inputs(loud).q.half().isinf().any()
    assert make_inputs(loud).k_scale.max() < 1e-3


def test_a_recipe_makes_the_same_tensors_everywhere() -> None:
    case = gate_cases(GEOMETRIES[0], GRID, seed=4)[3]
    again = pickle.loads(pickle.dumps(case))
    assert again == case
    one, two, other = make_inputs(case), make_inputs(again), make_inputs(gate_cases(GEOMETRIES[0], GRID, seed=5)[3])
    for name in ("q", "cache", "block_table", "seq_lens", "k_scale", "v_scale"):
        assert torch.equal(getattr(one, name), getattr(two, name))
    assert not torch.equal(one.q, other.q)


def test_moving_keeps_what_a_kernel_would_notice() -> None:
    for case in gate_cases(GEOMETRIES[0], GRID):
        here = made(case)
        there = here.to("cpu")
        for name in ("q", "cache", "k", "v"):
            assert getattr(there, name).stride() == getattr(here, name).stride()
            assert torch.equal(getattr(there, name), getattr(here, name))
        assert not case.fused_query or here.q.stride(0) > here.q[0].numel()


@cache
def slips_of(case: Case) -> "Slips":
    return Slips(case)


class Slips:
    """Exact attention of a case, one sequence at a time, with some of its tokens left out."""

    def __init__(self, case: Case) -> None:
        self.case, self.inputs = case, made(case)
        self.exact, _ = attention_f64(**self.inputs.arguments())
        self.allowed = bound(self.exact, case.geometry)

    def parts(self, b: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Softmax weights (heads_kv, gqa, tokens) and values (heads_kv, tokens, head_dim) of sequence b."""
        geometry, inputs = self.case.geometry, self.inputs
        place = torch.arange(self.case.tokens[b])
        where = inputs.block_table[b, place // geometry.page_size].long(), place % geometry.page_size
        keys, values = (
            FORMATS["fp8"].dequantise(part[where], torch.float64).transpose(0, 1)
            * scale.double().expand(len(inputs.q), geometry.heads_kv)[b, :, None, None]
            for part, scale in ((inputs.k, inputs.k_scale), (inputs.v, inputs.v_scale))
        )
        query = inputs.q[b].double().view(geometry.heads_kv, geometry.gqa, -1)
        return (inputs.scale * query @ keys.mT).softmax(-1), values

    def without_blocks(self, b: int, block: int) -> torch.Tensor:
        """Excess (heads_kv, gqa, blocks) of leaving out one block of `block` tokens, for each block."""
        weights, values = self.parts(b)
        missing = -weights.shape[-1] % block
        weights = pad(weights, (0, missing)).unflatten(-1, (-1, block))
        values = pad(values, (0, 0, 0, missing)).unflatten(1, (-1, block))
        return self._without(b, weights.sum(-1), torch.einsum("hgtk,htkd->hgtd", weights, values))

    def without_last(self, b: int) -> torch.Tensor:
        """Excess (heads_kv, gqa, 1) of leaving out the last token."""
        weights, values = self.parts(b)
        last = weights[..., -1:]
        return self._without(b, last, last[..., None] * values[:, None, -1:])

    def _without(self, b: int, mass: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        shape = (*mass.shape[:2], 1, -1)
        exact, allowed = self.exact[b].view(shape), self.allowed[b].view(shape)
        rest = (1 - mass)[..., None]
        out = torch.where(rest > 1e-12, (exact - part) / rest, 0.0)
        return ((out - exact).abs() / allowed).amax(-1)


@pytest.mark.parametrize("case", of_all(merge=True), ids=named)
def test_a_mask_off_by_one_shows_in_every_row(case: Case) -> None:
    slips = slips_of(case)
    worst = [slips.without_last(b).min().item() for b, tokens in enumerate(case.tokens) if tokens]
    assert min(worst) > 2


@pytest.mark.parametrize("case", of_all(merge=True), ids=named)
@pytest.mark.parametrize("block", [64, 16])
def test_a_skipped_tile_or_part_of_a_page_shows_in_every_row(case: Case, block: int) -> None:
    slips = slips_of(case)
    longest = sorted(range(len(case.tokens)), key=lambda b: -case.tokens[b])[:3]
    assert min(slips.without_blocks(b, block).min().item() for b in longest) > 1.5


@pytest.mark.parametrize("page", PAGE_SIZES)
def test_one_token_too_many_gives_nan_or_is_another_page(page: int) -> None:
    """Wherever a sequence ends within a page, the cell after its last token is poison to a kernel that takes it."""
    case = gate_cases(Geometry(8, 2, page_size=page), GRID)[0]
    inputs = make_inputs(case)
    lengths = [tokens for tokens in case.tokens if tokens % page]
    assert lengths
    for b, tokens in enumerate(case.tokens):
        if tokens % page:
            cell = int(inputs.block_table[b, tokens // page]), tokens % page
            assert FORMATS["fp8"].dequantise(inputs.v[cell]).isnan().all()


def test_an_output_that_is_not_written_is_infinitely_wrong() -> None:
    case = gate_cases(GEOMETRIES[0], GRID)[0]
    out = expected(case, GRID).out
    unwritten = out.clone()
    unwritten[3] = torch.nan
    assert excess(unwritten, out, case.geometry) == torch.inf
    stale = torch.zeros_like(out)
    assert excess(stale, out, case.geometry) > 10
