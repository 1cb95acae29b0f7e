"""The `wgmma` engine: decode on Hopper's warpgroup products in f16, for many query rows or long heads.

One warpgroup computes, a tile of 64 tokens at a time, and keeps one softmax state (see `lazy_softmax`). S^T = K Q^T
has K as operand A, widened in registers, and Q as operand B, f16 in shared memory, its columns in the order in which
K's codes come out of `ldmatrix`. O^T = V^T P^T has V^T as operand A and P as operand B, written by `stmatrix`. So the
query rows are the columns of both products, and each KV value is widened once whatever their number. V is widened
while S^T is made, and the next tile's K while O^T is added to.

In the code `g` is lane // 4 and `t` is lane % 4: an accumulator [e + 2 f + 4 j] is row `16 warp + g + 8 f` and column
`8 j + 2 t + e` (PTX ISA, section on `wgmma` register fragments).
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Float16, Float32, Int32, cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from mjolnir.kernel.engine import TILE_WARPS
from mjolnir.kernel.engines import ptx
from mjolnir.kernel.engines.consumer import Consumer
from mjolnir.kernel.engines.lazy_softmax import THREADS, Board, LazySoftmax
from mjolnir.kernel.engines.operands import Chunk, Operands
from mjolnir.kernel.engines.ring import ROW_BYTES, Barriers, fence_stores
from mjolnir.kernel.engines.widening import K_STEP, Widening
from mjolnir.kernel.geometry import TILE
from mjolnir.kernel.variant import padded_rows

BARRIER = 1


@dataclass(frozen=True)
class Shared:
    """Shared memory of the warpgroup.

    Attributes:
        query: (rows, head_dim) f16, swizzled.
        p: (rows, 64 tokens, 2) f16, swizzled: the tensor whose address is in `board`.
        board: the softmax state.
        flag: one int32, for the merge.
    """

    query: cute.Tensor
    p: cute.Tensor
    board: Board
    flag: cute.Tensor


class WgmmaConsumer(Consumer):
    """One warpgroup of four warps."""

    @property
    def rows(self) -> int:
        """Columns of the products: the item's query rows, made a multiple of eight."""
        return padded_rows(self.engine)

    @property
    def groups(self) -> int:
        """Groups of eight query rows."""
        return self.rows // 8

    @property
    def slabs(self) -> int:
        """Products that make O^T: 64 elements of a head each."""
        return self.geometry.head_dim // 64

    @property
    def slabs_at_once(self) -> int:
        """Slabs whose V is widened, and whose products are begun, at a time: as many as there are registers for."""
        if self.rows > 48:
            return 1
        return 2 if self.rows > 16 or self.ctas_per_sm > 2 else self.slabs

    @property
    def ahead(self) -> bool:
        """Whether the next tile's K is widened while O^T is added to: as far as there are registers."""
        if self.ctas_per_sm > 2:
            return self.geometry.head_dim == 128 and self.rows <= 32
        return self.rows * self.geometry.head_dim <= (64 if self.engine.blocks == 1 else 48) * 128

    @property
    def early(self) -> bool:
        """Whether the first slabs' V is widened while S^T is made, as far as there are registers; else after it."""
        return self.ctas_per_sm <= 2 or (self.geometry.head_dim == 128 and self.rows <= 16)

    @property
    def slabs_wait(self) -> bool:
        """Whether slabs wait for the products of those before them: long heads have no registers for V of both."""
        return self.geometry.head_dim > 128

    @property
    def softmax(self) -> LazySoftmax:
        """The softmax over tiles."""
        return LazySoftmax(self.rows, self.masking, BARRIER)

    @property
    def widening(self) -> Widening:
        """How K and V become operands."""
        return Widening(self.geometry.head_dim)

    def allocate(self, smem: cutlass.utils.SmemAllocator) -> Shared:
        """The warpgroup's shared memory; its size is `variant.consumer_smem_bytes`."""
        q, p = self._layout(self.geometry.head_dim, 1), self._layout(TILE, 2)
        query = smem.allocate_tensor(Float16, q.outer, byte_alignment=1024, swizzle=q.inner)
        weights = smem.allocate_tensor(Float16, p.outer, byte_alignment=1024, swizzle=p.inner)
        rows = smem.allocate_tensor(Float32, cute.make_layout(2 * self.rows), byte_alignment=16)
        exchange = smem.allocate_tensor(Float32, cute.make_layout(TILE_WARPS * self.rows), byte_alignment=16)
        flag = smem.allocate_tensor(Int32, cute.make_layout(4), byte_alignment=16)
        board = Board(weights.iterator.toint(), rows.iterator.toint(), exchange.iterator.toint())
        return Shared(query, weights, board, flag)

    def _layout(self, depth: int, copies: int) -> cute.ComposedLayout:
        """Operands B of f16 (rows, depth, copies), depth contiguous, in blocks of 64 with 128-byte swizzle."""
        atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, Float16)
        return cute.tile_to_shape(atom, (self.rows, depth, copies), (0, 1, 2))

    def _product(self) -> cute.TiledMma:
        """A (64, 16) in registers times B (rows, 16) in shared memory, f32 accumulators."""
        shape = (64, self.rows, K_STEP)
        source, major = warpgroup.OperandSource.RMEM, OperandMajorMode.K
        return cute.make_tiled_mma(warpgroup.MmaF16BF16Op(Float16, Float32, shape, source, major, major))

    @cute.jit
    def attend(
        self, operands: Operands, chunk: Chunk, barriers: Barriers, shared: Shared, cells: Int32, position: Int32
    ) -> None:
        """Attend to a chunk's tiles, which begin at `position` of the ring at address `cells`; write what comes out."""
        self._begin(operands, chunk, shared)
        product = self._product()
        thread, _, _ = cute.arch.thread_idx()
        mine = product.get_slice(thread)
        query = mine.make_fragment_B(mine.partition_B(shared.query))
        weights = mine.make_fragment_B(mine.partition_B(shared.p))
        keys = cute.make_rmem_tensor(((2, 2, 2), 1, self.widening.key_steps), Float16)
        s = cute.make_rmem_tensor((4 * self.groups,), Float32)
        out = cute.make_rmem_tensor((4 * self.groups, self.slabs), Float32)
        total = cute.make_rmem_tensor((2, self.groups), Float32)
        out.fill(0.0)
        total.fill(0.0)
        if cutlass.const_expr(self.ahead):
            self._take_keys(keys, barriers, cells, position)
        for tile in cutlass.range(chunk.low, chunk.live, unroll=1):
            here = position + (tile - chunk.low)
            stage, parity = self.ring.place(here)
            v_address = cells + stage * self.ring.stage_bytes + self.ring.stage_bytes // 2
            turn = (tile - chunk.low) % 2
            if cutlass.const_expr(not self.ahead):
                self._take_keys(keys, barriers, cells, here)
            self._begin_scores(product, s, keys, query)
            seen = self.masking.seen_by_first(chunk.length, tile)
            self.ring.wait_values(barriers, stage, parity)
            self._clear_tail(v_address, seen + self.masking.hidden)
            if cutlass.const_expr(self.early):
                values = self.widening.values(v_address, 0, self.slabs_at_once)
            first = self.softmax.look(shared.board, 0)
            warpgroup.wait_group(0)
            if seen < TILE:
                self.softmax.mask(s, chunk, seen)
            self.softmax.update(s, shared.board, first, out, total, turn)
            if cutlass.const_expr(not self.early):
                values = self.widening.values(v_address, 0, self.slabs_at_once)
            self._begin_output(product, out, values, weights, 0, turn)
            for slab in cutlass.range_constexpr(self.slabs_at_once, self.slabs, self.slabs_at_once):
                if cutlass.const_expr(self.slabs_wait):
                    warpgroup.wait_group(0)
                values = self.widening.values(v_address, slab, self.slabs_at_once)
                self._begin_output(product, out, values, weights, slab, turn)
            self.ring.release_values(barriers, stage)
            if cutlass.const_expr(self.ahead):
                if tile + 1 < chunk.live:
                    self._take_keys(keys, barriers, cells, here + 1)
            # before the loop ends: the compiler lines up products that outlast it
            warpgroup.wait_group(0)
        self._finish(operands, chunk, shared, out, total)

    @cute.jit
    def _begin(self, operands: Operands, chunk: Chunk, shared: Shared) -> None:
        """Put Q and each row's factor into shared memory; warp w takes the groups w, w + 4, ... of eight rows."""
        thread = ptx.here(cute.arch.thread_idx()[0])
        lane, warp = thread % 32, thread // 32
        g, t = lane // 4, lane % 4
        item = chunk.item
        factor = operands.scale * operands.k_scale[item.sequence, item.head]
        base = shared.query.iterator.toint()
        for group in cutlass.range(warp, self.groups, TILE_WARPS, unroll=1):
            row = 8 * group + g
            pairs, unit = self.query.rounded_group(
                operands.query, operands.q_mul, item.sequence, item.head, item.row + row
            )
            for i in cutlass.range_constexpr(self.geometry.head_dim // 16):
                block = base + i // 4 * self.rows * ROW_BYTES + row * ROW_BYTES
                for j in cutlass.range_constexpr(2):
                    unit16 = cutlass.const_expr(i % 4 * 2 + j)
                    ptx.store_shared_word(block + ((Int32(unit16) ^ g) * 16 + t * 4), pairs[j, i])
            if t == 0:
                self.softmax.begin(shared.board, row, factor * unit)
        fence_stores()
        cute.arch.barrier(barrier_id=BARRIER, number_of_threads=THREADS)

    @cute.jit
    def _take_keys(self, keys: cute.Tensor, barriers: Barriers, cells: Int32, position: Int32) -> None:
        """Wait for a tile and widen its K."""
        stage, parity = self.ring.place(position)
        self.ring.wait_keys(barriers, stage, parity)
        self.widening.keys(keys, cells + stage * self.ring.stage_bytes)
        self.ring.release_keys(barriers, stage)

    @cute.jit
    def _clear_tail(self, v_address: Int32, present: Int32) -> None:
        """Zeros over V rows that the tile does not have; every warp reads them all."""
        if present < TILE:
            self.masking.clear_tail(v_address, present)
            fence_stores()
            cute.arch.barrier(barrier_id=BARRIER, number_of_threads=THREADS)

    @cute.jit
    def _begin_scores(self, product: cute.TiledMma, s: cute.Tensor, keys: cute.Tensor, query: cute.Tensor) -> None:
        """Begin S^T of a tile, (4 groups,): accumulators as the module says, tokens by query rows."""
        scores = cute.make_tensor(s.iterator, cute.make_layout(((2, 2, self.groups), 1, 1)))
        warpgroup.fence()
        for k in cutlass.range_constexpr(self.widening.key_steps):
            product.set(warpgroup.Field.ACCUMULATE, k > 0)
            cute.gemm(product, scores, keys[None, None, k], query[None, None, k, 0], scores)
        warpgroup.commit_group()

    @cute.jit
    def _begin_output(
        self, product: cute.TiledMma, out: cute.Tensor, values: cute.Tensor, weights: cute.Tensor,
        first: cutlass.Constexpr[int], turn: Int32,
    ) -> None:  # fmt: skip
        """Begin O^T += V^T P^T for slabs `first` on."""
        product.set(warpgroup.Field.ACCUMULATE, True)
        warpgroup.fence()
        for m in cutlass.range_constexpr(self.slabs_at_once):
            layout = cute.make_layout(((2, 2, self.groups), 1, 1))
            slab = cute.make_tensor(out[None, first + m].iterator, layout)
            for k in cutlass.range_constexpr(self.widening.token_steps):
                cute.gemm(product, slab, values[None, None, k, m], weights[None, None, k, turn], slab)
        warpgroup.commit_group()

    @cute.jit
    def _finish(self, operands: Operands, chunk: Chunk, shared: Shared, out: cute.Tensor, total: cute.Tensor) -> None:
        """Write the item's output or its chunk's partial."""
        thread = ptx.here(cute.arch.thread_idx()[0])
        lane, warp = thread % 32, thread // 32
        self.softmax.share(total, shared.board)
        self._end_rows(operands, chunk, shared)
        pair = cute.make_rmem_tensor((2,), Float32)
        for j in cutlass.range_constexpr(self.groups):
            factors = cute.make_rmem_tensor((2,), Float32)
            factors[0], _, factors[1], _ = self.softmax.look(shared.board, j)
            for e in cutlass.range_constexpr(2):
                row = 8 * j + 2 * (lane % 4) + e
                if row < self.engine.rows:
                    if self.output.has(chunk.item, row):
                        for m in cutlass.range_constexpr(self.slabs):
                            d = 64 * m + 16 * warp + 2 * (lane // 4)
                            pair[0] = out[e + 4 * j, m] * factors[e]
                            pair[1] = out[e + 2 + 4 * j, m] * factors[e]
                            if chunk.whole:
                                self.output.write(operands, chunk.item, row, d, pair)
                            else:
                                address = operands.partial[chunk.slot, row, None].iterator.toint() + d * 4
                                ptx.store_global_pair(address, pair[0], pair[1])
        # the next chunk's rows overwrite the board
        cute.arch.barrier(barrier_id=BARRIER, number_of_threads=THREADS)

    @cute.jit
    def _end_rows(self, operands: Operands, chunk: Chunk, shared: Shared) -> None:
        """A thread for each row writes its log-sum-exp, and what its output is multiplied by into the board."""
        row = ptx.here(cute.arch.thread_idx()[0])
        if row < self.rows:
            z = self.softmax.sum_of(shared.board, row)
            scaled, log2 = Float32(0.0), self.softmax.log_of(shared.board, row, z)
            if z > 0.0:
                scaled = 1.0 / z
                if chunk.whole:
                    scaled *= operands.v_scale[chunk.item.sequence, chunk.item.head]
            self.softmax.put_factor(shared.board, row, scaled)
            if row < self.engine.rows:
                if self.output.has(chunk.item, row):
                    if chunk.whole:
                        self.output.write_lse(operands, chunk.item, row, log2)
                    else:
                        operands.partial_lse[chunk.slot, row] = log2
        cute.arch.barrier(barrier_id=BARRIER, number_of_threads=THREADS)
