"""Where the `warp` engine's computing warps meet at a chunk's end: softmax states and outputs become one.

The warps exchange maximum and sum of every row, scale their outputs to the common maximum, and add them, in warp order,
through shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Float32, Int32, cute

from mjolnir.kernel.engine import Engine
from mjolnir.kernel.engines import ptx
from mjolnir.kernel.engines.operands import Chunk, Operands
from mjolnir.kernel.engines.output import Output
from mjolnir.kernel.geometry import Geometry


@dataclass(frozen=True)
class Table:
    """Shared memory of the meeting.

    Attributes:
        states: (2, 16, warps) f32: each warp's maximum (times scale, base 2) and sum of every row.
        outputs: address of (warps, 8 rows, span) f32: each warp's share of a part of a half's output.
    """

    states: cute.Tensor
    outputs: Int32


@dataclass(frozen=True)
class State:
    """One warp's softmax state, in registers; a half is eight query rows, g is lane // 4 and t is lane % 4.

    Attributes:
        scales: (halves,) what turns a raw score into a power of two.
        top: (halves,) largest raw score so far.
        total: (halves,) this lane's share of the sum.
        out: (4, slices, halves); [e, i, half] is d = 16 i + 2 g + e // 2 of row 8 half + 2 t + e % 2.
    """

    scales: cute.Tensor
    top: cute.Tensor
    total: cute.Tensor
    out: cute.Tensor


@dataclass(frozen=True)
class Meeting:
    """One variant's meeting.

    Attributes:
        geometry, engine: the problem, and rows of an item.
        output: writes rows.
        warps: how many meet.
        span: elements of a head that are added up at a time.
        barrier: their named barrier.
    """

    geometry: Geometry
    engine: Engine
    output: Output
    warps: int
    span: int
    barrier: int

    @property
    def halves(self) -> int:
        """Groups of eight query rows."""
        return -(-self.engine.rows // 8)

    def allocate(self, smem: cutlass.utils.SmemAllocator) -> Table:
        """The table."""
        states = smem.allocate_tensor(Float32, cute.make_layout((2, 16, self.warps)), byte_alignment=16)
        outputs = smem.allocate_tensor(Float32, cute.make_layout(self.warps * 8 * self.span), byte_alignment=16)
        return Table(states, outputs.iterator.toint())

    @cute.jit
    def finish(self, operands: Operands, chunk: Chunk, table: Table, state: State) -> None:
        """Combine the warps and write the item's output, or its chunk's partial."""
        self._meet(state, table)
        rounds = cutlass.const_expr(self.geometry.head_dim // self.span)
        for number in cutlass.range_constexpr(self.halves * rounds):
            half, first = cutlass.const_expr(number // rounds), cutlass.const_expr(number % rounds * self.span)
            self._spread(operands, chunk, state.out, half, first, table)
            cute.arch.barrier(barrier_id=self.barrier, number_of_threads=32 * self.warps)
            self._collect(operands, chunk, half, first, table)
            if cutlass.const_expr(number + 1 < self.halves * rounds):
                cute.arch.barrier(barrier_id=self.barrier, number_of_threads=32 * self.warps)

    @cute.jit
    def _collect(
        self, operands: Operands, chunk: Chunk, half: cutlass.Constexpr[int], first: cutlass.Constexpr[int],
        table: Table,
    ) -> None:  # fmt: skip
        """Add up the warps' shares of elements `first` on of eight rows, and write them."""
        thread, _, _ = cute.arch.thread_idx()
        threads = cutlass.const_expr(32 * self.warps)
        value_scale = operands.v_scale[chunk.item.sequence, chunk.item.head]
        value = cute.make_rmem_tensor((1,), Float32)
        for part in cutlass.range_constexpr(-(-min(8, self.engine.rows - 8 * half) * self.span // threads)):
            place = (part * threads + thread) // self.span
            d = (part * threads + thread) % self.span
            row = 8 * half + place
            if row < self.engine.rows:
                if self.output.has(chunk.item, row):
                    value[0] = self._gather(place, d, table)
                    if chunk.whole:
                        value[0] *= value_scale
                        self.output.write(operands, chunk.item, row, first + d, value)
                    else:
                        operands.partial[chunk.slot, row, first + d] = value[0]

    @cute.jit
    def _write_lse(self, operands: Operands, chunk: Chunk, row: Int32, log2: Float32) -> None:
        """Write the log-sum-exp of the item's row, or of its chunk's part."""
        if self.output.has(chunk.item, row):
            if chunk.whole:
                self.output.write_lse(operands, chunk.item, row, log2)
            else:
                operands.partial_lse[chunk.slot, row] = log2

    @cute.jit
    def _meet(self, state: State, table: Table) -> None:
        """Publish this warp's maximum (times scale, base 2) and sum of every row, and wait for the other warps."""
        lane = cute.arch.lane_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        for half in cutlass.range_constexpr(self.halves):
            z = state.total[half]
            z += cute.arch.shuffle_sync_bfly(z, offset=1)
            z += cute.arch.shuffle_sync_bfly(z, offset=2)
            if lane % 4 == 0:
                table.states[0, lane // 4 + 8 * half, warp] = state.top[half] * state.scales[half]
                table.states[1, lane // 4 + 8 * half, warp] = z
        cute.arch.barrier(barrier_id=self.barrier, number_of_threads=32 * self.warps)

    @cute.jit
    def _common(self, table: Table, row: Int32) -> tuple[Float32, Float32]:
        """Maximum and sum of a row over the warps; (0, 0) where none saw a token."""
        highest = -Float32.inf
        for w in cutlass.range_constexpr(self.warps):
            highest = cute.arch.fmax(highest, table.states[0, row, w])
        if highest == -Float32.inf:
            highest = Float32(0.0)
        z = Float32(0.0)
        for w in cutlass.range_constexpr(self.warps):
            z += table.states[1, row, w] * ptx.exp2(table.states[0, row, w] - highest)
        return highest, z

    @cute.jit
    def _spread(
        self, operands: Operands, chunk: Chunk, out: cute.Tensor, half: cutlass.Constexpr[int],
        first: cutlass.Constexpr[int], table: Table,
    ) -> None:  # fmt: skip
        """Write this warp's share of the normalised output of eight rows, elements `first` on, to `table.outputs`.

        One warp writes the rows' log-sum-exp. All reading of `table.states` is before the barrier that follows, behind
        which a faster warp may publish its next state.
        """
        lane = cute.arch.lane_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        g, t = lane // 4, lane % 4
        for e in cutlass.range_constexpr(2):
            row = t * 2 + e
            if 8 * half + row < self.engine.rows:
                highest, z = self._common(table, 8 * half + row)
                factor = Float32(0.0)
                if z > 0.0:
                    factor = ptx.exp2(table.states[0, 8 * half + row, warp] - highest) / z
                if cutlass.const_expr(first == 0):
                    if warp == 0:
                        if g == 0:
                            log2 = -Float32.inf
                            if z > 0.0:
                                log2 = highest + cute.math.log2(z)
                            self._write_lse(operands, chunk, 8 * half + row, log2)
                place = table.outputs + ((warp * 8 + row) * self.span + 2 * g) * 4
                for i in cutlass.range_constexpr(self.span // 16):
                    j = cutlass.const_expr(first // 16 + i)
                    ptx.store_shared_pair(place + i * 64, out[e, j, half] * factor, out[e + 2, j, half] * factor)

    @cute.jit
    def _gather(self, row: Int32, d: Int32, table: Table) -> Float32:
        """Add the warps' shares of one element, in warp order."""
        value = Float32(0.0)
        for w in cutlass.range_constexpr(self.warps):
            value += ptx.load_shared(table.outputs + ((w * 8 + row) * self.span + d) * 4)
        return value
