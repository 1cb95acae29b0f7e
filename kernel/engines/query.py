"""Q on its way into the matrix units: loaded from where it lies, scaled, and rounded to f16.

A group is eight query rows. In a group lane `4 g + t` holds elements `16 i + 4 t` to `16 i + 4 t + 3` of row g for
every slice i, in the order in which K's widened codes come out of `ldmatrix`: as k = 2 t, 2 t + 1, 2 t + 8, 2 t + 9.
Native rows are divided by a power of two where they would not fit f16; fp8 rows of one (sequence, KV head) share one
scale, amax / 448. Either factor goes to the f32 scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Float32, Int32, Uint32, cute

from mjolnir.kernel.engines import ptx
from mjolnir.kernel.engines.operands import Item
from mjolnir.kernel.geometry import Geometry

F16_LIMIT_EXPONENT = 14
"""A query row whose largest magnitude is 2^15 or more is scaled down by a power of two before it becomes f16."""

LINE_BYTES = 128
"""Bytes of a line of L1."""

E4M3_LARGEST = 448.0
LEAST_AMAX = 1e-6
"""The fp8 scale is amax / 448, amax at least this."""


@dataclass(frozen=True)
class Query:
    """How one variant loads its query rows.

    Attributes:
        geometry: the problem.
        multiplied: whether Q is multiplied by `q_mul` first.
    """

    geometry: Geometry
    multiplied: bool

    @property
    def slices(self) -> int:
        """Slices of 16 elements of a head."""
        return self.geometry.head_dim // 16

    @cute.jit
    def rounded_group(
        self, query: cute.Tensor, q_mul: cute.Tensor, sequence: Int32, head: Int32, row: Int32
    ) -> tuple[cute.Tensor, Float32]:
        """This lane's part of its `row` as f16 pairs (2, slices), and the factor of the row's scores.

        Args:
            query: (head_dim, heads_q, tokens).
            q_mul: (head_dim, heads_q), f32.
            sequence, head: whose rows.
            row: the lane's query row, the same for its four lanes; rows that there are not become zero.
        """
        values = self._values(query, q_mul, sequence, head, row)
        pairs = cute.make_rmem_tensor((2, self.slices), Uint32)
        if cutlass.const_expr(self.geometry.q_format == "fp8"):
            factor = self._shared_scale(query, q_mul, sequence, head)
            for i in cutlass.range_constexpr(self.slices):
                for j in cutlass.range_constexpr(2):
                    low = ptx.divide(values[2 * j, i], factor)
                    high = ptx.divide(values[2 * j + 1, i], factor)
                    pairs[j, i] = ptx.pack_e4m3_as_f16(low, high)
        else:
            largest = _over_quad(self._largest(values))
            exponent = (ptx.bits_of(largest) >> 23).to(Int32) - 127
            shift = cutlass.max(exponent - F16_LIMIT_EXPONENT, Int32(0))
            down = ptx.from_bits(((127 - shift) << 23).to(Uint32))
            factor = ptx.from_bits(((127 + shift) << 23).to(Uint32))
            for i in cutlass.range_constexpr(self.slices):
                for j in cutlass.range_constexpr(2):
                    pairs[j, i] = ptx.pack_f16(values[2 * j, i] * down, values[2 * j + 1, i] * down)
        return pairs, factor

    @cute.jit
    def touch(self, query: cute.Tensor, item: Item, rows: cutlass.Constexpr[int]) -> None:
        """Bring an item's query rows into L1 before they are needed; each of the computing threads takes one line."""
        geometry = self.geometry
        lines = cutlass.const_expr(geometry.head_dim * 2 // LINE_BYTES)
        thread, _, _ = cute.arch.thread_idx()
        row = item.row + thread // lines
        if thread < rows * lines:
            if row < geometry.rows:
                token = item.sequence * geometry.q_len + row // geometry.gqa
                query_head = item.head * geometry.gqa + row % geometry.gqa
                address = query[None, query_head, token].iterator.toint()
                ptx.touch_global(address + thread % lines * LINE_BYTES)

    @cute.jit
    def _values(self, query: cute.Tensor, q_mul: cute.Tensor, sequence: Int32, head: Int32, row: Int32) -> cute.Tensor:
        """This lane's elements of `row` in f32, (4, slices)."""
        geometry = self.geometry
        t = cute.arch.lane_idx() % 4
        values = cute.make_rmem_tensor((4, self.slices), Float32)
        values.fill(0.0)
        if row < geometry.rows:
            token = sequence * geometry.q_len + row // geometry.gqa
            query_head = head * geometry.gqa + row % geometry.gqa
            address = query[None, query_head, token].iterator.toint() + t * 8
            words = cute.make_rmem_tensor((2, self.slices), Uint32)
            for i in cutlass.range_constexpr(self.slices):
                words[0, i], words[1, i] = ptx.load_global_words(address + i * 32)
            for i in cutlass.range_constexpr(self.slices):
                for j in cutlass.range_constexpr(2):
                    if cutlass.const_expr(geometry.dtype == "bf16"):
                        values[2 * j, i], values[2 * j + 1, i] = ptx.unpack_bf16(words[j, i])
                    else:
                        values[2 * j, i], values[2 * j + 1, i] = ptx.unpack_f16(words[j, i])
            if cutlass.const_expr(self.multiplied):
                factors = q_mul[None, query_head].iterator.toint() + t * 16
                for i in cutlass.range_constexpr(self.slices):
                    a, b, c, d = ptx.load_global_quad(factors + i * 64)
                    values[0, i] *= a
                    values[1, i] *= b
                    values[2, i] *= c
                    values[3, i] *= d
        return values

    @cute.jit
    def _largest(self, values: cute.Tensor) -> Float32:
        """Largest magnitude of what this lane holds."""
        largest = Float32(0.0)
        for i in cutlass.range_constexpr(self.slices):
            for e in cutlass.range_constexpr(4):
                largest = cute.arch.fmax(largest, cute.arch.fmax(values[e, i], -values[e, i]))
        return largest

    @cute.jit
    def _shared_scale(self, query: cute.Tensor, q_mul: cute.Tensor, sequence: Int32, head: Int32) -> Float32:
        """The fp8 scale of all rows of one (sequence, KV head); every warp finds it for itself."""
        largest = Float32(0.0)
        for group in cutlass.range(-(-self.geometry.rows // 8), unroll=1):
            row = 8 * group + cute.arch.lane_idx() // 4
            largest = cute.arch.fmax(largest, self._largest(self._values(query, q_mul, sequence, head, row)))
        for bit in cutlass.range_constexpr(5):
            largest = cute.arch.fmax(largest, cute.arch.shuffle_sync_bfly(largest, offset=1 << bit))
        return ptx.divide(cute.arch.fmax(largest, Float32(LEAST_AMAX)), ptx.constant(E4M3_LARGEST))


@cute.jit
def _over_quad(value: Float32) -> Float32:
    """Maximum over the four lanes that share a query row."""
    value = cute.arch.fmax(value, cute.arch.shuffle_sync_bfly(value, offset=1))
    return cute.arch.fmax(value, cute.arch.shuffle_sync_bfly(value, offset=2))
