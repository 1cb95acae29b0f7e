"""The merge: combines the partials of items that the plan cut, by log-sum-exp, always in CTA order.

One block for each cut and query row. A cut that is not the first inside its item has nothing to do. Four warps share
the chunks of an item (warp w takes chunks w, w + 4, ...) and add up in warp order, so that the result is the same
from run to run.
"""

from __future__ import annotations

import cutlass
from cutlass import Float32, Int32, cute

from mjolnir.kernel.engines.ptx import exp2
from mjolnir.kernel.variant import Variant

WARPS = 4
MAX_GRID = 1024
"""The largest grid whose weights fit the shared memory that the merge sets aside."""


class Merge:
    """One variant of the merge kernel."""

    def __init__(self, variant: Variant) -> None:
        self.geometry = variant.geometry
        self.pdl = bool(variant.pdl)
        self.lse = variant.lse
        self.fault = variant.fault

    @cute.kernel
    def kernel(
        self,
        out: cute.Tensor,
        lse: cute.Tensor,
        cuts: cute.Tensor,
        v_scale: cute.Tensor,
        partial: cute.Tensor,
        partial_lse: cute.Tensor,
    ) -> None:
        """Block (cut - 1, row); modes as in `decode.Tensors`."""
        geometry = self.geometry
        block, row, _ = cute.arch.block_idx()
        smem = cutlass.utils.SmemAllocator()
        weights = smem.allocate_tensor(Float32, cute.make_layout(MAX_GRID), byte_alignment=16)
        shares = smem.allocate_tensor(Float32, cute.make_layout((geometry.head_dim, WARPS)), byte_alignment=16)
        if cutlass.const_expr(self.pdl):
            cute.arch.griddepcontrol_wait()
        item = cuts[block + 1, 0]
        stop = cuts[block + 1, 2]
        if stop > 0:
            slot = 2 * block
            if cuts[block, 0] != item:
                slot = 2 * block + 1
            count = stop - block
            highest = self._highest(partial_lse, row, block, slot, count)
            total = self._weigh(partial_lse, weights, row, block, slot, count, highest)
            self._add(partial, weights, shares, row, block, slot, count)
            sequence = item // geometry.heads_kv
            head = item % geometry.heads_kv
            self._write(out, lse, v_scale, shares, sequence, head, row, total, highest)
        if cutlass.const_expr(self.pdl):
            cute.arch.griddepcontrol_launch_dependents()

    @cute.jit
    def _slot(self, index: Int32, block: Int32, slot: Int32) -> Int32:
        """The workspace slot of chunk `index`: only the first can be the last of its CTA's run."""
        place = 2 * (block + index)
        if index == 0:
            place = slot
        return place

    @cute.jit
    def _highest(self, partial_lse: cute.Tensor, row: Int32, block: Int32, slot: Int32, count: Int32) -> Float32:
        """The largest log-sum-exp of the chunks; each warp finds it for itself."""
        highest = -Float32.inf
        for index in cutlass.range(cute.arch.lane_idx(), count, 32, unroll=1):
            highest = cute.arch.fmax(highest, partial_lse[self._slot(index, block, slot), row])
        for bit in cutlass.range_constexpr(5):
            highest = cute.arch.fmax(highest, cute.arch.shuffle_sync_bfly(highest, offset=1 << bit))
        return highest

    @cute.jit
    def _weigh(
        self,
        partial_lse: cute.Tensor,
        weights: cute.Tensor,
        row: Int32,
        block: Int32,
        slot: Int32,
        count: Int32,
        highest: Float32,
    ) -> Float32:
        """Put each chunk's weight into shared memory; returns their sum, added up in one fixed order."""
        thread, _, _ = cute.arch.thread_idx()
        base = highest
        if highest == -Float32.inf:
            base = Float32(0.0)
        for index in cutlass.range(thread, count, WARPS * 32, unroll=1):
            weights[index] = exp2(partial_lse[self._slot(index, block, slot), row] - base)
        cute.arch.sync_threads()
        total = Float32(0.0)
        for index in cutlass.range(cute.arch.lane_idx(), count, 32, unroll=1):
            total += weights[index]
        for bit in cutlass.range_constexpr(5):
            total += cute.arch.shuffle_sync_bfly(total, offset=1 << bit)
        return total

    @cute.jit
    def _add(
        self,
        partial: cute.Tensor,
        weights: cute.Tensor,
        shares: cute.Tensor,
        row: Int32,
        block: Int32,
        slot: Int32,
        count: Int32,
    ) -> None:
        """Add this warp's chunks; lane l holds elements 4 l to 4 l + 3 of each 128."""
        lane = cute.arch.lane_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        width = cutlass.const_expr(self.geometry.head_dim // 32)
        acc = cute.make_rmem_tensor((width,), Float32)
        acc.fill(0.0)
        for index in cutlass.range(warp, count, WARPS, unroll=4):
            weight = weights[index]
            place = self._slot(index, block, slot)
            # an empty run left a weight of zero and whatever was in its slot
            if weight > 0.0:
                for e in cutlass.range_constexpr(width):
                    acc[e] += weight * partial[place, row, lane + 32 * e]
        for e in cutlass.range_constexpr(width):
            shares[lane + 32 * e, warp] = acc[e]
        cute.arch.sync_threads()

    @cute.jit
    def _write(
        self,
        out: cute.Tensor,
        lse: cute.Tensor,
        v_scale: cute.Tensor,
        shares: cute.Tensor,
        sequence: Int32,
        head: Int32,
        row: Int32,
        total: Float32,
        highest: Float32,
    ) -> None:
        """Normalise, scale, round once and write one query row."""
        thread, _, _ = cute.arch.thread_idx()
        inverse = Float32(0.0)
        if total > 0.0:
            inverse = v_scale[sequence, head] / total
        query_head = head * self.geometry.gqa + row
        for part in cutlass.range_constexpr(self.geometry.head_dim // (WARPS * 32)):
            d = thread + part * WARPS * 32
            value = Float32(0.0)
            for w in cutlass.range_constexpr(WARPS):
                value += shares[d, w]
            if cutlass.const_expr(self.fault != "silent"):
                out[d, query_head, sequence] = (value * inverse).to(out.element_type)
        if cutlass.const_expr(self.lse):
            if thread == 0:
                log2 = -Float32.inf
                if total > 0.0:
                    log2 = highest + cute.math.log2(total)
                lse[query_head, sequence] = log2 * Float32(0.6931471805599453)


def launch_shape(variant: Variant, grid: Int32) -> dict[str, object]:
    """Grid and block of the merge: one block for each inner cut and query row."""
    return {
        "grid": [grid - 1, variant.geometry.rows, 1],
        "block": [WARPS * 32, 1, 1],
        "use_pdl": bool(variant.pdl),
    }
