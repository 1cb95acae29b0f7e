"""The last step of a query row: scaled, multiplied, rounded once and written where the caller wants it."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Float32, Int32, Uint32, cute

from mjolnir.kernel.engine import Engine
from mjolnir.kernel.engines import ptx
from mjolnir.kernel.engines.operands import Item, Operands
from mjolnir.kernel.geometry import Geometry

LN2 = 0.6931471805599453


@dataclass(frozen=True)
class Output:
    """How one variant writes its rows.

    Attributes:
        geometry: the problem.
        engine: rows of an item.
        multiplied: whether O is multiplied by `o_mul`.
        lse: whether the log-sum-exp is written.
        fault: a canary's fault; "silent" writes no output.
    """

    geometry: Geometry
    engine: Engine
    multiplied: bool
    lse: bool
    fault: str

    @cute.jit
    def has(self, item: Item, row: Int32) -> cutlass.Boolean:
        """Whether the item's `row` is a query row: the last block may have fewer than the others."""
        return item.row + row < self.geometry.rows

    @cute.jit
    def place(self, item: Item, row: Int32) -> tuple[Int32, Int32]:
        """Query head and token of the item's `row`."""
        geometry = self.geometry
        number = item.row + row
        head = item.head * geometry.gqa + number % geometry.gqa
        return head, item.sequence * geometry.q_len + number // geometry.gqa

    @cute.jit
    def write(self, operands: Operands, item: Item, row: Int32, d: Int32, values: cute.Tensor) -> None:
        """Write 1, 2 or 4 neighbouring elements (count,) of a row, already times v_scale; count divides `d`."""
        count = cutlass.const_expr(cute.size(values))
        head, token = self.place(item, row)
        if cutlass.const_expr(self.multiplied):
            for e in cutlass.range_constexpr(count):
                values[e] *= operands.o_mul[d + e, head]
        if cutlass.const_expr(self.fault != "silent"):
            if cutlass.const_expr(count == 1):
                operands.out[d, head, token] = values[0].to(operands.out.element_type)
            else:
                address = operands.out[None, head, token].iterator.toint() + d * 2
                if cutlass.const_expr(count == 2):
                    ptx.store_global_word(address, self._pack(values[0], values[1]))
                else:
                    low, high = self._pack(values[0], values[1]), self._pack(values[2], values[3])
                    ptx.store_global_words(address, low, high)

    @cute.jit
    def _pack(self, low: Float32, high: Float32) -> Uint32:
        return ptx.pack_bf16(low, high) if self.geometry.dtype == "bf16" else ptx.pack_f16(low, high)

    @cute.jit
    def write_lse(self, operands: Operands, item: Item, row: Int32, log2: Float32) -> None:
        """Write a row's log-sum-exp, given in base 2."""
        if cutlass.const_expr(self.lse):
            head, token = self.place(item, row)
            operands.lse[head, token] = log2 * Float32(LN2)

    @cute.jit
    def write_zeros(self, operands: Operands, item: Item, thread: Int32) -> None:
        """Write all rows of an item that saw no key; `thread` is one of at least 128."""
        nothing = cute.make_rmem_tensor((1,), Float32)
        if thread < 128:
            for row in cutlass.range(self.engine.rows, unroll=1):
                if self.has(item, row):
                    for part in cutlass.range_constexpr(self.geometry.head_dim // 128):
                        nothing[0] = Float32(0.0)
                        self.write(operands, item, row, thread + part * 128, nothing)
        if thread < self.engine.rows:
            if self.has(item, thread):
                self.write_lse(operands, item, thread, -Float32.inf)
