"""K and V tiles as f16 operands A of warpgroup products: read by `ldmatrix`, widened in registers.

In the code `g` is lane // 4 and `t` is lane % 4. An operand A of depth 16 is four registers of two f16: rows g and
g + 8 of the warp's sixteen at depths 2 t and 2 t + 1, then both at depths 2 t + 8 and 2 t + 9 (PTX ISA, section on
`wgmma` register fragments).
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Float16, Int32, Uint32, cute

from mjolnir.kernel.engines import ptx
from mjolnir.kernel.engines.ring import BLOCK_BYTES, ROW_BYTES
from mjolnir.kernel.geometry import TILE

K_STEP = 16
"""Depth of one product."""


@dataclass(frozen=True)
class Widening:
    """Operands of one head size.

    Attributes:
        head_dim: elements, and bytes, of a row of K or V.
    """

    head_dim: int

    @property
    def key_steps(self) -> int:
        """Products of depth 16 that make the scores."""
        return self.head_dim // K_STEP

    @property
    def token_steps(self) -> int:
        """Products of depth 16 that make a tile's output."""
        return TILE // K_STEP

    @cute.jit
    def keys(self, keys: cute.Tensor, k_address: Int32) -> None:
        """K of a tile, ((2, 2, 2), 1, key steps): warp w has tokens 16 w to 16 w + 15.

        A step's depths are in the order in which `ldmatrix` brings a token's codes: 4 t, 4 t + 1, 4 t + 2, 4 t + 3.
        """
        lane = cute.arch.lane_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        row = k_address + (warp * 16 + lane % 16) * ROW_BYTES
        words = cute.recast_tensor(keys, Uint32)
        for i in cutlass.range_constexpr(self.head_dim // 32):
            column = (i % 4 * 32 + lane // 16 * 16) ^ (lane % 8 * 16)
            codes = ptx.load_matrices(row + i // 4 * BLOCK_BYTES + column, False)
            for j in cutlass.range_constexpr(2):
                place = cutlass.const_expr((2 * i + j) * 4)
                words[place], words[place + 2] = ptx.widen_e4m3(codes[2 * j])
                words[place + 1], words[place + 3] = ptx.widen_e4m3(codes[2 * j + 1])

    @cute.jit
    def values(self, v_address: Int32, first: cutlass.Constexpr[int], count: cutlass.Constexpr[int]) -> cute.Tensor:
        """V^T of a tile, ((2, 2, 2), 1, token steps, count): slabs `first` on of 64 elements of a head.

        Of a slab m warp w has 16 rows: row g + 8 f is element 64 m + 16 w + 2 g + f.
        """
        lane = cute.arch.lane_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        values = cute.make_rmem_tensor(((2, 2, 2), 1, self.token_steps, count), Float16)
        words = cute.recast_tensor(values, Uint32)
        for m in cutlass.range_constexpr(count):
            slab = cutlass.const_expr(first + m)
            column = ((slab % 2 * 4 + warp) ^ (lane % 8)) * 16
            for pair in cutlass.range_constexpr(self.token_steps // 2):
                row = v_address + slab // 2 * BLOCK_BYTES + (pair * 32 + lane) * ROW_BYTES
                codes = ptx.load_matrices(row + column, True)
                for j in cutlass.range_constexpr(2):
                    place = cutlass.const_expr((m * self.token_steps + 2 * pair + j) * 4)
                    low = cute.arch.prmt(codes[2 * j], Uint32(0), Uint32(ptx.INTERLEAVE_TOKENS))
                    high = cute.arch.prmt(codes[2 * j + 1], Uint32(0), Uint32(ptx.INTERLEAVE_TOKENS))
                    words[place], words[place + 1] = ptx.widen_e4m3(low)
                    words[place + 2], words[place + 3] = ptx.widen_e4m3(high)
        return values
