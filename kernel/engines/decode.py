"""The decode kernel of the `warp` engine: each CTA walks its run of the plan, a ring flowing across item borders."""

from __future__ import annotations

import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync

from mjolnir.kernel.engines.ring import Ring
from mjolnir.kernel.engines.warp import BARRIER, CONSUMERS, WARP_TOKENS, Consumer
from mjolnir.kernel.geometry import TILE, Geometry
from mjolnir.kernel.variant import CONSUMER_WARPS, THREADS, Variant


class Decode:
    """One variant of the decode kernel."""

    def __init__(self, variant: Variant) -> None:
        self.geometry: Geometry = variant.geometry
        self.pdl = bool(variant.pdl)
        self.fault = variant.fault
        self.merge = variant.merge
        self.ctas_per_sm = variant.ctas_per_sm
        self.ring = Ring(
            variant.geometry.head_dim,
            variant.geometry.page_size,
            variant.kv_stages,
            variant.l2_prefetch,
            bool(variant.kv_evict_first),
        )
        self.consumer = Consumer(variant.geometry, variant.fault, variant.lse)

    @cute.kernel
    def kernel(
        self,
        tma_k: cute.CopyAtom,
        pool_k: cute.Tensor,
        tma_v: cute.CopyAtom,
        pool_v: cute.Tensor,
        query: cute.Tensor,
        out: cute.Tensor,
        lse: cute.Tensor,
        table: cute.Tensor,
        lengths: cute.Tensor,
        cuts: cute.Tensor,
        tiles: cute.Tensor,
        k_scale: cute.Tensor,
        v_scale: cute.Tensor,
        partial: cute.Tensor,
        partial_lse: cute.Tensor,
        scale: Float32,
        ring_layout: cute.ComposedLayout,
    ) -> None:
        """One CTA's run.

        Args:
            tma_k, pool_k, tma_v, pool_v: TMA atoms and coordinate tensors (page rows, head_dim, heads_kv, blocks).
            query, out: (head_dim, heads_q, sequences), bf16 or f16.
            lse: (heads_q, sequences), f32, natural logarithm.
            table: (sequences, width), int32.
            lengths, tiles: (sequences,), int32; tiles are the planned ones.
            cuts: (grid + 1, 4), int32: item, tile, merge end (see `planner`), unused.
            k_scale, v_scale: (sequences, heads_kv), f32, any strides.
            partial: (2 grid, rows, head_dim), f32.
            partial_lse: (2 grid, rows), f32, base 2.
            scale: softmax scale times log2(e).
            ring_layout: swizzled layout of the ring.
        """
        ring = self.ring
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.utils.SmemAllocator()
        cells = smem.allocate_tensor(
            cutlass.Float8E4M3FN, ring_layout.outer, byte_alignment=1024, swizzle=ring_layout.inner
        )
        full = smem.allocate_array(Int64, ring.stages)
        empty = smem.allocate_array(Int64, ring.stages)
        states = smem.allocate_tensor(Float32, cute.make_layout((2, 16, CONSUMER_WARPS)), byte_alignment=16)
        if warp == CONSUMER_WARPS:
            cpasync.prefetch_descriptor(tma_k)
            cpasync.prefetch_descriptor(tma_v)
            with cute.arch.elect_one():
                for stage in cutlass.range_constexpr(ring.stages):
                    cute.arch.mbarrier_init(full + stage, 1)
                    cute.arch.mbarrier_init(empty + stage, CONSUMER_WARPS)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        if cutlass.const_expr(self.pdl):
            cute.arch.griddepcontrol_wait()
        cta, _, _ = cute.arch.block_idx()
        begin, first = cuts[cta, 0], cuts[cta, 1]
        end, last = cuts[cta + 1, 0], cuts[cta + 1, 1]
        stop = end
        if last > 0:
            stop = end + 1
        if begin == end:
            if first == last:
                stop = begin
        box = (ring.box_rows, ring.head_dim)
        one = cute.make_layout(1)
        grouped = cute.group_modes(cells, 0, 2)
        boxes_k = cpasync.tma_partition(
            tma_k, 0, one, grouped, cute.group_modes(cute.local_tile(pool_k, box, (None, None, None, None)), 0, 2)
        )
        boxes_v = cpasync.tma_partition(
            tma_v, 0, one, grouped, cute.group_modes(cute.local_tile(pool_v, box, (None, None, None, None)), 0, 2)
        )
        capacity = cute.size(table, mode=[1]) * self.geometry.page_size
        if warp == CONSUMER_WARPS:
            stage, phase = Int32(0), Int32(1)
            for item in cutlass.range(begin, stop, unroll=1):
                sequence = item // self.geometry.heads_kv
                low, high, length = self._bounds(item, sequence, begin, first, end, last, lengths, tiles, capacity)
                stage, phase = ring.load_tiles(
                    tma_k, tma_v, boxes_k, boxes_v, full, empty, table, sequence,
                    item % self.geometry.heads_kv, low, cutlass.min(high, cute.ceil_div(length, TILE)),
                    cute.ceil_div(length, self.geometry.page_size), stage, phase,
                )  # fmt: skip
            if cutlass.const_expr(self.pdl):
                cute.arch.griddepcontrol_launch_dependents()
        else:
            base = cells.iterator.toint() + warp * WARP_TOKENS * 128
            scratch = cells.iterator.toint()
            if begin == stop:
                self._write_nothing(cta, partial_lse)
            stage, phase = Int32(0), Int32(0)
            for item in cutlass.range(begin, stop, unroll=1):
                sequence = item // self.geometry.heads_kv
                head = item % self.geometry.heads_kv
                low, high, length = self._bounds(item, sequence, begin, first, end, last, lengths, tiles, capacity)
                whole = low == 0 and high == tiles[sequence]
                slot = 2 * cta
                if item > begin:
                    slot = 2 * cta + 1
                live = cutlass.min(high, cute.ceil_div(length, TILE))
                factor = scale * k_scale[sequence, head]
                value_scale = v_scale[sequence, head]
                if low < live:
                    stage, phase = self._chunk(
                        query, out, lse, partial, partial_lse, full, empty, states, base, scratch,
                        sequence, head, low, live, length, slot, whole, factor, value_scale, stage, phase,
                    )  # fmt: skip
                else:
                    self._write_empty(out, lse, partial_lse, sequence, head, slot, whole)

    @cute.jit
    def _bounds(
        self, item: Int32, sequence: Int32, begin: Int32, first: Int32, end: Int32, last: Int32,
        lengths: cute.Tensor, tiles: cute.Tensor, capacity: Int32,
    ) -> tuple[Int32, Int32, Int32]:  # fmt: skip
        """First tile and one past the last tile of the chunk, and the sequence's true length."""
        low = Int32(0)
        if item == begin:
            low = first
        high = tiles[sequence]
        if item == end:
            high = last
        return low, high, cutlass.min(cutlass.max(lengths[sequence], Int32(0)), capacity)

    @cute.jit
    def _chunk(
        self, query: cute.Tensor, out: cute.Tensor, lse: cute.Tensor, partial: cute.Tensor, partial_lse: cute.Tensor,
        full: cute.Pointer, empty: cute.Pointer, states: cute.Tensor, base: Int32, scratch: Int32,
        sequence: Int32, head: Int32, low: Int32, live: Int32, length: Int32, slot: Int32, whole: cutlass.Boolean,
        factor: Float32, value_scale: Float32, stage: Int32, phase: Int32,
    ) -> tuple[Int32, Int32]:  # fmt: skip
        """Attend to tiles `low` to `live` of one item and write its output or its partial."""
        consumer, ring = self.consumer, self.ring
        fragment, unit = consumer.load_query(query, sequence, head)
        scales = cute.make_rmem_tensor((consumer.halves,), Float32)
        top = cute.make_rmem_tensor((consumer.halves,), Float32)
        total = cute.make_rmem_tensor((consumer.halves,), Float32)
        acc = cute.make_rmem_tensor((4, consumer.slices, consumer.halves), Float32)
        for half in cutlass.range_constexpr(consumer.halves):
            scales[half] = factor * unit[half]
            top[half] = -Float32.inf
            total[half] = Float32(0.0)
        acc.fill(0.0)
        for tile in cutlass.range(low, live, unroll=1):
            cute.arch.mbarrier_wait(full + stage, phase)
            k_address = base + stage * ring.stage_bytes
            v_address = k_address + ring.stage_bytes // 2
            seen = consumer.tokens_seen(length, tile)
            s = consumer.scores(fragment, k_address)
            if seen < TILE:
                consumer.mask(s, seen)
                consumer.clear_tail(v_address, seen)
            p = consumer.softmax(s, top, total, acc, scales)
            consumer.accumulate(acc, p, v_address)
            if tile + 1 < live:
                self._release(empty + stage)
                stage += 1
                if stage == ring.stages:
                    stage = Int32(0)
                    phase ^= 1
        self._finish(
            out, lse, partial, partial_lse, states, acc, top, total, scales, scratch + stage * ring.stage_bytes,
            sequence, head, slot, whole, value_scale,
        )  # fmt: skip
        self._release(empty + stage)
        stage += 1
        if stage == ring.stages:
            stage = Int32(0)
            phase ^= 1
        return stage, phase

    @cute.jit
    def _release(self, barrier: cute.Pointer) -> None:
        """Give a stage back; TMA may overwrite what this warp wrote there by ordinary stores."""
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(barrier)

    @cute.jit
    def _finish(
        self, out: cute.Tensor, lse: cute.Tensor, partial: cute.Tensor, partial_lse: cute.Tensor,
        states: cute.Tensor, acc: cute.Tensor, top: cute.Tensor, total: cute.Tensor, scales: cute.Tensor,
        scratch: Int32, sequence: Int32, head: Int32, slot: Int32, whole: cutlass.Boolean, value_scale: Float32,
    ) -> None:  # fmt: skip
        """Combine the warps and write the item's output, or its chunk's partial."""
        consumer, geometry = self.consumer, self.geometry
        thread, _, _ = cute.arch.thread_idx()
        consumer.meet(top, total, scales, states)
        for half in cutlass.range_constexpr(consumer.halves):
            consumer.spread(acc, half, states, scratch)
            cute.arch.barrier(barrier_id=BARRIER, number_of_threads=CONSUMERS)
            for row in cutlass.range_constexpr(min(8, geometry.rows - 8 * half)):
                for part in cutlass.range_constexpr(geometry.head_dim // CONSUMERS):
                    d = thread + part * CONSUMERS
                    value = consumer.gather(Int32(row), d, scratch)
                    r = cutlass.const_expr(8 * half + row)
                    if whole:
                        if cutlass.const_expr(self.fault != "silent"):
                            out[d, head * geometry.gqa + r, sequence] = (value * value_scale).to(out.element_type)
                    else:
                        partial[slot, r, d] = value
            if cutlass.const_expr(half + 1 < consumer.halves):
                cute.arch.barrier(barrier_id=BARRIER, number_of_threads=CONSUMERS)
        if thread < geometry.rows:
            highest, z = consumer.common(states, thread)
            log2 = -Float32.inf
            if z > 0.0:
                log2 = highest + cute.math.log2(z)
            self._write_lse(lse, partial_lse, sequence, head, slot, whole, thread, log2)

    @cute.jit
    def _write_lse(
        self, lse: cute.Tensor, partial_lse: cute.Tensor, sequence: Int32, head: Int32, slot: Int32,
        whole: cutlass.Boolean, row: Int32, log2: Float32,
    ) -> None:  # fmt: skip
        if whole:
            if cutlass.const_expr(self.consumer.lse):
                lse[head * self.geometry.gqa + row, sequence] = log2 * Float32(0.6931471805599453)
        else:
            partial_lse[slot, row] = log2

    @cute.jit
    def _write_empty(
        self, out: cute.Tensor, lse: cute.Tensor, partial_lse: cute.Tensor,
        sequence: Int32, head: Int32, slot: Int32, whole: cutlass.Boolean,
    ) -> None:  # fmt: skip
        """Write an item, or a chunk, in which no token is live: zeros and -inf."""
        geometry = self.geometry
        thread, _, _ = cute.arch.thread_idx()
        if whole:
            if cutlass.const_expr(self.fault != "silent"):
                for row in cutlass.range_constexpr(geometry.rows):
                    for part in cutlass.range_constexpr(geometry.head_dim // CONSUMERS):
                        out[thread + part * CONSUMERS, head * geometry.gqa + row, sequence] = Float32(0.0).to(
                            out.element_type
                        )
        if thread < geometry.rows:
            self._write_lse(lse, partial_lse, sequence, head, slot, whole, thread, -Float32.inf)

    @cute.jit
    def _write_nothing(self, cta: Int32, partial_lse: cute.Tensor) -> None:
        """An empty run still clears its slot, so that a merge that spans it finds no stale partial."""
        thread, _, _ = cute.arch.thread_idx()
        if thread < self.geometry.rows:
            partial_lse[2 * cta, thread] = -Float32.inf


def launch_shape(variant: Variant, grid: Int32) -> dict[str, object]:
    """Grid, block and residency of the decode kernel."""
    return {
        "grid": [grid, 1, 1],
        "block": [THREADS, 1, 1],
        "use_pdl": bool(variant.pdl),
        "min_blocks_per_mp": variant.ctas_per_sm,
        "preferred_smem_carveout": 100,
    }
