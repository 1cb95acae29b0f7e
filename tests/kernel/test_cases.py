"""The gate's cases: as hostile as they claim, and such that no slip hides."""

import pickle
from functools import cache

import pytest
import torch
from torch.nn.functional import pad

from mjolnir.kernel.case_inputs import place
from mjolnir.kernel.cases import MAX_TOKENS, Case, expected, gate_cases, make_inputs
from mjolnir.kernel.engine import engine_for
from mjolnir.kernel.formats import FORMATS, contract_query
from mjolnir.kernel.geometry import PAGE_SIZES, Geometry
from mjolnir.kernel.layouts import LAYOUTS, layout_of, placement_of
from mjolnir.kernel.reference import attention_f64
from mjolnir.kernel.tolerance import bound, excess

GRID = 132
GEOMETRIES = (
    Geometry(32, 8),
    Geometry(16, 1, page_size=16, dtype="f16"),
    Geometry(4, 4, page_size=128, dtype="f16"),
    Geometry(12, 4, 256, page_size=32, q_len=4),
    Geometry(10, 1, q_len=16, q_format="fp8", dtype="f16"),
    Geometry(6, 2, q_len=3, causal=False),
)


made = cache(make_inputs)
"""Inputs are only read here, so tests may share them."""


def of_all(*, merge: bool) -> list[Case]:
    return [
        case
        for geometry in GEOMETRIES
        for case in gate_cases(geometry, GRID, merge=merge, q_mul=geometry.q_len > 1, o_mul=geometry.q_len > 1)
    ]


def named(case: Case) -> str:
    return f"{case.geometry.heads_q}-{case.geometry.heads_kv}-{case.geometry.q_len}-{case.name}"


def test_the_cases_cover_every_split_class_length_and_layout() -> None:
    for geometry in GEOMETRIES:
        cases = gate_cases(geometry, GRID)
        most = {case.name: max(_chunks(case).values()) for case in cases}
        assert most["one-long"] > 8
        assert most["halves"] == 2
        assert most["fifths"] == 5
        assert {case.layout for case in cases} == set(LAYOUTS)
        assert {case.scales for case in cases} == {"one", "head", "sequence"}
        assert {case.query for case in cases} == {"plain", "fused", "odd"}
        page, q_len = geometry.page_size, geometry.q_len
        assert {0, 1, 15, 16, 17, 63, 64, 65, page - 1, page, page + 1, q_len - 1, q_len, q_len + 1} <= set(
            cases[0].lengths
        )
        assert cases[0].lengths[-2:] == (0, 0)
        assert all(sum(case.tokens) <= MAX_TOKENS for case in cases)
        assert all(case.max_splits == 1 for case in gate_cases(geometry, GRID, merge=False))


def _chunks(case: Case) -> dict[int, int]:
    counts: dict[int, int] = {}
    for chunk in case.plan(GRID).chunks():
        counts[chunk.item] = counts.get(chunk.item, 0) + 1
    return counts


