"""The plan on the device: one block, once a step for all layers. The rule is that of `mjolnir.kernel.plan`.

Beside (item, tile) each cut that lies inside an item keeps the slot of the item's first chunk, and one past the last
CTA that has a chunk of it; other cuts keep zeros. The merge's counters are zeroed on the way.
"""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, Int64, cute
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

from mjolnir.kernel.geometry import TILE

THREADS = 512
MAX_BATCH = 8192
"""The largest batch: the first tile of each sequence is kept in shared memory."""


class Planner:
    """The plan kernel; items of a sequence, splits and margin are run-time arguments."""

    @cute.jit
    def __call__(
        self,
        lengths: cute.Tensor,
        cuts: cute.Tensor,
        tiles: cute.Tensor,
        counters: cute.Tensor,
        items: Int32,
        max_splits: Int32,
        capacity: Int32,
        margin: Int32,
        stream: cuda.CUstream,
    ) -> None:
        """Fill `cuts` (grid + 1, 4) and `tiles` (batch,) from `lengths` (batch,), all int32; `items` of a sequence."""
        self.kernel(lengths, cuts, tiles, counters, items, max_splits, capacity, margin).launch(
            grid=[1, 1, 1], block=[THREADS, 1, 1], stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        lengths: cute.Tensor,
        cuts: cute.Tensor,
        tiles: cute.Tensor,
        counters: cute.Tensor,
        items: Int32,
        max_splits: Int32,
        capacity: Int32,
        margin: Int32,
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        batch = cute.size(lengths)
        grid = cute.size(cuts, mode=[0]) - 1
        smem = cutlass.utils.SmemAllocator()
        starts = smem.allocate_tensor(Int32, cute.make_layout(MAX_BATCH + 1), byte_alignment=16)
        sums = smem.allocate_tensor(Int32, cute.make_layout(THREADS // 32), byte_alignment=16)
        total, longest = Int32(0), Int32(0)
        for base in cutlass.range(0, batch, THREADS, unroll=1):
            sequence = base + thread
            mine = Int32(0)
            if sequence < batch:
                mine = self._tiles(lengths[sequence], capacity, margin)
                tiles[sequence] = mine
                longest = cutlass.max(longest, mine)
                mine = mine * items
            before, all_ = self._scan(mine, sums)
            if sequence < batch:
                starts[sequence] = total + before
            total += all_
        longest = self._longest(longest, sums)
        length, pieces = self._run_length(total, longest, batch * items, grid, max_splits)
        for cut in cutlass.range(thread, grid + 1, THREADS, unroll=1):
            item, tile = batch * items, Int32(0)
            place = cut * (length // pieces) + cut * (length % pieces) // pieces
            if cut < grid and place < total:
                item, tile = self._cut(starts, tiles, batch, items, max_splits, place)
            cuts[cut, 0] = item
            cuts[cut, 1] = tile
        cute.arch.fence_acq_rel_cta()
        cute.arch.sync_threads()
        for cut in cutlass.range(thread, grid + 1, THREADS, unroll=1):
            cuts[cut, 2], cuts[cut, 3] = self._merge_span(cuts, cut, grid)
        for counter in cutlass.range(thread, cute.size(counters), THREADS, unroll=1):
            counters[counter] = Int32(0)

    @cute.jit
    def _tiles(self, length: Int32, capacity: Int32, margin: Int32) -> Int32:
        """Planned tiles of one sequence's items."""
        planned = Int32(1)
        if length > 0:
            planned = cutlass.max(cute.ceil_div(cutlass.min(length + margin, capacity), TILE), Int32(1))
        return planned

    @cute.jit
    def _scan(self, value: Int32, sums: cute.Tensor) -> tuple[Int32, Int32]:
        """Sum over the threads below this one, and over all threads of the block."""
        lane = cute.arch.lane_idx()
        warp = cute.arch.warp_idx()
        inclusive = value
        for bit in cutlass.range_constexpr(5):
            other = cute.arch.shuffle_sync_up(inclusive, offset=1 << bit, mask_and_clamp=0)
            if lane >= 1 << bit:
                inclusive += other
        cute.arch.sync_threads()
        if lane == 31:
            sums[warp] = inclusive
        cute.arch.sync_threads()
        before, total = Int32(0), Int32(0)
        for other_warp in cutlass.range_constexpr(THREADS // 32):
            total += sums[other_warp]
            if other_warp < warp:
                before += sums[other_warp]
        return before + inclusive - value, total

    @cute.jit
    def _longest(self, value: Int32, sums: cute.Tensor) -> Int32:
        """Maximum over the threads of the block."""
        warp = cute.arch.warp_idx()
        for bit in cutlass.range_constexpr(5):
            value = cutlass.max(value, cute.arch.shuffle_sync_bfly(value, offset=1 << bit))
        cute.arch.sync_threads()
        if cute.arch.lane_idx() == 0:
            sums[warp] = value
        cute.arch.sync_threads()
        for other_warp in cutlass.range_constexpr(THREADS // 32):
            value = cutlass.max(value, sums[other_warp])
        return value

    @cute.jit
    def _run_length(
        self, total: Int32, longest: Int32, items: Int32, grid: Int32, max_splits: Int32
    ) -> tuple[Int32, Int32]:
        """Tiles of a run as a fraction; `plan.run_length`, its products in 64 bits."""
        length, pieces = total, grid
        most = Int64(9) * Int64(total)
        if Int64(longest) * Int64(grid) < Int64(total):
            run = cute.ceil_div(total, grid * longest) * longest
            if Int64(8) * Int64(run) * Int64(grid) <= most:
                length, pieces = run, Int32(1)
        else:
            filling = (Int64(longest) * Int64(grid) // Int64(total)).to(Int32)
            chunks = filling
            if max_splits > 0:
                chunks = cutlass.min(filling, max_splits)
            limited = chunks < filling and Int64(longest) * Int64(items) == Int64(total)
            if limited or Int64(8) * Int64(longest) * Int64(grid) <= most * Int64(chunks):
                length, pieces = longest, chunks
        return length, pieces

    @cute.jit
    def _cut(
        self, starts: cute.Tensor, tiles: cute.Tensor, batch: Int32, items: Int32, max_splits: Int32, place: Int32
    ) -> tuple[Int32, Int32]:
        """The cut nearest to `place` on the line of tiles that its item allows."""
        low, high = Int32(0), batch - 1
        while low < high:
            middle = (low + high + 1) // 2
            if starts[middle] <= place:
                low = middle
            else:
                high = middle - 1
        count = tiles[low]
        offset = place - starts[low]
        item = low * items + offset // count
        tile = offset % count
        grain = Int32(1)
        if max_splits > 0:
            grain = cute.ceil_div(count, max_splits)
        down = tile // grain * grain
        up = cutlass.min(down + grain, count)
        if tile - down > up - tile:
            down = up
        if down == count:
            item += 1
            down = Int32(0)
        return item, down

    @cute.jit
    def _merge_span(self, cuts: cute.Tensor, cut: Int32, grid: Int32) -> tuple[Int32, Int32]:
        """Slot of the first chunk of the item that this cut lies in, and one past the last CTA with a chunk of it."""
        item = cuts[cut, 0]
        slot, end = Int32(0), Int32(0)
        if cuts[cut, 1] > 0:
            # the last cut before the item, or at its start: the run of its CTA holds the first chunk
            low, high = Int32(0), cut - 1
            while low < high:
                middle = (low + high + 1) // 2
                inside = cuts[middle, 0] == item and cuts[middle, 1] > 0
                if inside:
                    high = middle - 1
                else:
                    low = middle
            slot = 2 * low
            if cuts[low, 0] != item:
                slot += 1
            # the first cut beyond the item: its CTA has nothing of it
            low, high = cut + 1, grid
            while low < high:
                middle = (low + high) // 2
                if cuts[middle, 0] > item:
                    high = middle
                else:
                    low = middle + 1
            end = low
        return slot, end


def arguments() -> tuple[object, ...]:
    """Symbolic arguments to compile the planner with."""
    batch, rows = cute.sym_int32(), cute.sym_int32()
    lengths = make_fake_compact_tensor(Int32, (batch,))
    cuts = make_fake_compact_tensor(Int32, (rows, 4), stride_order=(1, 0), assumed_align=16)
    tiles = make_fake_compact_tensor(Int32, (batch,))
    counters = make_fake_compact_tensor(Int32, (cute.sym_int32(),))
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    return lengths, cuts, tiles, counters, Int32(1), Int32(0), Int32(1), Int32(0), stream
