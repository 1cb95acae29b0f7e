"""The `warp` engine: a persistent decode kernel on `mma.sync` in f16, e4m3 KV widened in registers.

One warp loads (see `ring`), four compute. Of every tile, warp `w` owns tokens 16 w to 16 w + 15 and keeps a softmax
state of its own, so that the loop over tiles has no barrier among warps. S = Q K^T has K as operand B: its f16 pairs
come out of `ldmatrix` in the order d = 4 t .. 4 t + 3, and Q is loaded in the same order. O^T = V^T P^T has V^T as
operand A (`ldmatrix.trans` and one byte permutation), so that the accumulator of S, packed to f16, is already the
operand B. At a chunk's end the warps meet: they exchange maximum and sum, scale their outputs to the common maximum,
add them through the stage that was read last, and only then give that stage back to the loading warp.

In the code `g` is lane // 4 and `t` is lane % 4, the two coordinates of the fragments of `mma.m16n8k16` (PTX ISA,
section on matrix fragments); a half is eight query rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Float32, Int32, Uint32, cute

from mjolnir.kernel.engines import ptx
from mjolnir.kernel.geometry import TILE, Geometry
from mjolnir.kernel.variant import CONSUMER_WARPS

WARP_TOKENS = TILE // CONSUMER_WARPS
CONSUMERS = 32 * CONSUMER_WARPS
BARRIER = 1
F16_LIMIT_EXPONENT = 14
"""A query row whose largest magnitude is 2^15 or more is scaled down by a power of two before it becomes f16."""


@dataclass(frozen=True)
class Consumer:
    """The computing warps of one variant.

    Attributes:
        geometry: the problem.
        fault: a canary's fault, "none" otherwise.
        lse: whether whole items write their log-sum-exp.
    """

    geometry: Geometry
    fault: str
    lse: bool

    @property
    def halves(self) -> int:
        """Groups of eight query rows: 1 or 2."""
        return -(-self.geometry.rows // 8)

    @property
    def slices(self) -> int:
        """Slices of 16 elements of a head."""
        return self.geometry.head_dim // 16

    @cute.jit
    def load_query(self, query: cute.Tensor, sequence: Int32, head: Int32) -> tuple[cute.Tensor, cute.Tensor]:
        """Q as f16 fragments (slices, 2, halves), and the power of two of each row (halves,) to multiply scores by."""
        lane = cute.arch.lane_idx()
        g, t = lane // 4, lane % 4
        fragment = cute.make_rmem_tensor((self.slices, 2, self.halves), Uint32)
        unit = cute.make_rmem_tensor((self.halves,), Float32)
        values = cute.make_rmem_tensor((4, self.slices), Float32)
        for half in cutlass.range_constexpr(self.halves):
            row = g + 8 * half
            values.fill(0.0)
            if row < self.geometry.rows:
                for i in cutlass.range_constexpr(self.slices):
                    for e in cutlass.range_constexpr(4):
                        values[e, i] = query[i * 16 + 4 * t + e, head * self.geometry.gqa + row, sequence].to(Float32)
            largest = Float32(0.0)
            for i in cutlass.range_constexpr(self.slices):
                for e in cutlass.range_constexpr(4):
                    largest = cute.arch.fmax(largest, cute.arch.fmax(values[e, i], -values[e, i]))
            largest = self.over_quad_max(largest)
            exponent = (ptx.bits_of(largest) >> 23).to(Int32) - 127
            shift = cutlass.max(exponent - F16_LIMIT_EXPONENT, Int32(0))
            down = ptx.from_bits(((127 - shift) << 23).to(Uint32))
            unit[half] = ptx.from_bits(((127 + shift) << 23).to(Uint32))
            for i in cutlass.range_constexpr(self.slices):
                for j in cutlass.range_constexpr(2):
                    fragment[i, j, half] = ptx.pack_f16(values[2 * j, i] * down, values[2 * j + 1, i] * down)
        return fragment, unit

    @cute.jit
    def over_quad_max(self, value: Float32) -> Float32:
        """Maximum over the four lanes that share a query row."""
        value = cute.arch.fmax(value, cute.arch.shuffle_sync_bfly(value, offset=1))
        return cute.arch.fmax(value, cute.arch.shuffle_sync_bfly(value, offset=2))

    @cute.jit
    def tokens_seen(self, length: Int32, tile: Int32) -> Int32:
        """Tokens of `tile` that a query row sees; canaries see one too many, or miss the second tile."""
        seen = length - tile * TILE
        if cutlass.const_expr(self.fault == "mask"):
            seen += 1
        if cutlass.const_expr(self.fault == "skip"):
            if tile == 1:
                seen = Int32(0)
        return seen

    @cute.jit
    def scores(self, fragment: cute.Tensor, k_address: Int32) -> cute.Tensor:
        """S of one tile for this warp's tokens, f32 (4, n-tiles).

        Accumulator e of n-tile n is row g + 8 (e // 2) and token 8 n + 2 t + e % 2.
        """
        lane = cute.arch.lane_idx()
        tiles = cutlass.const_expr(WARP_TOKENS // 8)
        s = cute.make_rmem_tensor((4, tiles), Float32)
        s.fill(0.0)
        row = k_address + lane % 8 * 128
        swizzle = lane % 8 * 16
        for n in cutlass.range_constexpr(tiles):
            for c in cutlass.range_constexpr(self.geometry.head_dim // 64):
                column = c * 64 + lane // 8 * 16
                codes = ptx.load_matrices(row + n * 8 * 128 + (column ^ swizzle), False)
                for j in cutlass.range_constexpr(4):
                    b0, b1 = ptx.widen_e4m3(codes[j])
                    i = cutlass.const_expr(c * 4 + j)
                    a1, a3 = Uint32(0), Uint32(0)
                    if cutlass.const_expr(self.halves == 2):
                        a1, a3 = fragment[i, 0, 1], fragment[i, 1, 1]
                    s[0, n], s[1, n], s[2, n], s[3, n] = ptx.multiply_16x8x16(
                        s[0, n], s[1, n], s[2, n], s[3, n], fragment[i, 0, 0], a1, fragment[i, 1, 0], a3, b0, b1
                    )
        return s

    @cute.jit
    def mask(self, s: cute.Tensor, seen: Int32) -> None:
        """Set scores of tokens that no row sees to -inf."""
        lane = cute.arch.lane_idx()
        first = cute.arch.make_warp_uniform(cute.arch.warp_idx()) * WARP_TOKENS + lane % 4 * 2
        for n in cutlass.range_constexpr(WARP_TOKENS // 8):
            for e in cutlass.range_constexpr(2):
                if first + (n * 8 + e) >= seen:
                    s[e, n] = -Float32.inf
                    s[e + 2, n] = -Float32.inf

    @cute.jit
    def clear_tail(self, v_address: Int32, seen: Int32) -> None:
        """Write zeros over this warp's V rows from `seen` on: zero times NaN would be NaN."""
        lane = cute.arch.lane_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        for row in cutlass.range(cutlass.max(seen - warp * WARP_TOKENS, 0), WARP_TOKENS, unroll=1):
            ptx.store_shared_zero(v_address + row * 128 + lane * 4)
        cute.arch.sync_warp()

    @cute.jit
    def softmax(
        self, s: cute.Tensor, top: cute.Tensor, total: cute.Tensor, out: cute.Tensor, scale: cute.Tensor
    ) -> cute.Tensor:
        """One online-softmax step: updates maximum, sum and output; returns P as packed f16 (n-tiles, halves)."""
        t = cute.arch.lane_idx() % 4
        tiles = cutlass.const_expr(WARP_TOKENS // 8)
        p = cute.make_rmem_tensor((tiles, self.halves), Uint32)
        for half in cutlass.range_constexpr(self.halves):
            new = top[half]
            for n in cutlass.range_constexpr(tiles):
                new = cute.arch.fmax(new, cute.arch.fmax(s[2 * half, n], s[2 * half + 1, n]))
            new = self.over_quad_max(new)
            # nothing seen yet: any finite base makes exp2(-inf) = 0
            base = new * scale[half]
            if new == -Float32.inf:
                base = Float32(0.0)
            alpha = ptx.exp2(top[half] * scale[half] - base)
            top[half] = new
            fresh = Float32(0.0)
            for n in cutlass.range_constexpr(tiles):
                p0 = ptx.exp2(s[2 * half, n] * scale[half] - base)
                p1 = ptx.exp2(s[2 * half + 1, n] * scale[half] - base)
                fresh += p0 + p1
                p[n, half] = ptx.pack_f16(p0, p1)
            total[half] = total[half] * alpha + fresh
            if cute.arch.vote_any_sync(alpha != 1.0):
                a0 = cute.arch.shuffle_sync(alpha, t * 8)
                a1 = cute.arch.shuffle_sync(alpha, t * 8 + 4)
                for i in cutlass.range_constexpr(self.slices):
                    out[0, i, half] *= a0
                    out[1, i, half] *= a1
                    out[2, i, half] *= a0
                    out[3, i, half] *= a1
        return p

    @cute.jit
    def accumulate(self, out: cute.Tensor, p: cute.Tensor, v_address: Int32) -> None:
        """O^T += V^T P^T over the warp's tokens; out[e, i, half]: d = 16 i + 2 g + e // 2, row 8 half + 2 t + e % 2."""
        lane = cute.arch.lane_idx()
        row = v_address + (lane % 8 + lane // 8 % 2 * 8) * 128
        swizzle = lane % 8 * 16
        for c in cutlass.range_constexpr(self.geometry.head_dim // 32):
            column = c * 32 + lane // 16 * 16
            codes = ptx.load_matrices(row + (column ^ swizzle), True)
            for j in cutlass.range_constexpr(2):
                a0, a1 = ptx.widen_e4m3(cute.arch.prmt(codes[2 * j], Uint32(0), Uint32(ptx.INTERLEAVE_TOKENS)))
                a2, a3 = ptx.widen_e4m3(cute.arch.prmt(codes[2 * j + 1], Uint32(0), Uint32(ptx.INTERLEAVE_TOKENS)))
                i = cutlass.const_expr(c * 2 + j)
                for half in cutlass.range_constexpr(self.halves):
                    out[0, i, half], out[1, i, half], out[2, i, half], out[3, i, half] = ptx.multiply_16x8x16(
                        out[0, i, half], out[1, i, half], out[2, i, half], out[3, i, half],
                        a0, a1, a2, a3, p[0, half], p[1, half],
                    )  # fmt: skip

    @cute.jit
    def meet(self, top: cute.Tensor, total: cute.Tensor, scale: cute.Tensor, states: cute.Tensor) -> None:
        """Publish this warp's maximum (times scale, base 2) and sum of every row, and wait for the other warps."""
        lane = cute.arch.lane_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        for half in cutlass.range_constexpr(self.halves):
            z = total[half]
            z += cute.arch.shuffle_sync_bfly(z, offset=1)
            z += cute.arch.shuffle_sync_bfly(z, offset=2)
            if lane % 4 == 0:
                states[0, lane // 4 + 8 * half, warp] = top[half] * scale[half]
                states[1, lane // 4 + 8 * half, warp] = z
        cute.arch.barrier(barrier_id=BARRIER, number_of_threads=CONSUMERS)

    @cute.jit
    def common(self, states: cute.Tensor, row: Int32) -> tuple[Float32, Float32]:
        """Maximum and sum of a row over the warps; (0, 0) where none saw a token."""
        highest = -Float32.inf
        for w in cutlass.range_constexpr(CONSUMER_WARPS):
            highest = cute.arch.fmax(highest, states[0, row, w])
        if highest == -Float32.inf:
            highest = Float32(0.0)
        z = Float32(0.0)
        for w in cutlass.range_constexpr(CONSUMER_WARPS):
            z += states[1, row, w] * ptx.exp2(states[0, row, w] - highest)
        return highest, z

    @cute.jit
    def spread(self, out: cute.Tensor, half: cutlass.Constexpr[int], states: cute.Tensor, scratch: Int32) -> None:
        """Write this warp's share of the normalised output of eight rows to `scratch`, f32 (warp, row, d)."""
        lane = cute.arch.lane_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        g, t = lane // 4, lane % 4
        for e in cutlass.range_constexpr(2):
            row = t * 2 + e
            if 8 * half + row < self.geometry.rows:
                highest, z = self.common(states, 8 * half + row)
                factor = Float32(0.0)
                if z > 0.0:
                    factor = ptx.exp2(states[0, 8 * half + row, warp] - highest) / z
                place = scratch + ((warp * 8 + row) * self.geometry.head_dim + 2 * g) * 4
                for i in cutlass.range_constexpr(self.slices):
                    ptx.store_shared_pair(place + i * 64, out[e, i, half] * factor, out[e + 2, i, half] * factor)

    @cute.jit
    def gather(self, row: Int32, d: Int32, scratch: Int32) -> Float32:
        """Add the warps' shares of one element, in warp order."""
        value = Float32(0.0)
        for w in cutlass.range_constexpr(CONSUMER_WARPS):
            value += ptx.load_shared(scratch + ((w * 8 + row) * self.geometry.head_dim + d) * 4)
        return value
