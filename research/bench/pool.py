"""KV pools for the benchmarks: one block of random codes, read in whatever layout a contender wants.

The codes are those of normal numbers, drawn once; a set of a point is a slice of the block, so that neither a point nor
a layout costs a fill. Sets follow one another in the block and are at least `ROTATION_BYTES` together, so that each has
left the L2 cache before it is read again. Pages are dealt out in random order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mjolnir.kernel.formats import DTYPES
from mjolnir.kernel.layouts import allocate, views
from mjolnir.kernel.timing import ROTATION_BYTES
from mjolnir.research.bench.points import Spot
from mjolnir.research.bench.truth import attention

LAYOUTS = {
    "BHN2D head-major": ("BHN2D", False),
    "BHN2D token-major": ("BHN2D", True),
    "B2NHD": ("B2NHD", None),
    "B2HND": ("B2HND", None),
}
"""Layouts by the name that rows have: shape, and strides where they are not those of the shape."""

CHUNK = 1 << 26
"""Codes that are drawn at a time: the f32 numbers of a whole pool would not fit."""


@dataclass(frozen=True, slots=True)
class InputSet:
    """The tensors of one launch.

    Attributes:
        memory: the bytes of the cache, whatever its layout.
        cache: in its layout, uint8.
        k, v: (num_pages, page_size, heads_kv, head_dim), uint8.
        q: (batch * q_len, heads_q, head_dim).
        block_table: (batch, width), int32; entries past a sequence's end are 0, as a peer may load what they name.
        seq_lens: (batch,), int32.
    """

    memory: Tensor
    cache: Tensor
    k: Tensor
    v: Tensor
    q: Tensor
    block_table: Tensor
    seq_lens: Tensor


class Sets:
    """The rotating sets of one spot in one layout."""

    def __init__(self, spot: Spot, layout: str, items: Sequence[InputSet]) -> None:
        self.spot, self.layout, self.items = spot, layout, tuple(items)
        self._truth: dict[int, Tensor] = {}

    def outs(self) -> list[Tensor]:
        """An output for each set, NaN as long as it is not written."""
        return [torch.full_like(item.q, torch.nan) for item in self.items]

    def error(self, outs: Sequence[Tensor]) -> float:
        """Largest difference from attention in f64 over its RMS, in the first and the last set; NaN where one is."""
        errors = [self._error(number, outs[number]) for number in {0, len(self.items) - 1}]
        return math.nan if any(map(math.isnan, errors)) else max(errors)

    def _error(self, number: int, out: Tensor) -> float:
        if number not in self._truth:
            item, geometry = self.items[number], self.spot.geometry
            self._truth[number] = attention(item.q, item.k, item.v, item.block_table, self.spot.contexts, geometry)
        wanted = self._truth[number]
        return float((out.view_as(wanted).double() - wanted).abs().max() / wanted.square().mean().sqrt())


class Pool:
    """The block of random codes, as large as the largest spot needs.

    Args:
        device: where.
        rotation: bytes that the sets of a spot have at least together.
        seed: of codes, queries and pages.
    """

    def __init__(self, device: str = "cuda", rotation: int = ROTATION_BYTES, seed: int = 0) -> None:
        self.device, self.rotation, self.seed = device, rotation, seed
        self._codes = torch.empty(0, dtype=torch.uint8, device=device)

    def sets(self, spot: Spot, layout: str) -> Sets:
        """The sets of `spot`: at least two."""
        geometry = spot.geometry
        size = sum(spot.pages) * geometry.page_size * geometry.kv_bytes_per_token
        count = max(2, -(-self.rotation // size))
        codes = self._at_least(count * size)
        shape, token_major = LAYOUTS[layout]
        like = allocate(shape, sum(spot.pages), geometry, "meta", token_major=token_major, fill=None)
        seq_lens = torch.tensor(spot.contexts, dtype=torch.int32, device=self.device)
        generator = torch.Generator(self.device).manual_seed(self.seed + spot.batch)
        items = []
        for number in range(count):
            memory = codes[number * size : (number + 1) * size]
            cache = codes.as_strided(like.shape, like.stride(), number * size)
            k, v = views(cache, geometry, shape)
            rows = (spot.batch * geometry.q_len, geometry.heads_q, geometry.head_dim)
            q = torch.randn(rows, device=self.device, generator=generator).to(DTYPES[geometry.dtype])
            items.append(InputSet(memory, cache, k, v, q, self._table(spot, generator), seq_lens))
        return Sets(spot, layout, items)

    def _table(self, spot: Spot, generator: torch.Generator) -> Tensor:
        pages = torch.randperm(sum(spot.pages), device=self.device, generator=generator).int()
        table = torch.zeros(spot.batch, spot.width, dtype=torch.int32, device=self.device)
        used = torch.tensor(spot.pages, device=self.device)[:, None]
        table[torch.arange(spot.width, device=self.device) < used] = pages
        return table

    def _at_least(self, size: int) -> Tensor:
        if self._codes.numel() < size:
            generator = torch.Generator(self.device).manual_seed(self.seed)
            self._codes = torch.empty(size, dtype=torch.uint8, device=self.device)
            for begin in range(0, size, CHUNK):
                chunk = self._codes[begin : begin + CHUNK]
                values = torch.randn(chunk.shape, device=self.device, generator=generator)
                chunk.copy_(values.to(torch.float8_e4m3fn).view(torch.uint8))
        return self._codes
