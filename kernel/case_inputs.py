"""The tensors of a case, hostile and such that no slip can hide.

What is hostile about all of them: cells past a sequence's end and pages of no sequence are NaN, block-table entries
past the end are no page numbers, pages are permuted, blocks may lie apart.

What makes slips show: queries of one KV head share a direction u, and one token in every 16 (those of one warp in
one tile, so every page and every tile has some) and the last q_len tokens (one of which is the last that a causal row
sees) are sentinels, whose K points along u and whose V is larger. A row's softmax is spread over its sentinels, so
that each moves the output by many times the tolerance when it is missed, or when one too many is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mjolnir.kernel.case import Case
from mjolnir.kernel.formats import DTYPES, FORMATS
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.layouts import allocate, to_device, views

SPARE_PAGES = 3
STRIDE_OF_SENTINELS = 16
QUERY_SHARE = 0.5
SENTINEL_VALUE = 6.0
ODD_ELEMENTS = 3
"""Elements by which the token stride of an odd query is longer than its heads."""

ARGUMENTS = ("q", "k", "v", "block_table", "seq_lens", "geometry", "scale", "k_scale", "v_scale", "q_mul", "o_mul")


@dataclass(frozen=True, slots=True)
class Inputs:
    """The tensors of a case; shapes as in `mjolnir.kernel.reference`.

    Attributes:
        q: (tokens, heads_q, head_dim), a view of a wider buffer where the case says so.
        cache: the cache in its layout, uint8.
        k, v: logical views of it.
        block_table, seq_lens: int32.
        k_scale, v_scale: f32.
        scale: softmax scale.
        geometry, layout: of the problem and the cache.
        q_mul, o_mul: f32 (heads_q, head_dim), or None.
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
    q_mul: Tensor | None = None
    o_mul: Tensor | None = None

    def to(self, device: torch.device | str) -> Inputs:
        """The same on `device`, strides and gaps kept."""
        cache = to_device(self.cache, device)
        k, v = views(cache, self.geometry, self.layout)
        names = ("block_table", "seq_lens", "k_scale", "v_scale", "q_mul", "o_mul")
        moved: dict[str, Any] = {name: None if (x := getattr(self, name)) is None else x.to(device) for name in names}
        return replace(self, q=to_device(self.q, device), cache=cache, k=k, v=v, **moved)

    def arguments(self) -> dict[str, Any]:
        """The arguments that emulator and references share, by name."""
        return {name: getattr(self, name) for name in ARGUMENTS}


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
        for part, real, scale in zip((k, v), _keys_and_values(tokens, case, direction, rng), scales, strict=True):
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
        scale=case.scale,
        geometry=geometry,
        layout=case.layout,
        q_mul=_factors(case, rng, 1.0, signed=False) if case.q_mul else None,
        o_mul=_factors(case, rng, 2.0, signed=True) if case.o_mul else None,
    )


def place(q: Tensor, where: str, geometry: Geometry) -> Tensor:
    """Put Q or O (tokens, heads_q, head_dim) where `Case.query` says; what lies between its rows is NaN."""
    if where == "plain":
        return q
    tokens, width = len(q), geometry.heads_q * geometry.head_dim
    more = ODD_ELEMENTS if where == "odd" else 2 * geometry.heads_kv * geometry.head_dim
    memory = torch.full((tokens, width + more), torch.nan, dtype=q.dtype, device=q.device)
    return memory[:, :width].view(q.shape).copy_(q)


def _factors(case: Case, rng: np.random.Generator, octaves: float, *, signed: bool) -> Tensor:
    """f32 (heads_q, head_dim) within that many octaves of one; where Q keeps its direction they are not signed."""
    shape = case.geometry.heads_q, case.geometry.head_dim
    factors = np.exp2(rng.uniform(-octaves, octaves, shape))
    signs = rng.choice((-1.0, 1.0), shape) if signed else 1.0
    return torch.as_tensor(factors * signs, dtype=torch.float32)


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
    tokens: int, case: Case, direction: np.ndarray[Any, Any], rng: np.random.Generator
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """K and V (tokens, heads_kv, head_dim) with their sentinels."""
    k = rng.standard_normal((tokens, *direction.shape), np.float32)
    v = rng.standard_normal((tokens, *direction.shape), np.float32)
    starts = np.arange(0, tokens, STRIDE_OF_SENTINELS)
    chosen = np.minimum(starts + rng.integers(0, STRIDE_OF_SENTINELS, starts.size), tokens - 1)
    last = np.arange(max(tokens - case.geometry.q_len, 0), tokens)
    sentinels = np.union1d(chosen, last)
    k[sentinels] = direction + 0.25 * k[sentinels]
    v[sentinels] *= SENTINEL_VALUE
    return k, v


def _query(case: Case, direction: np.ndarray[Any, Any], rng: np.random.Generator) -> Tensor:
    geometry = case.geometry
    shape = len(case.lengths) * geometry.q_len, geometry.heads_q, geometry.head_dim
    dtype = DTYPES[geometry.dtype]
    own = rng.standard_normal(shape, np.float32)
    shared = np.repeat(direction, geometry.gqa, axis=0)
    real = case.query_gain * (QUERY_SHARE * shared + (1 - QUERY_SHARE**2) ** 0.5 * own)
    q = torch.from_numpy(real).clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max).to(dtype)
    return place(q, case.query, geometry)
