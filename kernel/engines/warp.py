"""The `warp` engine: decode on `mma.sync` in f16, e4m3 KV widened in registers, for few query rows.

Four warps compute on a tile, or eight on two tiles, every other tile for each four. Of its tiles, warp `w` owns tokens
16 (w % 4) to 16 (w % 4) + 15 and keeps a softmax state of its own, so that the loop over tiles has no barrier among
warps. S = Q K^T has K as operand B: its f16 pairs come out of `ldmatrix` in
the order d = 4 t .. 4 t + 3, and Q is loaded in the same order. O^T = V^T P^T has V^T as operand A (`ldmatrix.trans`
and one byte permutation), so that the accumulator of S, packed to f16, is already the operand B. At a chunk's end the
warps meet: they exchange maximum and sum, scale their outputs to the common maximum, and add them through shared
memory.

In the code `g` is lane // 4 and `t` is lane % 4, the two coordinates of the fragments of `mma.m16n8k16` (PTX ISA,
section on matrix fragments); a half is eight query rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Float32, Int32, Uint32, cute

from mjolnir.kernel.engine import TILE_WARPS
from mjolnir.kernel.engines import ptx
from mjolnir.kernel.engines.consumer import Consumer
from mjolnir.kernel.engines.masking import WARP_TOKENS
from mjolnir.kernel.engines.meeting import Meeting, State, Table
from mjolnir.kernel.engines.operands import Chunk, Operands
from mjolnir.kernel.engines.ring import BLOCK_BYTES, ROW_BYTES, Barriers, fence_stores
from mjolnir.kernel.geometry import TILE
from mjolnir.kernel.variant import output_span, query_in_shared

BARRIER = 1
TOKEN_GROUPS = WARP_TOKENS // 8


@dataclass(frozen=True)
class Shared:
    """Shared memory of the computing warps.

    Attributes:
        table: where they meet at a chunk's end.
        query: address of Q's fragments, where registers do not hold them.
        flag: one int32, for the merge.
    """

    table: Table
    query: Int32
    flag: cute.Tensor


class WarpConsumer(Consumer):
    """Four or eight warps, each with a softmax state of its own."""

    @property
    def chains(self) -> int:
        """Accumulators that a score is summed in: with two its products wait for one another half as long."""
        return 2 if self.ctas_per_sm <= 2 else 1

    @property
    def halves(self) -> int:
        """Groups of eight query rows: 1 or 2."""
        return -(-self.engine.rows // 8)

    @property
    def slices(self) -> int:
        """Slices of 16 elements of a head."""
        return self.geometry.head_dim // 16

    @property
    def meeting(self) -> Meeting:
        """How the warps combine what they have."""
        return Meeting(self.geometry, self.engine, self.output, self.warps, output_span(self.geometry), BARRIER)

    @property
    def query_in_shared(self) -> bool:
        """Whether Q's fragments are read from shared memory for every tile."""
        return query_in_shared(self.geometry)

    def allocate(self, smem: cutlass.utils.SmemAllocator) -> Shared:
        """The computing warps' shared memory; its size is `variant.consumer_smem_bytes`."""
        table = self.meeting.allocate(smem)
        flag = smem.allocate_tensor(Int32, cute.make_layout(4), byte_alignment=16)
        query = Int32(0)
        if self.query_in_shared:
            words = cute.make_layout(self.halves * self.slices * 64)
            query = smem.allocate_tensor(Uint32, words, byte_alignment=16).iterator.toint()
        return Shared(table, query, flag)

    @cute.jit
    def attend(
        self, operands: Operands, chunk: Chunk, barriers: Barriers, shared: Shared, cells: Int32, position: Int32
    ) -> None:
        """Attend to a chunk's tiles, which begin at `position` of the ring at address `cells`; write what comes out."""
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        rows = warp % TILE_WARPS * (WARP_TOKENS * ROW_BYTES)
        state, fragment, more = self._begin(operands, chunk, shared)
        for tile in cutlass.range(chunk.low + warp // TILE_WARPS, chunk.live, self.warps // TILE_WARPS, unroll=1):
            stage, parity = self.ring.place(position + (tile - chunk.low))
            self.ring.wait_keys(barriers, stage, parity)
            k_address = cells + stage * self.ring.stage_bytes
            v_address = k_address + self.ring.stage_bytes // 2
            seen = self.masking.seen_by_first(chunk.length, tile)
            s = self._scores(fragment, shared, k_address + rows)
            self.ring.release_keys(barriers, stage)
            self.ring.wait_values(barriers, stage, parity)
            if seen < TILE:
                self._mask(s, more, seen)
                if seen + self.masking.hidden < TILE:
                    self.masking.clear_tail(v_address, seen + self.masking.hidden)
                    fence_stores()
            p = self._softmax(s, state)
            self._accumulate(state.out, p, v_address + rows)
            self.ring.release_values(barriers, stage)
        self.meeting.finish(operands, chunk, shared.table, state)

    @cute.jit
    def _begin(self, operands: Operands, chunk: Chunk, shared: Shared) -> tuple[State, cute.Tensor, cute.Tensor]:
        """Fresh state, Q's fragments (2, slices, halves) and how many tokens more than the first each row sees."""
        lane = cute.arch.lane_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        item = chunk.item
        factor = operands.scale * operands.k_scale[item.sequence, item.head]
        kept = cutlass.const_expr(1 if self.query_in_shared else self.halves)
        fragment = cute.make_rmem_tensor((2, self.slices, kept), Uint32)
        more = cute.make_rmem_tensor((self.halves,), Int32)
        state = State(
            cute.make_rmem_tensor((self.halves,), Float32),
            cute.make_rmem_tensor((self.halves,), Float32),
            cute.make_rmem_tensor((self.halves,), Float32),
            cute.make_rmem_tensor((4, self.slices, self.halves), Float32),
        )
        for half in cutlass.range_constexpr(self.halves):
            row = item.row + lane // 4 + 8 * half
            more[half] = self.masking.more_of(row)
            pairs, unit = self.query.rounded_group(operands.query, operands.q_mul, item.sequence, item.head, row)
            for i in cutlass.range_constexpr(self.slices):
                if cutlass.const_expr(self.query_in_shared):
                    # every warp made the same fragments; each stores its share
                    if i % self.warps == warp:
                        ptx.store_shared_words(self._place(shared, i, half), pairs[0, i], pairs[1, i])
                else:
                    fragment[0, i, half], fragment[1, i, half] = pairs[0, i], pairs[1, i]
            state.scales[half] = factor * unit
            state.top[half] = -Float32.inf
            state.total[half] = Float32(0.0)
        state.out.fill(0.0)
        if cutlass.const_expr(self.query_in_shared):
            cute.arch.barrier(barrier_id=BARRIER, number_of_threads=32 * self.warps)
        return state, fragment, more

    @cute.jit
    def _place(self, shared: Shared, i: cutlass.Constexpr[int], half: cutlass.Constexpr[int]) -> Int32:
        """Where this lane's part of a slice of Q lies in shared memory."""
        return shared.query + ((half * self.slices + i) * 32 + cute.arch.lane_idx()) * 8

    @cute.jit
    def _scores(self, fragment: cute.Tensor, shared: Shared, k_address: Int32) -> cute.Tensor:
        """S of one tile for this warp's tokens, f32 (4, token groups).

        Accumulator e of token group n is row g + 8 (e // 2) and token 8 n + 2 t + e % 2.
        """
        lane = cute.arch.lane_idx()
        s = cute.make_rmem_tensor((4, TOKEN_GROUPS, self.chains), Float32)
        s.fill(0.0)
        row = k_address + lane % 8 * ROW_BYTES
        swizzle = lane % 8 * 16
        q = cute.make_rmem_tensor((2, 2), Uint32)
        q.fill(0)
        for c in cutlass.range_constexpr(self.geometry.head_dim // 64):
            column = c % 2 * 64 + lane // 8 * 16
            codes = cute.make_rmem_tensor((4, TOKEN_GROUPS), Uint32)
            for n in cutlass.range_constexpr(TOKEN_GROUPS):
                codes[0, n], codes[1, n], codes[2, n], codes[3, n] = ptx.load_matrices(
                    row + (c // 2 * BLOCK_BYTES + n * 8 * ROW_BYTES) + (column ^ swizzle), False
                )
            for j in cutlass.range_constexpr(4):
                i = cutlass.const_expr(c * 4 + j)
                chain = cutlass.const_expr(j % self.chains)
                for half in cutlass.range_constexpr(self.halves):
                    if cutlass.const_expr(self.query_in_shared):
                        q[0, half], q[1, half] = ptx.load_shared_words(self._place(shared, i, half))
                    else:
                        q[0, half], q[1, half] = fragment[0, i, half], fragment[1, i, half]
                for n in cutlass.range_constexpr(TOKEN_GROUPS):
                    b0, b1 = ptx.widen_e4m3(codes[j, n])
                    s[0, n, chain], s[1, n, chain], s[2, n, chain], s[3, n, chain] = ptx.multiply_16x8x16(
                        s[0, n, chain], s[1, n, chain], s[2, n, chain], s[3, n, chain],
                        q[0, 0], q[0, 1], q[1, 0], q[1, 1], b0, b1,
                    )  # fmt: skip
        total = cute.make_rmem_tensor((4, TOKEN_GROUPS), Float32)
        for n in cutlass.range_constexpr(TOKEN_GROUPS):
            for e in cutlass.range_constexpr(2 * self.halves):
                total[e, n] = s[e, n, 0]
                if cutlass.const_expr(self.chains == 2):
                    total[e, n] += s[e, n, 1]
        return total

    @cute.jit
    def _mask(self, s: cute.Tensor, more: cute.Tensor, seen: Int32) -> None:
        """Set scores of tokens that a row does not see to -inf; the first query token sees `seen` of the tile."""
        lane = cute.arch.lane_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        first = warp % TILE_WARPS * WARP_TOKENS + lane % 4 * 2
        for half in cutlass.range_constexpr(self.halves):
            for n in cutlass.range_constexpr(TOKEN_GROUPS):
                for e in cutlass.range_constexpr(2):
                    if first + (n * 8 + e) >= seen + more[half]:
                        s[2 * half + e, n] = -Float32.inf

    @cute.jit
    def _softmax(self, s: cute.Tensor, state: State) -> cute.Tensor:
        """One online-softmax step: updates the state; returns P as packed f16 (token groups, halves)."""
        t = cute.arch.lane_idx() % 4
        p = cute.make_rmem_tensor((TOKEN_GROUPS, self.halves), Uint32)
        for half in cutlass.range_constexpr(self.halves):
            scale = state.scales[half]
            new = state.top[half]
            for n in cutlass.range_constexpr(TOKEN_GROUPS):
                new = cute.arch.fmax(new, cute.arch.fmax(s[2 * half, n], s[2 * half + 1, n]))
            new = cute.arch.fmax(new, cute.arch.shuffle_sync_bfly(new, offset=1))
            new = cute.arch.fmax(new, cute.arch.shuffle_sync_bfly(new, offset=2))
            # nothing seen yet: any finite base makes exp2(-inf) = 0
            base = new * scale
            if new == -Float32.inf:
                base = Float32(0.0)
            alpha = ptx.exp2(state.top[half] * scale - base)
            state.top[half] = new
            fresh = Float32(0.0)
            for n in cutlass.range_constexpr(TOKEN_GROUPS):
                p0 = ptx.exp2(s[2 * half, n] * scale - base)
                p1 = ptx.exp2(s[2 * half + 1, n] * scale - base)
                fresh += p0 + p1
                p[n, half] = ptx.pack_f16(p0, p1)
            state.total[half] = state.total[half] * alpha + fresh
            if cute.arch.vote_any_sync(alpha != 1.0):
                a0 = cute.arch.shuffle_sync(alpha, t * 8)
                a1 = cute.arch.shuffle_sync(alpha, t * 8 + 4)
                for i in cutlass.range_constexpr(self.slices):
                    state.out[0, i, half] *= a0
                    state.out[1, i, half] *= a1
                    state.out[2, i, half] *= a0
                    state.out[3, i, half] *= a1
        return p

    @cute.jit
    def _accumulate(self, out: cute.Tensor, p: cute.Tensor, v_address: Int32) -> None:
        """O^T += V^T P^T over the warp's tokens."""
        lane = cute.arch.lane_idx()
        row = v_address + (lane % 8 + lane // 8 % 2 * 8) * ROW_BYTES
        swizzle = lane % 8 * 16
        for c in cutlass.range_constexpr(self.geometry.head_dim // 32):
            column = c % 4 * 32 + lane // 16 * 16
            codes = ptx.load_matrices(row + c // 4 * BLOCK_BYTES + (column ^ swizzle), True)
            for j in cutlass.range_constexpr(2):
                a0, a1 = ptx.widen_e4m3(cute.arch.prmt(codes[2 * j], Uint32(0), Uint32(ptx.INTERLEAVE_TOKENS)))
                a2, a3 = ptx.widen_e4m3(cute.arch.prmt(codes[2 * j + 1], Uint32(0), Uint32(ptx.INTERLEAVE_TOKENS)))
                i = cutlass.const_expr(c * 2 + j)
                for half in cutlass.range_constexpr(self.halves):
                    out[0, i, half], out[1, i, half], out[2, i, half], out[3, i, half] = ptx.multiply_16x8x16(
                        out[0, i, half], out[1, i, half], out[2, i, half], out[3, i, half],
                        a0, a1, a2, a3, p[0, half], p[1, half],
                    )  # fmt: skip