@pytest.mark.parametrize("grid", [1, 2, 132, 528])
@pytest.mark.parametrize(("heads_kv", "gqa"), [(1, 1), (2, 1), (64, 1), (2, 100)])
def test_the_crowd_puts_several_items_into_a_run(grid: int, heads_kv: int, gqa: int) -> None:
    case = next(case for case in gate_cases(Geometry(heads_kv * gqa, heads_kv), grid) if case.name == "crowd")
    assert engine_for(case.geometry, "sm_90a").blocks == -(-gqa // 64)
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
        assert (case.query == "plain") == here.q.is_contiguous()
        assert (case.query == "odd") == (here.q.stride(0) * here.q.element_size() % 16 != 0)


def test_what_lies_between_the_rows_of_a_query_is_poison() -> None:
    q = torch.ones(5, 32, 128, dtype=torch.bfloat16)
    for where in ("fused", "odd"):
        placed = place(q, where, GEOMETRIES[0])
        assert torch.equal(placed, q)
        rows = placed.as_strided((5, placed.stride(0)), (placed.stride(0), 1))
        assert rows[:, 32 * 128 :].isnan().all()


@cache
def slips_of(case: Case) -> "Slips":
    return Slips(case)


class Slips:
    """Exact attention of a case before o_mul, one sequence at a time, with some of a row's tokens left out or added.

    Every method gives the excess of each row as (heads_kv, rows) or (heads_kv, rows, blocks), inf where it is no slip.
    """

    def __init__(self, case: Case) -> None:
        self.case, self.inputs = case, made(case)
        exact, lse = attention_f64(**{**self.inputs.arguments(), "o_mul": None})
        allowed = bound(exact, case.geometry).double()
        query = contract_query(self.inputs.q, self.inputs.q_mul, case.geometry, torch.float64)
        self.exact, self.allowed, self.query = (self.by_head(x) for x in (exact, allowed, query))
        self.lse = self.by_head(lse[..., None])[..., 0]

    def by_head(self, x: torch.Tensor) -> torch.Tensor:
        geometry = self.case.geometry
        shape = -1, geometry.q_len, geometry.heads_kv, geometry.gqa, x.shape[-1]
        return x.reshape(shape).transpose(1, 2).flatten(2, 3)

    def parts(self, b: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Weights (heads_kv, rows, tokens) by the row's log-sum-exp, of all tokens, seen or not; values (heads_kv,
        tokens, head_dim); and how many tokens each row sees (rows,)."""
        geometry, inputs = self.case.geometry, self.inputs
        index = torch.arange(self.case.tokens[b])
        where = inputs.block_table[b, index // geometry.page_size].long(), index % geometry.page_size
        keys, values = (
            FORMATS["fp8"].dequantise(part[where], torch.float64).transpose(0, 1)
            * scale.double().expand(len(self.query), geometry.heads_kv)[b, :, None, None]
            for part, scale in ((inputs.k, inputs.k_scale), (inputs.v, inputs.v_scale))
        )
        hidden = geometry.q_len - 1 - torch.arange(geometry.rows) // geometry.gqa
        seen = self.case.tokens[b] - hidden * geometry.causal
        return (inputs.scale * self.query[b] @ keys.mT - self.lse[b][..., None]).exp(), values, seen

    def without_blocks(self, b: int, block: int) -> torch.Tensor:
        """Leaving out one block of `block` tokens, for each block."""
        weights, values, seen = self.parts(b)
        weights = weights.where(torch.arange(weights.shape[-1]) < seen[:, None], 0.0)
        missing = -weights.shape[-1] % block
        weights = pad(weights, (0, missing)).unflatten(-1, (-1, block))
        values = pad(values, (0, 0, 0, missing)).unflatten(1, (-1, block))
        slipped = self.off_by(b, -weights.sum(-1), -torch.einsum("hgtk,htkd->hgtd", weights, values))
        return slipped.where(weights.sum(-1) > 0, torch.inf)

    def without_last(self, b: int) -> torch.Tensor:
        """Leaving out the last token that a row sees."""
        return self.token(b, -1, -1)

    def with_next(self, b: int) -> torch.Tensor:
        """Taking the token after the last that a row sees, where there is one."""
        return self.token(b, 0, 1)

    def token(self, b: int, offset: int, sign: int) -> torch.Tensor:
        weights, values, seen = self.parts(b)
        index = (seen + offset).clamp(0, weights.shape[-1] - 1)
        one = sign * weights[:, torch.arange(len(seen)), index]
        slipped = self.off_by(b, one[..., None], (one[..., None] * values[:, index])[:, :, None])[..., 0]
        return slipped.where((seen > 0) & (seen + offset < weights.shape[-1]), torch.inf)

    def off_by(self, b: int, mass: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        exact, allowed = self.exact[b][:, :, None], self.allowed[b][:, :, None]
        rest = (1 + mass)[..., None]
        out = torch.where(rest > 1e-12, (exact + part) / rest, 0.0)
        return ((out - exact).abs() / allowed).amax(-1)


@pytest.mark.parametrize("case", of_all(merge=True), ids=named)
def test_a_mask_off_by_one_shows_in_every_row(case: Case) -> None:
    slips = slips_of(case)
    sequences = [b for b, tokens in enumerate(case.tokens) if tokens]
    assert min(slips.without_last(b).min().item() for b in sequences) > 2
    assert min(slips.with_next(b).min().item() for b in sequences) > 2


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
