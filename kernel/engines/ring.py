"""The shared-memory ring of KV tiles and the warp that fills it with TMA.

A stage holds K and V of one tile of 64 tokens, each as blocks of 128 bytes of a row (one for a head of 128, two for
256): block after block, 64 rows each, with TMA's 128-byte swizzle. Long heads have K and V come and go by themselves
(`halves`): K's half of a stage is loaded anew while V is still read, which makes up for their having few stages.

A block of a tile is filled by one TMA box where a page has 64 tokens or more (a page of 128 holds two tiles), else by
one box per page, so that its rows are contiguous whatever the page size.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Float8E4M3FN, Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync

from mjolnir.kernel.engines.operands import Item
from mjolnir.kernel.engines.ptx import EVICT_FIRST, EVICT_NORMAL
from mjolnir.kernel.geometry import TILE

WINDOW = 32
"""Block-table entries that the loading warp holds at a time, one a lane."""

ROW_BYTES = 128
"""Bytes of one row of a block, the width of TMA's widest swizzle."""

BLOCK_BYTES = TILE * ROW_BYTES
"""Bytes of one block of K or V of a tile."""


@dataclass(frozen=True)
class Pool:
    """TMA atoms of the two caches, and their boxes in shared (0) and global memory (1)."""

    tma_k: cute.CopyAtom
    tma_v: cute.CopyAtom
    boxes_k: tuple[cute.Tensor, cute.Tensor]
    boxes_v: tuple[cute.Tensor, cute.Tensor]


@dataclass(frozen=True)
class Barriers:
    """Mbarriers that say what is full, and what is empty: one a stage, or one for its K and one for its V."""

    full: cute.Pointer
    empty: cute.Pointer


