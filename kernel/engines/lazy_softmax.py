"""The online softmax of a warpgroup over tiles of 64 tokens, whose maxima are raised only when they must be.

Scores are S^T, tokens by query rows: an accumulator [e + 2 f + 4 j] is token `16 warp + g + 8 f` and query row
`8 j + 2 t + e`, g = lane // 4, t = lane % 4. A row's maximum is kept in shared memory beside the factor that turns
its raw scores into powers of two. Weights are made with the maximum as it is; only when a score of any row passes its
maximum by more than 2^8 are maxima raised and the tile's weights made again. So weights stay below 256, which f16
holds as well as one, and the sums of most tiles are never scaled.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Float32, Int32, Uint32, cute

from mjolnir.kernel.engine import TILE_WARPS
from mjolnir.kernel.engines import ptx
from mjolnir.kernel.engines.masking import Masking
from mjolnir.kernel.engines.operands import Chunk
from mjolnir.kernel.engines.ring import ROW_BYTES, fence_stores

THREADS = 32 * TILE_WARPS

HEADROOM = 8.0
"""Powers of two that a score may pass its row's maximum by before the maximum is raised."""

NOTHING_SEEN = -1e30
"""A row's maximum before its first key: any score passes it, and no score is lost against it."""


@dataclass(frozen=True)
class Board:
    """The rows' state in shared memory.

    Attributes:
        p: address of (2, rows, 64 tokens) f16, swizzled; tiles take turns, so that one barrier a tile is enough.
        rows: address of (rows, 2) f32: what turns a row's raw score into a power of two, and its maximum.
        exchange: address of (warps, rows) f32, by which the warps combine maxima and sums.
    """

    p: Int32
    rows: Int32
    exchange: Int32


