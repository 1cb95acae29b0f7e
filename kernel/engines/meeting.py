"""Where the `warp` engine's computing warps meet at a chunk's end: softmax states and outputs become one.

Every warp writes its rows' maxima and sums, and its outputs as they are, to shared memory. Behind one barrier each
thread weighs the warps' shares of its elements against the common maximum, and adds them up in warp order.
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
from mjolnir.kernel.variant import OUTPUT_PADDING


@dataclass(frozen=True)
class Table:
    """Shared memory of the meeting.

    Attributes:
        states: address of (2, 16 rows, warps) f32: each warp's maximum (times scale, base 2) and sum of every row.
        outputs: address of (warps, 8 rows, pitch) f32: each warp's share of a part of a half's output.
    """

    states: Int32
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

    @property
    def pitch(self) -> int:
        """Elements from one row of `Table.outputs` to the next."""
        return self.span + OUTPUT_PADDING

    def allocate(self, smem: cutlass.utils.SmemAllocator) -> Table:
        """The table."""
        states = smem.allocate_tensor(Float32, cute.make_layout(2 * 16 * self.warps), byte_alignment=16)
        outputs = smem.allocate_tensor(Float32, cute.make_layout(self.warps * 8 * self.pitch), byte_alignment=16)
        return Table(states.iterator.toint(), outputs.iterator.toint())

    @cute.jit
    def finish(self, operands: Operands, chunk: Chunk, table: Table, state: State) -> None:
        """Combine the warps and write the item's output, or its chunk's partial."""
        if chunk.slot % 2 == 1:
            # not the run's first: other warps may still be reading what was left there of the item before
            self._wait()
        self._publish(state, table)
        rounds = cutlass.const_expr(self.geometry.head_dim // self.span)
        for number in cutlass.range_constexpr(self.halves * rounds):
            half, first = cutlass.const_expr(number // rounds), cutlass.const_expr(number % rounds * self.span)
            self._spread(state.out, half, first, table)
            self._wait()
            self._collect(operands, chunk, half, first, table)
            if cutlass.const_expr(number + 1 < self.halves * rounds):
                self._wait()

    @cute.jit
    def _wait(self) -> None:
        cute.arch.barrier(barrier_id=self.barrier, number_of_threads=32 * self.warps)

    @cute.jit
    def _publish(self, state: State, table: Table) -> None:
        """This warp's maximum (times scale, base 2) and sum of every row."""
        thread = ptx.here(cute.arch.thread_idx()[0])
        lane, warp = thread % 32, thread // 32
        for half in cutlass.range_constexpr(self.halves):
            z = state.total[half]
            z += cute.arch.shuffle_sync_bfly(z, offset=1)
            z += cute.arch.shuffle_sync_bfly(z, offset=2)
            if lane % 4 == 0:
                place = table.states + ((lane // 4 + 8 * half) * self.warps + warp) * 4
                ptx.store_shared(place, state.top[half] * state.scales[half])
                ptx.store_shared(place + 16 * self.warps * 4, z)

    @cute.jit
    def _spread(
        self, out: cute.Tensor, half: cutlass.Constexpr[int], first: cutlass.Constexpr[int], table: Table
    ) -> None:
        """Write this warp's share of the output of eight rows, elements `first` on."""
        thread = ptx.here(cute.arch.thread_idx()[0])
        lane, warp = thread % 32, thread // 32
        for e in cutlass.range_constexpr(2):
            row = lane % 4 * 2 + e
            if 8 * half + row < self.engine.rows:
                place = table.outputs + ((warp * 8 + row) * self.pitch + lane // 4 * 2) * 4
                for i in cutlass.range_constexpr(self.span // 16):
                    j = cutlass.const_expr(first // 16 + i)
                    ptx.store_shared_pair(place + i * 64, out[e, j, half], out[e + 2, j, half])

    @cute.jit
    def _collect(
        self, operands: Operands, chunk: Chunk, half: cutlass.Constexpr[int], first: cutlass.Constexpr[int],
        table: Table,
    ) -> None:  # fmt: skip
        """Add up the warps' shares of elements `first` on of eight rows, four a thread, and write them."""
        thread = ptx.here(cute.arch.thread_idx()[0])
        threads, rows = cutlass.const_expr(32 * self.warps), cutlass.const_expr(min(8, self.engine.rows - 8 * half))
        value_scale = Float32(1.0)
        if chunk.whole:
            value_scale = operands.v_scale[chunk.item.sequence, chunk.item.head]
        for part in cutlass.range_constexpr(-(-rows * self.span // (4 * threads))):
            place = (part * threads + thread) * 4
            row, d = place // self.span, place % self.span
            if row < rows:
                if self.output.has(chunk.item, 8 * half + row):
                    weights, log2 = self._weigh(table, 8 * half + row, value_scale)
                    self._write(operands, chunk, 8 * half + row, first + d, self._gather(weights, row, d, table))
                    if cutlass.const_expr(first == 0):
                        if d == 0:
                            self._write_lse(operands, chunk, 8 * half + row, log2)

    @cute.jit
    def _weigh(self, table: Table, row: Int32, factor: Float32) -> tuple[cute.Tensor, Float32]:
        """What each warp's share of a row is multiplied by, `factor` in it, and the row's log-sum-exp in base 2."""
        tops, sums = (cute.make_rmem_tensor((self.warps,), Float32) for _ in range(2))
        for w in cutlass.range_constexpr(0, self.warps, 4):
            place = table.states + (row * self.warps + w) * 4
            tops[w], tops[w + 1], tops[w + 2], tops[w + 3] = ptx.load_shared_quad(place)
            sums[w], sums[w + 1], sums[w + 2], sums[w + 3] = ptx.load_shared_quad(place + 16 * self.warps * 4)
        highest = -Float32.inf
        for w in cutlass.range_constexpr(self.warps):
            highest = cute.arch.fmax(highest, tops[w])
        # nothing seen: any finite base makes exp2(-inf) = 0
        base = highest
        if highest == -Float32.inf:
            base = Float32(0.0)
        z = Float32(0.0)
        for w in cutlass.range_constexpr(self.warps):
            tops[w] = ptx.exp2(tops[w] - base)
            z += sums[w] * tops[w]
        inverse, log2 = Float32(0.0), -Float32.inf
        if z > 0.0:
            inverse = factor / z
            log2 = base + cute.math.log2(z)
        for w in cutlass.range_constexpr(self.warps):
            tops[w] *= inverse
        return tops, log2

    @cute.jit
    def _gather(self, weights: cute.Tensor, row: Int32, d: Int32, table: Table) -> cute.Tensor:
        """Four neighbouring elements of a row, (4,): the warps' shares times their weights, added in warp order."""
        values = cute.make_rmem_tensor((4,), Float32)
        values.fill(0.0)
        for w in cutlass.range_constexpr(self.warps):
            shares = ptx.load_shared_quad(table.outputs + ((w * 8 + row) * self.pitch + d) * 4)
            for e in cutlass.range_constexpr(4):
                values[e] += weights[w] * shares[e]
        return values

    @cute.jit
    def _write(self, operands: Operands, chunk: Chunk, row: Int32, d: Int32, values: cute.Tensor) -> None:
        """Write four elements of the item's row, or of its chunk's partial."""
        if chunk.whole:
            self.output.write(operands, chunk.item, row, d, values)
        else:
            address = operands.partial[chunk.slot, row, None].iterator.toint() + d * 4
            ptx.store_global_quad(address, values[0], values[1], values[2], values[3])

    @cute.jit
    def _write_lse(self, operands: Operands, chunk: Chunk, row: Int32, log2: Float32) -> None:
        """Write the log-sum-exp of the item's row, or of its chunk's part."""
        if chunk.whole:
            self.output.write_lse(operands, chunk.item, row, log2)
        else:
            operands.partial_lse[chunk.slot, row] = log2