@dataclass(frozen=True)
class Ring:
    """Shape of the ring, and its producer.

    Attributes:
        head_dim: bytes of one row of K or V.
        page_size: tokens of one page.
        stages: depth in tiles.
        prefetch: tiles ahead of the one being loaded that are prefetched into L2.
        evict_first: whether KV loads carry the evict-first policy.
    """

    head_dim: int
    page_size: int
    stages: int
    prefetch: int
    evict_first: bool

    @property
    def box_rows(self) -> int:
        """Tokens of one TMA box."""
        return min(TILE, self.page_size)

    @property
    def boxes(self) -> int:
        """Boxes of a block of K (and of V) of one tile."""
        return TILE // self.box_rows

    @property
    def blocks(self) -> int:
        """Blocks of 128 bytes of a row."""
        return self.head_dim // ROW_BYTES

    @property
    def tiles_per_page(self) -> int:
        """Tiles in one page, at least 1."""
        return max(1, self.page_size // TILE)

    @property
    def halves(self) -> int:
        """2 where K and V of a stage are loaded and released by themselves, as for long heads; else 1."""
        return 2 if self.head_dim > ROW_BYTES else 1

    @property
    def stage_bytes(self) -> int:
        """Bytes of one stage."""
        return 2 * TILE * self.head_dim

    @property
    def box(self) -> tuple[int, int]:
        """Rows and bytes of one TMA box."""
        return self.box_rows, ROW_BYTES

    def layouts(self) -> tuple[cute.ComposedLayout, cute.ComposedLayout]:
        """Swizzled layouts of one box and of the whole ring, (rows, bytes[, boxes of all stages])."""
        atom = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, cute.make_layout((8, 128), stride=(128, 1)))
        one = cute.tile_to_shape(atom, self.box, (0, 1))
        every = cute.tile_to_shape(atom, (*self.box, 2 * self.blocks * self.boxes * self.stages), (0, 1, 2))
        return one, every

    @cute.jit
    def pool(
        self, tma_k: cute.CopyAtom, cache_k: cute.Tensor, tma_v: cute.CopyAtom, cache_v: cute.Tensor, cells: cute.Tensor
    ) -> Pool:
        """Cut caches (page rows, head_dim, heads, blocks) and ring into boxes."""
        one = cute.make_layout(1)
        shared = cute.group_modes(cells, 0, 2)
        every = (None, None, None, None)
        k = cute.group_modes(cute.local_tile(cache_k, self.box, every), 0, 2)
        v = cute.group_modes(cute.local_tile(cache_v, self.box, every), 0, 2)
        boxes_k, boxes_v = (cpasync.tma_partition(tma, 0, one, shared, g) for tma, g in ((tma_k, k), (tma_v, v)))
        return Pool(tma_k, tma_v, boxes_k, boxes_v)

    @cute.jit
    def place(self, position: Int32) -> tuple[Int32, Int32]:
        """Stage of the CTA's `position`-th tile, and the parity of its round through the ring."""
        return position % self.stages, position // self.stages % 2

    @cute.jit
    def wait_keys(self, barriers: Barriers, stage: Int32, parity: Int32) -> None:
        """Wait until K of a stage is there, and V too where they come together."""
        cute.arch.mbarrier_wait(barriers.full + stage * self.halves, parity)

    @cute.jit
    def wait_values(self, barriers: Barriers, stage: Int32, parity: Int32) -> None:
        """Wait until V of a stage is there; behind `wait_keys`."""
        if cutlass.const_expr(self.halves == 2):
            cute.arch.mbarrier_wait(barriers.full + (stage * 2 + 1), parity)

    @cute.jit
    def release_keys(self, barriers: Barriers, stage: Int32) -> None:
        """This warp has read what it needs of a stage's K."""
        if cutlass.const_expr(self.halves == 2):
            release(barriers.empty + stage * 2)

    @cute.jit
    def release_values(self, barriers: Barriers, stage: Int32) -> None:
        """This warp has read what it needs of a stage's V, and of its K before."""
        release(barriers.empty + (stage * self.halves + self.halves - 1))

    @cute.jit
    def window_of(self, tile: Int32) -> Int32:
        """The page that a tile begins in, where its window of block-table entries begins."""
        return tile * TILE // self.page_size

    @cute.jit
    def entries(self, table: cute.Tensor, sequence: Int32, page: Int32) -> Int32:
        """Each lane's block-table entry of the window that starts at `page`.

        Entries beyond the sequence's pages are read with the others, so that the read need not wait for the length,
        and never followed.
        """
        mine = page + cute.arch.lane_idx()
        entry = Int32(0)
        if mine < cute.size(table, mode=[1]):
            entry = table[sequence, mine]
        return entry

    @cute.jit
    def load_tiles(
        self, pool: Pool, barriers: Barriers, table: cute.Tensor, item: Item,
        first: Int32, last: Int32, pages: Int32, here: Int32, position: Int32,
    ) -> None:  # fmt: skip
        """Load tiles `first` to `last` of one item, of which `pages` pages are live, from `position` of the ring on.

        Run by one whole warp. `here` are the entries of the first tile's window. Entries from `pages` on are not
        followed, not by a prefetch either.
        """
        window = self.window_of(first)
        ahead = here
        if cutlass.const_expr(self.prefetch > 0):
            ahead = self.entries(table, item.sequence, window + WINDOW)
        for tile in cutlass.range(first, last, unroll=1):
            page = self.window_of(tile)
            if page >= window + WINDOW:
                window += WINDOW
                if cutlass.const_expr(self.prefetch > 0):
                    here = ahead
                    ahead = self.entries(table, item.sequence, window + WINDOW)
                else:
                    here = self.entries(table, item.sequence, window)
            if cutlass.const_expr(self.prefetch > 0):
                if tile + self.prefetch < last:
                    self._prefetch_tile(pool, here, ahead, window, tile + self.prefetch, item.head, pages)
            live = cutlass.min(Int32(self.boxes), pages - page)
            stage, parity = self.place(position + (tile - first))
            for half in cutlass.range_constexpr(self.halves):
                number = stage * self.halves + half
                cute.arch.mbarrier_wait(barriers.empty + number, parity ^ 1)
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(
                        barriers.full + number, live * (2 // self.halves * self.box_rows * self.head_dim)
                    )
                self._load_tile(
                    pool, barriers.full + number, here, page - window, live, tile % self.tiles_per_page, item.head,
                    stage, half,
                )  # fmt: skip

    @cute.jit
    def _load_tile(
        self, pool: Pool, full: cute.Pointer, entries: Int32, offset: Int32, live: Int32, row: Int32, head: Int32,
        stage: Int32, half: cutlass.Constexpr[int],
    ) -> None:  # fmt: skip
        """Load what `half` is of a tile: K if it is the first, V if it is the last."""
        policy = Int64(EVICT_FIRST if cutlass.const_expr(self.evict_first) else EVICT_NORMAL)
        for box in cutlass.range_constexpr(self.boxes):
            if box < live:
                page = cute.arch.shuffle_sync(entries, offset + box)
                for block in cutlass.range_constexpr(self.blocks):
                    k = (stage * 2 * self.blocks + block) * self.boxes + box
                    v = k + self.blocks * self.boxes
                    if cutlass.const_expr(half == 0):
                        cute.copy(
                            pool.tma_k, pool.boxes_k[1][None, row, block, head, page], pool.boxes_k[0][None, k],
                            tma_bar_ptr=full, cache_policy=policy,
                        )  # fmt: skip
                    if cutlass.const_expr(half == self.halves - 1):
                        cute.copy(
                            pool.tma_v, pool.boxes_v[1][None, row, block, head, page], pool.boxes_v[0][None, v],
                            tma_bar_ptr=full, cache_policy=policy,
                        )  # fmt: skip

    @cute.jit
    def _prefetch_tile(
        self, pool: Pool, here: Int32, ahead: Int32, window: Int32, tile: Int32, head: Int32, pages: Int32
    ) -> None:
        first = self.window_of(tile)
        row = tile % self.tiles_per_page
        for box in cutlass.range_constexpr(self.boxes):
            if first + box < pages:
                offset = first + box - window
                page = cute.arch.shuffle_sync(here, offset % WINDOW)
                if offset >= WINDOW:
                    page = cute.arch.shuffle_sync(ahead, offset % WINDOW)
                for block in cutlass.range_constexpr(self.blocks):
                    cute.prefetch(pool.tma_k, pool.boxes_k[1][None, row, block, head, page])
                    cute.prefetch(pool.tma_v, pool.boxes_v[1][None, row, block, head, page])


def swizzled(
    tensor: cute.Tensor, box: tuple[int, int], layout: cute.ComposedLayout
) -> tuple[cute.CopyAtom, cute.Tensor]:
    """The TMA atom and coordinate tensor of one cache view, (page rows, head_dim, heads, blocks)."""
    return cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), tensor, layout, box)


def pool_view(cache: cute.Tensor) -> cute.Tensor:
    """A cache (blocks, page rows, heads, head_dim) of bytes as e4m3 (page rows, head_dim, heads, blocks)."""
    layout = cute.select(cache.layout, mode=[1, 3, 2, 0])
    return cute.make_tensor(cute.recast_ptr(cache.iterator, dtype=Float8E4M3FN), layout)


@cute.jit
def release(barrier: cute.Pointer) -> None:
    """Count this warp at an `empty` barrier, which waits for the computing warps of a tile."""
    cute.arch.sync_warp()
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive(barrier)


@cute.jit
def fence_stores() -> None:
    """TMA may overwrite what this thread wrote into a stage by ordinary stores; before the stage's release."""
    cute.arch.fence_proxy("async.shared", space="cta")
