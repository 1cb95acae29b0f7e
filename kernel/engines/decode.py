"""The decode kernel: each CTA walks its run of the plan, a ring flowing across item borders.

One warp loads tiles, four or eight compute. What they compute with is the engine's `Consumer`; which items and tiles,
in what order, and where the results go is the same for all engines.
"""

from __future__ import annotations

import cutlass
from cutlass import Boolean, Float8E4M3FN, Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync

from mjolnir.kernel.engine import TILE_WARPS, WGMMA
from mjolnir.kernel.engines import ptx, warp, wgmma
from mjolnir.kernel.engines.masking import Masking
from mjolnir.kernel.engines.merge import Merge
from mjolnir.kernel.engines.operands import Chunk, Operands, item_of
from mjolnir.kernel.engines.output import Output
from mjolnir.kernel.engines.query import LINE_BYTES, Query
from mjolnir.kernel.engines.ring import Barriers, Pool, Ring
from mjolnir.kernel.geometry import TILE
from mjolnir.kernel.variant import Variant, warpgroup_registers


class Decode:
    """One variant of the decode kernel."""

    def __init__(self, variant: Variant) -> None:
        self.geometry, self.engine = variant.geometry, variant.shape
        self.pdl, self.merging, self.ctas_per_sm = bool(variant.pdl), variant.merge, variant.ctas_per_sm
        self.ring = Ring(
            variant.geometry.head_dim,
            variant.geometry.page_size,
            variant.kv_stages,
            variant.l2_prefetch,
            bool(variant.kv_evict_first),
        )
        self.output = Output(self.geometry, self.engine, variant.o_mul, variant.lse, variant.fault)
        reads = 8 if variant.ctas_per_sm > 2 else 32 if self.engine.name == WGMMA else 16
        self.warps = variant.consumer_warps
        self.registers = warpgroup_registers(variant.ctas_per_sm) if self.engine.name == WGMMA else (0, 0)
        self.merge = Merge(self.geometry, self.engine, self.output, self.warps, warp.BARRIER, reads)
        made = wgmma.WgmmaConsumer if self.engine.name == WGMMA else warp.WarpConsumer
        self.consumer = made(
            self.geometry,
            self.engine,
            self.ring,
            Query(self.geometry, variant.q_mul),
            Masking(self.geometry, variant.fault),
            self.output,
            self.warps,
            self.ctas_per_sm,
        )

    @cute.kernel
    def kernel(
        self,
        tma_k: cute.CopyAtom,
        cache_k: cute.Tensor,
        tma_v: cute.CopyAtom,
        cache_v: cute.Tensor,
        query: cute.Tensor,
        out: cute.Tensor,
        lse: cute.Tensor,
        table: cute.Tensor,
        lengths: cute.Tensor,
        tiles: cute.Tensor,
        cuts: cute.Tensor,
        k_scale: cute.Tensor,
        v_scale: cute.Tensor,
        q_mul: cute.Tensor,
        o_mul: cute.Tensor,
        partial: cute.Tensor,
        partial_lse: cute.Tensor,
        counters: cute.Tensor,
        scale: Float32,
        ring_layout: cute.ComposedLayout,
    ) -> None:
        """One CTA's run.

        Args:
            tma_k, cache_k, tma_v, cache_v: TMA atoms and coordinate tensors (page rows, head_dim, heads_kv, blocks).
            query ... scale: see `Operands`.
            ring_layout: swizzled layout of the ring.
        """
        ring = self.ring
        operands = Operands(
            query, out, lse, table, lengths, tiles, cuts, k_scale, v_scale, q_mul, o_mul, partial, partial_lse,
            counters, scale,
        )  # fmt: skip
        number = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.utils.SmemAllocator()
        cells = smem.allocate_tensor(Float8E4M3FN, ring_layout.outer, byte_alignment=1024, swizzle=ring_layout.inner)
        count = cutlass.const_expr(ring.stages * ring.halves)
        barriers = Barriers(smem.allocate_array(Int64, count), smem.allocate_array(Int64, count))
        shared = self.consumer.allocate(smem)
        if number == self.warps:
            cpasync.prefetch_descriptor(tma_k)
            cpasync.prefetch_descriptor(tma_v)
            with cute.arch.elect_one():
                for barrier in cutlass.range_constexpr(count):
                    cute.arch.mbarrier_init(barriers.full + barrier, 1)
                    cute.arch.mbarrier_init(barriers.empty + barrier, TILE_WARPS)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        if cutlass.const_expr(self.pdl):
            # what follows in the chain may take its place early; it waits for this grid's end all the same
            cute.arch.griddepcontrol_launch_dependents()
            cute.arch.griddepcontrol_wait()
        self._touch_lengths(operands)
        begin, stop = self._run(operands)
        if number >= self.warps:
            if cutlass.const_expr(self.registers[0] > 0):
                cute.arch.setmaxregister_decrease(self.registers[1])
            if number == self.warps:
                self._load(operands, begin, stop, ring.pool(tma_k, cache_k, tma_v, cache_v, cells), barriers)
        else:
            if cutlass.const_expr(self.registers[0] > 0):
                cute.arch.setmaxregister_increase(self.registers[0])
            self._compute(operands, begin, stop, barriers, shared, cells.iterator.toint())

    @cute.jit
    def _touch_lengths(self, operands: Operands) -> None:
        """Bring lengths and tiles into L1 while the cuts, which say whose are needed, are still on their way."""
        first = cute.arch.lane_idx() * (LINE_BYTES // 4)
        if first < cute.size(operands.lengths):
            ptx.touch_global((operands.lengths.iterator + first).toint())
            ptx.touch_global((operands.tiles.iterator + first).toint())

    @cute.jit
    def _touch(self, operands: Operands, number: Int32) -> None:
        """Bring an item's query rows and scales into L1 before they are needed."""
        item = item_of(number, self.geometry, self.engine)
        self.consumer.query.touch(operands.query, item, self.engine.rows)
        for scale in (operands.k_scale, operands.v_scale):
            ptx.touch_global(scale[item.sequence, None].iterator.toint() + item.head * scale.stride[1] * 4)

    @cute.jit
    def _run(self, operands: Operands) -> tuple[Int32, Int32]:
        """The first item of this CTA's run, and one past the last.

        A run that is empty inside an item still has a part of it: the merge waits for it.
        """
        cta, _, _ = cute.arch.block_idx()
        stop = operands.cuts[cta + 1, 0]
        if operands.cuts[cta + 1, 1] > 0:
            stop += 1
        return operands.cuts[cta, 0], stop

    @cute.jit
    def _bounds(self, operands: Operands, number: Int32) -> tuple[Int32, Int32, Int32]:
        """First tile and one past the last tile of the run's part of an item, and the sequence's true length.

        The cuts are read anew for each item: they would take registers that the loop over tiles needs.
        """
        cta, _, _ = cute.arch.block_idx()
        sequence = item_of(number, self.geometry, self.engine).sequence
        low, high = Int32(0), operands.tiles[sequence]
        if number == operands.cuts[cta, 0]:
            low = operands.cuts[cta, 1]
        if number == operands.cuts[cta + 1, 0]:
            high = operands.cuts[cta + 1, 1]
        capacity = cute.size(operands.table, mode=[1]) * self.geometry.page_size
        return low, high, cutlass.min(cutlass.max(operands.lengths[sequence], Int32(0)), capacity)

    @cute.jit
    def _load(self, operands: Operands, begin: Int32, stop: Int32, pool: Pool, barriers: Barriers) -> None:
        """The loading warp: what the next item needs to be known is read while the one before is loaded."""
        ring, table = self.ring, operands.table
        cta, _, _ = cute.arch.block_idx()
        position = Int32(0)
        if begin < stop:
            first = item_of(begin, self.geometry, self.engine)
            here = ring.entries(table, first.sequence, ring.window_of(operands.cuts[cta, 1]))
            low, high, length = self._bounds(operands, begin)
            for number in cutlass.range(begin, stop, unroll=1):
                item = item_of(number, self.geometry, self.engine)
                following = cutlass.min(number + 1, stop - 1)
                later = item_of(following, self.geometry, self.engine)
                next_here = ring.entries(table, later.sequence, Int32(0))
                next_low, next_high, next_length = self._bounds(operands, following)
                live = cutlass.min(high, cute.ceil_div(length, TILE))
                pages = cute.ceil_div(length, self.geometry.page_size)
                ring.load_tiles(pool, barriers, table, item, low, live, pages, here, position)
                position += cutlass.max(live - low, Int32(0))
                here, low, high, length = next_here, next_low, next_high, next_length

    @cute.jit
    def _compute(
        self,
        operands: Operands,
        begin: Int32,
        stop: Int32,
        barriers: Barriers,
        shared: warp.Shared | wgmma.Shared,
        cells: Int32,
    ) -> None:
        """The computing warps."""
        position = Int32(0)
        if begin < stop:
            self._touch(operands, begin)
        for number in cutlass.range(begin, stop, unroll=1):
            chunk = self._chunk(operands, begin, number)
            if number + 1 < stop:
                self._touch(operands, number + 1)
            if chunk.low < chunk.live:
                self.consumer.attend(operands, chunk, barriers, shared, cells, position)
                position += chunk.live - chunk.low
            else:
                self._write_empty(operands, chunk)
            if cutlass.const_expr(self.merging):
                if not chunk.whole:
                    self.merge.bring(operands, chunk, shared.flag)

    @cute.jit
    def _chunk(self, operands: Operands, begin: Int32, number: Int32) -> Chunk:
        """The run's part of an item."""
        low, high, length = self._bounds(operands, number)
        cta, _, _ = cute.arch.block_idx()
        item = item_of(number, self.geometry, self.engine)
        whole = low == 0 and high == operands.tiles[item.sequence]
        if cutlass.const_expr(not self.merging):
            whole = Boolean(True)
        slot = 2 * cta
        if number > begin:
            slot += 1
        return Chunk(item, low, cutlass.min(high, cute.ceil_div(length, TILE)), length, whole, slot)

    @cute.jit
    def _write_empty(self, operands: Operands, chunk: Chunk) -> None:
        """Write an item, or a chunk, in which no token is live: zeros and -inf."""
        thread, _, _ = cute.arch.thread_idx()
        if chunk.whole:
            self.output.write_zeros(operands, chunk.item, thread)
        else:
            if thread < self.engine.rows:
                operands.partial_lse[chunk.slot, thread] = -Float32.inf


def launch_shape(variant: Variant, grid: Int32) -> dict[str, object]:
    """Grid, block and residency of the decode kernel."""
    return {
        "grid": [grid, 1, 1],
        "block": [variant.threads, 1, 1],
        "use_pdl": bool(variant.pdl),
        "min_blocks_per_mp": variant.ctas_per_sm,
        "preferred_smem_carveout": 100,
    }