@dataclass(frozen=True)
class LazySoftmax:
    """One variant's softmax.

    Attributes:
        rows: query rows, a multiple of eight.
        masking: what a row sees.
        barrier: the warpgroup's named barrier.
    """

    rows: int
    masking: Masking
    barrier: int

    @property
    def groups(self) -> int:
        """Groups of eight query rows."""
        return self.rows // 8

    @cute.jit
    def begin(self, board: Board, row: Int32, factor: Float32) -> None:
        """A row's state before its first tile."""
        ptx.store_shared_pair(board.rows + row * 8, factor, ptx.constant(NOTHING_SEEN))

    @cute.jit
    def mask(self, s: cute.Tensor, chunk: Chunk, seen: Int32) -> None:
        """Set scores of tokens that a row does not see to -inf; the first query token sees `seen` of the tile."""
        lane = cute.arch.lane_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        token = warp * 16 + lane // 4
        for j in cutlass.range_constexpr(self.groups):
            for e in cutlass.range_constexpr(2):
                limit = seen + self.masking.more_of(chunk.item.row + (8 * j + e) + lane % 4 * 2)
                for f in cutlass.range_constexpr(2):
                    if token + 8 * f >= limit:
                        s[e + 2 * f + 4 * j] = -Float32.inf

    @cute.jit
    def look(self, board: Board, group: cutlass.Constexpr[int]) -> tuple[Float32, Float32, Float32, Float32]:
        """Factor and maximum of this lane's two rows of a group; read ahead, so that nothing waits for it."""
        return ptx.load_shared_quad(board.rows + (8 * group + 2 * (cute.arch.lane_idx() % 4)) * 8)

    @cute.jit
    def update(
        self, s: cute.Tensor, board: Board, first: tuple[Float32, Float32, Float32, Float32], out: cute.Tensor,
        total: cute.Tensor, turn: Int32,
    ) -> None:  # fmt: skip
        """One tile: its weights P into the board, their sums into `total`; `out` and `total` scaled where they must be.

        `first` is what `look` gave for group 0 since the tile before. When a warp writes P, all have finished the tile
        before the last: they met at the last one's barrier.
        """
        fresh = cute.make_rmem_tensor((2, self.groups), Float32)
        if self._weigh(s, board, first, fresh, turn) != 0:
            self._raise_maxima(s, board, out, total)
            self._weigh(s, board, self.look(board, 0), fresh, turn)
        for j in cutlass.range_constexpr(self.groups):
            total[0, j] += fresh[0, j]
            total[1, j] += fresh[1, j]

    @cute.jit
    def share(self, total: cute.Tensor, board: Board) -> None:
        """Sum the rows' weights over the lanes of each warp, and let all warps see them."""
        lane = cute.arch.lane_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        for j in cutlass.range_constexpr(self.groups):
            z0, z1 = _over_tokens_sum(total[0, j]), _over_tokens_sum(total[1, j])
            if lane < 4:
                ptx.store_shared_pair(board.exchange + (warp * self.rows + 8 * j + 2 * lane) * 4, z0, z1)
        cute.arch.barrier(barrier_id=self.barrier, number_of_threads=THREADS)

    @cute.jit
    def sum_of(self, board: Board, row: Int32) -> Float32:
        """A row's sum over the warps, in their order."""
        z = Float32(0.0)
        for w in cutlass.range_constexpr(TILE_WARPS):
            z += ptx.load_shared(board.exchange + (w * self.rows + row) * 4)
        return z

    @cute.jit
    def log_of(self, board: Board, row: Int32, z: Float32) -> Float32:
        """A row's log-sum-exp in base 2, from its sum."""
        _, top = ptx.load_shared_pair(board.rows + row * 8)
        log2 = -Float32.inf
        if z > 0.0:
            log2 = top + cute.math.log2(z)
        return log2

    @cute.jit
    def put_factor(self, board: Board, row: Int32, factor: Float32) -> None:
        """Put another factor in the place of the one that turned a row's scores into powers of two."""
        ptx.store_shared(board.rows + row * 8, factor)

    @cute.jit
    def _weigh(
        self, s: cute.Tensor, board: Board, first: tuple[Float32, Float32, Float32, Float32], fresh: cute.Tensor,
        turn: Int32,
    ) -> Int32:  # fmt: skip
        """P of the tile into the board and its sums into `fresh`; whether a score passed its maximum by far."""
        lane = cute.arch.lane_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        words = cute.make_rmem_tensor((2, 2), Uint32)
        # lane l gives the address of row l % 8 of matrix l // 8: token half (l // 8) % 2, group j + l // 16
        row = lane // 16 * 8 + lane % 8
        column = (warp * 2 + lane // 8 % 2) ^ (lane % 8)
        address = board.p + turn * (self.rows * ROW_BYTES) + row * ROW_BYTES + column * 16
        following = first
        for j in cutlass.range_constexpr(self.groups):
            c0, top0, c1, top1 = following
            if cutlass.const_expr(j + 1 < self.groups):
                following = self.look(board, j + 1)
            fresh[0, j], fresh[1, j] = Float32(0.0), Float32(0.0)
            for f in cutlass.range_constexpr(2):
                above0 = s[2 * f + 4 * j] * c0 - top0
                above1 = s[1 + 2 * f + 4 * j] * c1 - top1
                p0, p1 = ptx.exp2(above0), ptx.exp2(above1)
                fresh[0, j] += p0
                fresh[1, j] += p1
                words[f, j % 2] = ptx.pack_f16(p0, p1)
                if cutlass.const_expr(f + j == 0):
                    largest = words[0, 0]
                else:
                    largest = ptx.larger_f16(largest, words[f, j % 2])
            if cutlass.const_expr(j % 2 == 1):
                ptx.store_matrices_transposed(
                    address + 8 * (j - 1) * ROW_BYTES, words[0, 0], words[1, 0], words[0, 1], words[1, 1]
                )
            elif cutlass.const_expr(j == self.groups - 1):
                ptx.store_matrix_pair_transposed(address + 8 * j * ROW_BYTES, words[0, 0], words[1, 0])
        fence_stores()
        passed = Int32(0)
        low, high = ptx.unpack_f16(largest)
        if cute.arch.fmax(low, high) > 2.0**HEADROOM:
            passed = Int32(1)
        return ptx.any_of_barrier(passed, self.barrier, THREADS)

    @cute.jit
    def _raise_maxima(self, s: cute.Tensor, board: Board, out: cute.Tensor, total: cute.Tensor) -> None:
        """Raise the maxima that a score of the tile passes by far, and scale what was summed under the old ones."""
        self._exchange_maxima(s, board)
        for j in cutlass.range_constexpr(self.groups):
            c0, top0, c1, top1 = self.look(board, j)
            new0, new1 = self._new_maxima(board, j, c0, top0, c1, top1)
            a0, a1 = ptx.exp2(top0 - new0), ptx.exp2(top1 - new1)
            total[0, j] *= a0
            total[1, j] *= a1
            for m in cutlass.range_constexpr(cute.size(out, mode=[1])):
                for f in cutlass.range_constexpr(2):
                    out[2 * f + 4 * j, m] *= a0
                    out[1 + 2 * f + 4 * j, m] *= a1
        cute.arch.barrier(barrier_id=self.barrier, number_of_threads=THREADS)
        self._store_maxima(board)
        cute.arch.barrier(barrier_id=self.barrier, number_of_threads=THREADS)

    @cute.jit
    def _exchange_maxima(self, s: cute.Tensor, board: Board) -> None:
        """Each warp's largest raw score of every row goes into the exchange."""
        lane = cute.arch.lane_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        for j in cutlass.range_constexpr(self.groups):
            m0 = _over_tokens_max(cute.arch.fmax(s[4 * j], s[2 + 4 * j]))
            m1 = _over_tokens_max(cute.arch.fmax(s[1 + 4 * j], s[3 + 4 * j]))
            if lane < 4:
                ptx.store_shared_pair(board.exchange + (warp * self.rows + 8 * j + 2 * lane) * 4, m0, m1)
        cute.arch.barrier(barrier_id=self.barrier, number_of_threads=THREADS)

    @cute.jit
    def _new_maxima(
        self, board: Board, j: cutlass.Constexpr[int], c0: Float32, top0: Float32, c1: Float32, top1: Float32
    ) -> tuple[Float32, Float32]:
        """The maxima of this lane's two rows of group `j` after the exchange."""
        m0, m1 = -Float32.inf, -Float32.inf
        for w in cutlass.range_constexpr(TILE_WARPS):
            row = 8 * j + 2 * (cute.arch.lane_idx() % 4)
            w0, w1 = ptx.load_shared_pair(board.exchange + (w * self.rows + row) * 4)
            m0, m1 = cute.arch.fmax(m0, w0), cute.arch.fmax(m1, w1)
        m0, m1 = m0 * c0, m1 * c1
        new0, new1 = top0, top1
        if m0 - top0 > HEADROOM:
            new0 = m0
        if m1 - top1 > HEADROOM:
            new1 = m1
        return new0, new1

    @cute.jit
    def _store_maxima(self, board: Board) -> None:
        """One warp writes what `_new_maxima` gives to all."""
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        lane = cute.arch.lane_idx()
        if warp == 0:
            for j in cutlass.range_constexpr(self.groups):
                address = board.rows + (8 * j + 2 * (lane % 4)) * 8
                c0, top0, c1, top1 = ptx.load_shared_quad(address)
                new0, new1 = self._new_maxima(board, j, c0, top0, c1, top1)
                cute.arch.sync_warp()
                if lane < 4:
                    ptx.store_shared_pair(address, c0, new0)
                    ptx.store_shared_pair(address + 8, c1, new1)


@cute.jit
def _over_tokens_max(value: Float32) -> Float32:
    """Maximum over the lanes that hold the same query rows."""
    for bit in cutlass.range_constexpr(2, 5):
        value = cute.arch.fmax(value, cute.arch.shuffle_sync_bfly(value, offset=1 << bit))
    return value


@cute.jit
def _over_tokens_sum(value: Float32) -> Float32:
    """Sum over the lanes that hold the same query rows."""
    for bit in cutlass.range_constexpr(2, 5):
        value += cute.arch.shuffle_sync_bfly(value, offset=1 << bit)
    return value
