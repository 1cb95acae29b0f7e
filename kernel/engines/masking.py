"""Which keys a query row sees, tile by tile; canaries see one too many, or miss a tile."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Int32, cute

from mjolnir.kernel.engine import TILE_WARPS
from mjolnir.kernel.engines import ptx
from mjolnir.kernel.engines.ring import BLOCK_BYTES, ROW_BYTES
from mjolnir.kernel.geometry import TILE, Geometry

WARP_TOKENS = TILE // TILE_WARPS
"""Tokens of a tile whose V rows one warp clears."""


@dataclass(frozen=True)
class Masking:
    """One variant's masks.

    Attributes:
        geometry: the problem.
        fault: a canary's fault, "none" otherwise.
    """

    geometry: Geometry
    fault: str

    @property
    def hidden(self) -> int:
        """Tokens at a sequence's end that its first query token does not see."""
        return self.geometry.q_len - 1 if self.geometry.causal else 0

    @cute.jit
    def seen_by_first(self, length: Int32, tile: Int32) -> Int32:
        """Tokens of `tile` that the sequence's first query token sees; below zero where it sees none by far."""
        seen = length - tile * TILE - self.hidden
        if cutlass.const_expr(self.fault == "mask"):
            seen += 1
        if cutlass.const_expr(self.fault == "skip"):
            if tile == 1:
                seen = Int32(-TILE)
        return seen

    @cute.jit
    def more_of(self, row: Int32) -> Int32:
        """How many tokens more than the first query token the head's query row `row` sees."""
        more = Int32(0)
        if cutlass.const_expr(self.hidden > 0):
            more = cutlass.min(row // self.geometry.gqa, Int32(self.hidden))
        return more

    @cute.jit
    def clear_tail(self, v_address: Int32, present: Int32) -> None:
        """Write zeros over this warp's V rows from token `present` of the tile on: zero times NaN would be NaN."""
        lane = cute.arch.lane_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        first = warp % TILE_WARPS * WARP_TOKENS
        for token in cutlass.range(cutlass.max(present, first), first + WARP_TOKENS, unroll=1):
            for block in cutlass.range_constexpr(self.geometry.head_dim // ROW_BYTES):
                ptx.store_shared_zero(v_address + block * BLOCK_BYTES + token * ROW_BYTES + lane * 4)
        cute.arch.sync_warp()
