"""The merge: the CTA that brings an item's last partial combines them all, by log-sum-exp, always in CTA order.

There is no second launch. A CTA writes its partial, then counts itself in; who finds that all others were there
before merges, so the result does not depend on who it is. An item in more than `GROUP` CTAs is merged in groups of
that many neighbours, whose results are partials again, and then over the groups, so that no CTA reads for long.
CTAs whose run inside the item is empty count themselves in too. Counters go back to zero as they are used up, and the
plan zeroes them once a step, so that an aborted launch leaves nothing behind.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Boolean, Float32, Int32, cute

from mjolnir.kernel.engine import Engine
from mjolnir.kernel.engines import ptx
from mjolnir.kernel.engines.operands import Chunk, Item, Operands
from mjolnir.kernel.engines.output import Output
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.plan import MERGE_GROUP


@dataclass(frozen=True)
class Span:
    """Partials that are combined: of CTAs `first`, `first + stride`, ..., `count` of them.

    Attributes:
        first, count, stride: the CTAs.
        slot: slot of the first one's chunk; the others' chunks are the first of their runs.
    """

    first: Int32
    count: Int32
    stride: Int32
    slot: Int32


@dataclass(frozen=True)
class Merge:
    """One variant's merge, run by the computing warps of a CTA.

    Attributes:
        geometry: the problem.
        engine: rows of an item.
        output: writes the rows.
        warps: computing warps of a CTA.
        barrier: their named barrier.
        reads: registers of 16 bytes that a lane may read ahead.
    """

    geometry: Geometry
    engine: Engine
    output: Output
    warps: int
    barrier: int
    reads: int

    @property
    def quads(self) -> int:
        """Groups of four elements that a lane holds of a row."""
        return self.geometry.head_dim // 128

    @property
    def ways(self) -> list[tuple[int, int]]:
        """How many rows, and partials of each, a warp reads at a time, so that their latencies overlap.

        The last way is for any number of partials, the one before it for no more than it says.
        """
        found: list[tuple[int, int]] = []
        for rows in (4, 2, 1):
            batch = min(MERGE_GROUP, self.reads // self.quads // rows)
            if rows == 1 or (rows <= -(-self.engine.rows // self.warps) and batch >= MERGE_GROUP // 2):
                found.append((rows, batch))
            if found and batch == MERGE_GROUP:
                break
        return found[-2:]

    @cute.jit
    def bring(self, operands: Operands, chunk: Chunk, flag: cute.Tensor) -> None:
        """Count this CTA's partial in, and merge what that completes; `flag` is one int32 in shared memory."""
        cta = chunk.slot // 2
        cut = cta + 1
        if chunk.slot % 2 == 0:
            if chunk.low > 0:
                cut = cta
        item_slot, end = operands.cuts[cut, 2], operands.cuts[cut, 3]
        owner = item_slot // 2
        group = (cta - owner) // MERGE_GROUP
        first = owner + group * MERGE_GROUP
        slot = 2 * first
        if group == 0:
            slot = item_slot
        members = cutlass.min(Int32(MERGE_GROUP), end - first)
        groups = cute.ceil_div(end - owner, MERGE_GROUP)
        if self._is_last(operands, slot, members, flag):
            self._combine(operands, chunk.item, Span(first, members, Int32(1), slot), groups == 1)
            if groups > 1:
                if self._is_last(operands, item_slot + cute.size(operands.counters) // 2, groups, flag):
                    self._combine(
                        operands, chunk.item, Span(owner, groups, Int32(MERGE_GROUP), item_slot), Boolean(True)
                    )

    @cute.jit
    def _is_last(self, operands: Operands, counter: Int32, members: Int32, flag: cute.Tensor) -> cutlass.Boolean:
        """Whether this CTA is the last of `members` to get here; if so it sees what the others wrote."""
        thread, _, _ = cute.arch.thread_idx()
        cute.arch.barrier(barrier_id=self.barrier, number_of_threads=32 * self.warps)
        if thread == 0:
            before = ptx.count_arrival((operands.counters.iterator + counter).toint())
            if before == members - 1:
                operands.counters[counter] = Int32(0)
            flag[0] = before
        cute.arch.barrier(barrier_id=self.barrier, number_of_threads=32 * self.warps)
        return flag[0] == members - 1

    @cute.jit
    def _combine(self, operands: Operands, item: Item, span: Span, final: cutlass.Boolean) -> None:
        """Combine a span into the output, or into the partial of its first slot."""
        if cutlass.const_expr(len(self.ways) == 1):
            self._combine_rows(operands, item, span, final, *self.ways[0])
        else:
            self._combine_by_count(operands, item, span, final)

    @cute.jit
    def _combine_by_count(self, operands: Operands, item: Item, span: Span, final: cutlass.Boolean) -> None:
        if span.count <= self.ways[0][1]:
            self._combine_rows(operands, item, span, final, *self.ways[0])
        else:
            self._combine_rows(operands, item, span, final, *self.ways[1])

    @cute.jit
    def _combine_rows(
        self, operands: Operands, item: Item, span: Span, final: cutlass.Boolean, together: cutlass.Constexpr[int],
        batch: cutlass.Constexpr[int],
    ) -> None:  # fmt: skip
        """The warps take the item's rows in turn, `together` rows and `batch` partials at a time."""
        warp = ptx.here(cute.arch.make_warp_uniform(cute.arch.warp_idx()))
        value_scale = operands.v_scale[item.sequence, item.head]
        for first in cutlass.range(warp, self.engine.rows, self.warps * together, unroll=1):
            acc = cute.make_rmem_tensor((4 * self.quads, together), Float32)
            highest, total = (cute.make_rmem_tensor((together,), Float32) for _ in range(2))
            acc.fill(0.0)
            total.fill(0.0)
            highest.fill(-Float32.inf)
            for base in cutlass.range(0, span.count, batch, unroll=1):
                lse = cute.make_rmem_tensor((together,), Float32)
                read = cute.make_rmem_tensor((4 * self.quads, batch, together), Float32)
                for r in cutlass.range_constexpr(together):
                    # past the last row the last again: it is not written
                    row = cutlass.min(first + r * self.warps, self.engine.rows - 1)
                    lse[r] = self._lse(operands, span, row, base + cute.arch.lane_idx() % batch)
                    self._read(operands, span, row, base, read[None, None, r])
                for r in cutlass.range_constexpr(together):
                    highest[r], total[r] = self._fold(acc[None, r], highest[r], total[r], lse[r], read[None, None, r])
            for r in cutlass.range_constexpr(together):
                row = first + r * self.warps
                if row < self.engine.rows:
                    if self.output.has(item, row):
                        self._end(operands, item, span, row, final, acc[None, r], highest[r], total[r], value_scale)

    @cute.jit
    def _fold(
        self, acc: cute.Tensor, highest: Float32, total: Float32, lse: Float32, read: cute.Tensor
    ) -> tuple[Float32, Float32]:
        """Add the partials of a batch to a row: `acc` in place; returns the new maximum and sum of weights."""
        batch = cutlass.const_expr(cute.size(read, mode=[1]))
        higher = cute.arch.fmax(highest, self._over_batch_max(lse, batch))
        # nothing seen yet: any finite base makes exp2(-inf) = 0
        middle = higher
        if higher == -Float32.inf:
            middle = Float32(0.0)
        alpha = ptx.exp2(highest - middle)
        weight = ptx.exp2(lse - middle)
        total *= alpha
        for e in cutlass.range_constexpr(4 * self.quads):
            acc[e] *= alpha
        for j in cutlass.range_constexpr(batch):
            mine = cute.arch.shuffle_sync(weight, j)
            total += mine
            # an empty run left a weight of zero and whatever was in its slot
            if mine > 0.0:
                for e in cutlass.range_constexpr(4 * self.quads):
                    acc[e] += mine * read[e, j]
        return higher, total

    @cute.jit
    def _end(
        self, operands: Operands, item: Item, span: Span, row: Int32, final: cutlass.Boolean, acc: cute.Tensor,
        highest: Float32, total: Float32, value_scale: Float32,
    ) -> None:  # fmt: skip
        """Write a row that has all its partials."""
        inverse, log2 = Float32(0.0), -Float32.inf
        if total > 0.0:
            inverse = 1.0 / total
            log2 = highest + cute.math.log2(total)
        if final:
            self._write(operands, item, row, acc, inverse * value_scale, log2)
        else:
            self._write_partial(operands, span.slot, row, acc, inverse, log2)

    @cute.jit
    def _slot(self, span: Span, index: Int32) -> Int32:
        """The slot of the `index`-th partial: only the first can be the last of its CTA's run."""
        slot = 2 * (span.first + index * span.stride)
        if index == 0:
            slot = span.slot
        return slot

    @cute.jit
    def _lse(self, operands: Operands, span: Span, row: Int32, index: Int32) -> Float32:
        """Log-sum-exp of a partial, -inf beyond the last."""
        value = -Float32.inf
        if index < span.count:
            place = self._slot(span, index) * self.engine.rows + row
            value = ptx.load_shared_by_grid((operands.partial_lse.iterator + place).toint())
        return value

    @cute.jit
    def _over_batch_max(self, value: Float32, batch: cutlass.Constexpr[int]) -> Float32:
        """Maximum over the partials of a batch, which neighbouring lanes hold."""
        for bit in cutlass.range_constexpr(batch.bit_length() - 1):
            value = cute.arch.fmax(value, cute.arch.shuffle_sync_bfly(value, offset=1 << bit))
        return value

    @cute.jit
    def _read(self, operands: Operands, span: Span, row: Int32, base: Int32, read: cute.Tensor) -> None:
        """This lane's elements 4 l to 4 l + 3 of each 128 of the row, (4 quads, batch); past the end the last again."""
        lane = ptx.here(cute.arch.lane_idx())
        for j in cutlass.range_constexpr(cute.size(read, mode=[1])):
            slot = self._slot(span, cutlass.min(base + j, span.count - 1))
            address = operands.partial[slot, row, None].iterator.toint() + lane * 16
            for q in cutlass.range_constexpr(self.quads):
                e = cutlass.const_expr(4 * q)
                read[e, j], read[e + 1, j], read[e + 2, j], read[e + 3, j] = ptx.load_shared_by_grid_quad(
                    address + q * 512
                )

    @cute.jit
    def _write(
        self, operands: Operands, item: Item, row: Int32, acc: cute.Tensor, factor: Float32, log2: Float32
    ) -> None:
        lane = ptx.here(cute.arch.lane_idx())
        values = cute.make_rmem_tensor((4,), Float32)
        for q in cutlass.range_constexpr(self.quads):
            for e in cutlass.range_constexpr(4):
                values[e] = acc[4 * q + e] * factor
            self.output.write(operands, item, row, 4 * lane + 128 * q, values)
        if lane == 0:
            self.output.write_lse(operands, item, row, log2)

    @cute.jit
    def _write_partial(
        self, operands: Operands, slot: Int32, row: Int32, acc: cute.Tensor, inverse: Float32, log2: Float32
    ) -> None:
        lane = ptx.here(cute.arch.lane_idx())
        address = operands.partial[slot, row, None].iterator.toint() + lane * 16
        # the row's log-sum-exps are read by all lanes before one of them is written over
        cute.arch.sync_warp()
        for q in cutlass.range_constexpr(self.quads):
            ptx.store_global_quad(
                address + q * 512,
                *(acc[4 * q + e] * inverse for e in range(4)),
            )
        if lane == 0:
            operands.partial_lse[slot, row] = log2
