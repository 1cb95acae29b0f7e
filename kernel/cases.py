"""Small cases on which a kernel is judged: ragged, hostile, and such that no slip can hide.

A `Case` is a recipe, small and hashable; tensors and expected outputs are made from it wherever they are needed, on
any machine the same. What is hostile about all of them: cells past a sequence's end and pages of no sequence are NaN,
block-table entries past the end are no page numbers, pages are permuted, blocks may lie apart, lengths are ragged with
zeros among them and behind them.

What makes slips show: queries of one KV head share a direction u, and one token in every 16 (those of one warp in
one tile, so every page and every tile has some) and the last valid token are sentinels, whose K points along u and
whose V is larger. A row's softmax is spread over its sentinels, so that each moves the output by many times the
tolerance when it is missed, or when one too many is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mjolnir.kernel.emulator import emulate
from mjolnir.kernel.formats import FORMATS
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.layouts import LAYOUTS, allocate, to_device, views
from mjolnir.kernel.plan import Plan, make_plan

MAX_TOKENS = 4096
"""Most tokens of one case over all its sequences: what the CPU emulates in a blink."""

SCALE_SHAPES = ("one", "head", "sequence")
SPARE_PAGES = 3
STRIDE_OF_SENTINELS = 16
QUERY_SHARE = 0.5
SENTINEL_VALUE = 6.0


@dataclass(frozen=True, slots=True)
class Case:
    """The recipe of one case.

    Attributes:
        name: what it is about.
        geometry: the problem.
        lengths: tokens of each sequence as the kernel sees them; those above the table's capacity are clamped.
        max_splits: the knob with which it is planned.
        margin: tokens by which lengths may have grown since the plan; some of the lengths did.
        table_pages: columns of the block table; 0 = two more than the longest sequence needs.
        layout: cache layout.
        token_major: memory order where it is not the layout's own.
        block_gap: bytes between the cache's blocks.
        scales: shape of k_scale and v_scale: "one", "head" (heads_kv,) or "sequence" (batch, heads_kv).
        fused_query: whether Q is a view of a wider QKV buffer.
        query_gain: factor of all queries, taken off k_scale again: above 2^15 they do not fit f16 as they are.
        seed: of all random numbers.
    """

    name: str
    geometry: Geometry
    lengths: tuple[int, ...]
    max_splits: int
    margin: int = 0
    table_pages: int = 0
    layout: str = "BHN2D"
    token_major: bool | None = None
    block_gap: int = 0
    scales: str = "one"
    fused_query: bool = False
    query_gain: float = 1.0
    seed: int = 0

    @property
    def width(self) -> int:
        """Columns of the block table."""
        return self.table_pages or -(-max(self.lengths) // self.geometry.page_size) + 2

    @property
    def capacity(self) -> int:
        """Tokens that a row of the block table can hold."""
        return self.width * self.geometry.page_size

    @property
    def tokens(self) -> tuple[int, ...]:
        """Tokens of each sequence that there are, after clamping."""
        return tuple(min(length, self.capacity) for length in self.lengths)

    @property
    def planned(self) -> tuple[int, ...]:
        """Lengths to plan with: up to `margin` below those that the kernel sees, and never zero where those are not."""
        growth = (7 * b % (self.margin + 1) for b in range(len(self.lengths)))
        return tuple(max(n - grown, min(n, 1)) for n, grown in zip(self.lengths, growth, strict=True))

    def plan(self, grid: int) -> Plan:
        """The plan for a grid of `grid` CTAs."""
        return make_plan(
            self.planned, self.geometry.heads_kv, grid, self.max_splits, capacity=self.capacity, margin=self.margin
        )


@dataclass(frozen=True, slots=True)
class Inputs:
    """The tensors of a case; shapes as in `mjolnir.kernel.reference`.

    Attributes:
        q: (batch, heads_q, head_dim), a view of a wider buffer where the case says so.
        cache: the cache in its layout, uint8.
        k, v: logical views of it.
        block_table, seq_lens: int32.
        k_scale, v_scale: f32.
        scale: softmax scale.
    """

    q: Tensor
    cache: Tensor
    k: Tensor
    v: Tensor
    block_table: Tensor
    seq_lens: Tensor
    k_scale: Tensor
    v_scale: Tensor
    scale: float
    geometry: Geometry
    layout: str

    def to(self, device: torch.device | str) -> Inputs:
        """The same on `device`, strides and gaps kept."""
        cache = to_device(self.cache, device)
        k, v = views(cache, self.geometry, self.layout)
        return replace(
            self,
            q=to_device(self.q, device),
            cache=cache,
            k=k,
            v=v,
            block_table=self.block_table.to(device),
            seq_lens=self.seq_lens.to(device),
            k_scale=self.k_scale.to(device),
            v_scale=self.v_scale.to(device),
        )

    def arguments(self) -> dict[str, Any]:
        """The arguments that emulator and references share, by name."""
        names = ("q", "k", "v", "block_table", "seq_lens", "geometry", "scale", "k_scale", "v_scale")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class Expected:
    """What a right kernel gives, on the CPU.

    Attributes:
        out: (batch, heads_q, head_dim), bf16 or f16.
        lse: (batch, heads_q), f32, natural logarithm.
    """

    out: Tensor
    lse: Tensor


def gate_cases(
    geometry: Geometry,
    grid: int,
    *,
    merge: bool = True,
    layout: str | None = None,
    token_major: bool | None = None,
    seed: int = 0,
) -> tuple[Case, ...]:
    """The cases of one binary.

    Args:
        geometry: the problem.
        grid: CTAs of its grid, on which it depends how many items share a run.
        merge: whether the binary's decode may be split; without, the cases have max_splits 1 alone.
        layout: layout of all cases; None = the six in turn.
        token_major: memory order of all cases; None = as the layouts are spelled.
        seed: of the first case; the others count on from it.
    """
    shapes = _shapes(geometry, grid)
    return tuple(
        replace(
            case,
            max_splits=case.max_splits if merge else 1,
            layout=layout or LAYOUTS[number % len(LAYOUTS)],
            token_major=token_major,
            block_gap=(0, 256, 16)[number % 3],
            scales=SCALE_SHAPES[number % len(SCALE_SHAPES)],
            fused_query=number % 2 == 1,
            seed=seed + number,
        )
        for number, case in enumerate(shapes)
    )


def _edges(page: int) -> tuple[int, ...]:
    """Lengths around the borders of warps, pages and tiles; zeros within and, as padding rows, at the end."""
    near = {1, 15, 16, 17, 63, 64, 65, page - 1, page, page + 1, 127, 128, 129, 193}
    return (0, *sorted(near), 0, 331, 0, 0)


def _shapes(geometry: Geometry, grid: int) -> tuple[Case, ...]:
    page = geometry.page_size
    return (
        Case("edges", geometry, _edges(page), 0),
        Case("one-long", geometry, (130, 2900, 1, 0, 5 * page + 1, 0), 0),
        Case("halves", geometry, (1027, 700, 3, 513, 64, 0), 2),
        Case("fifths", geometry, (77, 1501, 0, 961, 640), 5),
        Case("grown", geometry, (196, 1, 0, 1027, 65, 577, 129, 12), 0, margin=15),
        Case("clamped", geometry, (1024 + 37, 100, 1023, 0), 3, table_pages=1024 // page),
        Case("crowd", geometry, _crowd(geometry, grid), 0),
        Case("loud", geometry, (300, 65, 16, 0), 3, query_gain=2.0 ** (17 if geometry.dtype == "bf16" else 14)),
    )


def _crowd(geometry: Geometry, grid: int) -> tuple[int, ...]:
    """More items than CTAs, twice over where the tokens suffice, so that runs hold several items."""
    batch = min(-(-9 * grid // (4 * geometry.heads_kv)), MAX_TOKENS // 2)
    longest = min(2 * MAX_TOKENS // batch - 1, 193)
    rng = np.random.default_rng(batch)
    lengths = [int(n) for n in rng.integers(0, longest, batch, endpoint=True)]
    while sum(lengths) > MAX_TOKENS:
        lengths[lengths.index(max(lengths))] = 0
    return tuple(lengths)


def make_inputs(case: Case) -> Inputs:
    """The tensors of `case`, on the CPU."""
    geometry, rng = case.geometry, np.random.default_rng(case.seed)
    batch, heads = len(case.lengths), geometry.heads_kv
    direction = rng.choice(np.array([-1, 1], np.float32), (heads, geometry.head_dim))
    k_scale, v_scale = _scales(case, rng), _scales(case, rng)
    table, num_pages = _block_table(case, rng)
    cache = allocate(case.layout, num_pages, geometry, token_major=case.token_major, block_gap=case.block_gap)
    k, v = views(cache, geometry, case.layout)
    quantise = FORMATS[geometry.kv_format].quantise
    scales = [scale.expand(batch, heads) for scale in (k_scale, v_scale)]
    for b, tokens in enumerate(case.tokens):
        place = torch.arange(tokens)
        where = table[b, place // geometry.page_size].long(), place % geometry.page_size
        for part, real, scale in zip((k, v), _keys_and_values(tokens, direction, rng), scales, strict=True):
            part[where] = quantise(torch.from_numpy(real) / scale[b, :, None])
    return Inputs(
        q=_query(case, direction, rng),
        cache=cache,
        k=k,
        v=v,
        block_table=table,
        seq_lens=torch.tensor(case.lengths, dtype=torch.int32),
        k_scale=k_scale / case.query_gain,
        v_scale=v_scale,
        scale=geometry.head_dim**-0.5,
        geometry=geometry,
        layout=case.layout,
    )


def expected(case: Case, grid: int) -> Expected:
    """The emulator's output for `case` planned on `grid` CTAs, made on the CPU."""
    out, lse = emulate(plan=case.plan(grid), lse=True, **make_inputs(case).arguments())
    assert lse is not None
    return Expected(out, lse)


