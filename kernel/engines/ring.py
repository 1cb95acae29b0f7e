"""The shared-memory ring of KV tiles and the warp that fills it with TMA.

A stage holds K and V of one tile of 64 tokens. A tile is filled by one TMA box where a page has 64 tokens or more (a
page of 128 holds two tiles), else by one box per page. A box's rows lie one after the other, 128 bytes each with
TMA's 128-byte swizzle, so that the rows of a tile are contiguous whatever the page size.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Float8E4M3FN, Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync

from mjolnir.kernel.engines.ptx import EVICT_FIRST, EVICT_NORMAL
from mjolnir.kernel.geometry import TILE

WINDOW = 32
"""Block-table entries that the loading warp holds at a time, one a lane."""


@dataclass(frozen=True)
class Ring:
    """Shape of the ring, and its producer.

    Attributes:
        head_dim: bytes of one row.
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
        """Boxes of K (and of V) of one tile."""
        return TILE // self.box_rows

    @property
    def tiles_per_page(self) -> int:
        """Tiles in one page, at least 1."""
        return max(1, self.page_size // TILE)

    @property
    def stage_bytes(self) -> int:
        """Bytes of one stage."""
        return 2 * TILE * self.head_dim

    def layouts(self) -> tuple[cute.ComposedLayout, cute.ComposedLayout]:
        """Swizzled layouts of one box and of the whole ring, (rows, head_dim[, boxes of all stages])."""
        atom = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, cute.make_layout((8, 128), stride=(128, 1)))
        box = (self.box_rows, self.head_dim)
        one = cute.tile_to_shape(atom, box, (0, 1))
        every = cute.tile_to_shape(atom, (*box, 2 * self.boxes * self.stages), (0, 1, 2))
        return one, every

    @cute.jit
    def load_tiles(
        self,
        tma_k: cute.CopyAtom,
        tma_v: cute.CopyAtom,
        boxes_k: tuple[cute.Tensor, cute.Tensor],
        boxes_v: tuple[cute.Tensor, cute.Tensor],
        full: cute.Pointer,
        empty: cute.Pointer,
        table: cute.Tensor,
        sequence: Int32,
        head: Int32,
        first: Int32,
        last: Int32,
        pages: Int32,
        stage: Int32,
        phase: Int32,
    ) -> tuple[Int32, Int32]:
        """Load tiles `first` to `last` of one item, of which `pages` pages are live; returns the next stage and phase.

        Run by one whole warp. Block-table entries from `pages` on are never read.
        """
        window = first * TILE // self.page_size
        here = self._entries(table, sequence, window, pages)
        ahead = here
        if cutlass.const_expr(self.prefetch > 0):
            ahead = self._entries(table, sequence, window + WINDOW, pages)
        for tile in cutlass.range(first, last, unroll=1):
            page = tile * TILE // self.page_size
            if page >= window + WINDOW:
                window += WINDOW
                if cutlass.const_expr(self.prefetch > 0):
                    here = ahead
                    ahead = self._entries(table, sequence, window + WINDOW, pages)
                else:
                    here = self._entries(table, sequence, window, pages)
            if cutlass.const_expr(self.prefetch > 0):
                if tile + self.prefetch < last:
                    self._prefetch_tile(
                        tma_k, tma_v, boxes_k, boxes_v, here, ahead, window, tile + self.prefetch, head, pages
                    )
            live = cutlass.min(Int32(self.boxes), pages - page)
            cute.arch.mbarrier_wait(empty + stage, phase)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full + stage, live * (2 * self.box_rows * self.head_dim))
            self._load_tile(
                tma_k, tma_v, boxes_k, boxes_v, full, here, page - window, live, tile % self.tiles_per_page, head, stage
            )
            stage += 1
            if stage == self.stages:
                stage = Int32(0)
                phase ^= 1
        return stage, phase

    @cute.jit
    def _entries(self, table: cute.Tensor, sequence: Int32, page: Int32, pages: Int32) -> Int32:
        """Each lane's block-table entry of a window that starts at `page`; 0 where there is no live page."""
        mine = page + cute.arch.lane_idx()
        entry = Int32(0)
        if mine < pages:
            entry = table[sequence, mine]
        return entry

    @cute.jit
    def _load_tile(
        self,
        tma_k: cute.CopyAtom,
        tma_v: cute.CopyAtom,
        boxes_k: tuple[cute.Tensor, cute.Tensor],
        boxes_v: tuple[cute.Tensor, cute.Tensor],
        full: cute.Pointer,
        entries: Int32,
        offset: Int32,
        live: Int32,
        row: Int32,
        head: Int32,
        stage: Int32,
    ) -> None:
        policy = Int64(EVICT_FIRST if cutlass.const_expr(self.evict_first) else EVICT_NORMAL)
        for box in cutlass.range_constexpr(self.boxes):
            if box < live:
                block = cute.arch.shuffle_sync(entries, offset + box)
                slot = (stage * 2) * self.boxes + box
                cute.copy(
                    tma_k, boxes_k[1][None, row, 0, head, block], boxes_k[0][None, slot],
                    tma_bar_ptr=full + stage, cache_policy=policy,
                )  # fmt: skip
                cute.copy(
                    tma_v, boxes_v[1][None, row, 0, head, block], boxes_v[0][None, slot + self.boxes],
                    tma_bar_ptr=full + stage, cache_policy=policy,
                )  # fmt: skip

    @cute.jit
    def _prefetch_tile(
        self,
        tma_k: cute.CopyAtom,
        tma_v: cute.CopyAtom,
        boxes_k: tuple[cute.Tensor, cute.Tensor],
        boxes_v: tuple[cute.Tensor, cute.Tensor],
        here: Int32,
        ahead: Int32,
        window: Int32,
        tile: Int32,
        head: Int32,
        pages: Int32,
    ) -> None:
        page = tile * TILE // self.page_size
        row = tile % self.tiles_per_page
        for box in cutlass.range_constexpr(self.boxes):
            if page + box < pages:
                offset = page + box - window
                block = cute.arch.shuffle_sync(here, offset % WINDOW)
                if offset >= WINDOW:
                    block = cute.arch.shuffle_sync(ahead, offset % WINDOW)
                cute.prefetch(tma_k, boxes_k[1][None, row, 0, head, block])
                cute.prefetch(tma_v, boxes_v[1][None, row, 0, head, block])


def swizzled(
    tensor: cute.Tensor, box: tuple[int, int], layout: cute.ComposedLayout
) -> tuple[cute.CopyAtom, cute.Tensor]:
    """The TMA atom and coordinate tensor of one cache view, (page rows, head_dim, heads, blocks)."""
    return cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), tensor, layout, box)


def pool_view(cache: cute.Tensor) -> cute.Tensor:
    """A cache (blocks, page rows, heads, head_dim) of bytes as e4m3 (page rows, head_dim, heads, blocks)."""
    layout = cute.select(cache.layout, mode=[1, 3, 2, 0])
    return cute.make_tensor(cute.recast_ptr(cache.iterator, dtype=Float8E4M3FN), layout)