def _scales(case: Case, rng: np.random.Generator) -> Tensor:
    heads = case.geometry.heads_kv
    shapes: dict[str, tuple[int, ...]] = {"one": (), "head": (heads,), "sequence": (len(case.lengths), heads)}
    return torch.as_tensor(np.exp2(rng.uniform(-1, 1, shapes[case.scales])), dtype=torch.float32)


def _block_table(case: Case, rng: np.random.Generator) -> tuple[Tensor, int]:
    """Permuted pages, and entries past each end that are no pages, or pages of nobody; and how many pages there are."""
    counts = [-(-tokens // case.geometry.page_size) for tokens in case.tokens]
    num_pages = sum(counts) + SPARE_PAGES
    pages = rng.permutation(num_pages)
    hostile = [2**31 - 1, -1, -(2**31), num_pages, int(pages[-1])]
    table = rng.choice(hostile, (len(counts), case.width))
    taken = 0
    for b, count in enumerate(counts):
        table[b, :count] = pages[taken : taken + count]
        taken += count
    return torch.as_tensor(table, dtype=torch.int32), num_pages


def _keys_and_values(
    tokens: int, direction: np.ndarray[Any, Any], rng: np.random.Generator
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """K and V (tokens, heads_kv, head_dim) with their sentinels."""
    k = rng.standard_normal((tokens, *direction.shape), np.float32)
    v = rng.standard_normal((tokens, *direction.shape), np.float32)
    starts = np.arange(0, tokens, STRIDE_OF_SENTINELS)
    chosen = np.minimum(starts + rng.integers(0, STRIDE_OF_SENTINELS, starts.size), tokens - 1)
    sentinels = np.unique(np.append(chosen, tokens - 1)) if tokens else chosen
    k[sentinels] = direction + 0.25 * k[sentinels]
    v[sentinels] *= SENTINEL_VALUE
    return k, v


def _query(case: Case, direction: np.ndarray[Any, Any], rng: np.random.Generator) -> Tensor:
    geometry = case.geometry
    shape = len(case.lengths), geometry.heads_q, geometry.head_dim
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[geometry.dtype]
    own = rng.standard_normal(shape, np.float32)
    shared = np.repeat(direction, geometry.gqa, axis=0)
    real = case.query_gain * (QUERY_SHARE * shared + (1 - QUERY_SHARE**2) ** 0.5 * own)
    q = torch.from_numpy(real).clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max).to(dtype)
    if not case.fused_query:
        return q
    fused = torch.full((shape[0], geometry.heads_q + 2 * geometry.heads_kv, shape[2]), torch.nan, dtype=dtype)
    fused[:, : geometry.heads_q] = q
    return fused[:, : geometry.heads_q]
