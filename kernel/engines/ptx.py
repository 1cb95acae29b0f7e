"""The few instructions that CuTe DSL has no call for, or none that keeps the registers where they are."""

from __future__ import annotations

import struct

import cutlass
from cutlass import Float32, Int32, Int64, Uint32, cute

EVICT_FIRST = 0x12F0000000000000
EVICT_NORMAL = 0x1000000000000000
"""L2 cache policies as `createpolicy.fractional.L2` encodes them. Normal is passed too: without a policy the compiler
emits the hint with the value 0, which PTX does not define."""

INTERLEAVE_TOKENS = 0x3120
"""`prmt` selector: bytes (t0 d0, t0 d1, t1 d0, t1 d1) -> (t0 d0, t1 d0, t0 d1, t1 d1)."""


@cute.jit
def load_matrices(address: Int32, transpose: cutlass.Constexpr[bool]) -> tuple[Uint32, Uint32, Uint32, Uint32]:
    """`ldmatrix.x4`: four 8x8 matrices of 16-bit cells; `address` is the lane's row in shared memory."""
    mode = ".trans" if cutlass.const_expr(transpose) else ""
    return cute.arch.inline_ptx(
        f"ldmatrix.sync.aligned.m8n8.x4{mode}.shared.b16 {{{{$w0}}, {{$w1}}, {{$w2}}, {{$w3}}}}, [{{$r0}}];",
        write_only_types=[Uint32] * 4,
        read_only_args=[address],
    )


@cute.jit
def store_matrices_transposed(address: Int32, a: Uint32, b: Uint32, c: Uint32, d: Uint32) -> None:
    """`stmatrix.x4.trans`: writes four 8x8 matrices of 16-bit cells by columns; `address` is the lane's column."""
    cute.arch.inline_ptx(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
        read_only_args=[address, a, b, c, d],
    )


@cute.jit
def store_matrix_pair_transposed(address: Int32, a: Uint32, b: Uint32) -> None:
    """`stmatrix.x2.trans`, the same for two matrices; lanes 0 to 15 give the addresses."""
    cute.arch.inline_ptx(
        "stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [{$r0}], {{$r1}, {$r2}};", read_only_args=[address, a, b]
    )


@cute.jit
def widen_e4m3(codes: Uint32) -> tuple[Uint32, Uint32]:
    """Four e4m3 codes to two registers of two f16 each; exact."""
    return cute.arch.inline_ptx(
        "{.reg .b16 low, high; mov.b32 {low, high}, {$r0}; "
        "cvt.rn.f16x2.e4m3x2 {$w0}, low; cvt.rn.f16x2.e4m3x2 {$w1}, high;}",
        write_only_types=[Uint32, Uint32],
        read_only_args=[codes],
    )


@cute.jit
def pack_f16(low: Float32, high: Float32) -> Uint32:
    """Two f32 to one register of two f16, rounded to nearest even."""
    return cute.arch.inline_ptx(
        "cvt.rn.f16x2.f32 {$w0}, {$r1}, {$r0};", write_only_types=[Uint32], read_only_args=[low, high]
    )


@cute.jit
def pack_bf16(low: Float32, high: Float32) -> Uint32:
    """Two f32 to one register of two bf16, rounded to nearest even."""
    return cute.arch.inline_ptx(
        "cvt.rn.bf16x2.f32 {$w0}, {$r1}, {$r0};", write_only_types=[Uint32], read_only_args=[low, high]
    )


@cute.jit
def pack_e4m3_as_f16(low: Float32, high: Float32) -> Uint32:
    """Two f32 rounded to e4m3 (nearest even, saturating), as two f16."""
    return cute.arch.inline_ptx(
        "{.reg .b16 codes; cvt.rn.satfinite.e4m3x2.f32 codes, {$r1}, {$r0}; cvt.rn.f16x2.e4m3x2 {$w0}, codes;}",
        write_only_types=[Uint32],
        read_only_args=[low, high],
    )


@cute.jit
def unpack_f16(pair: Uint32) -> tuple[Float32, Float32]:
    """Two f16 to two f32."""
    return cute.arch.inline_ptx(
        "{.reg .b16 low, high; mov.b32 {low, high}, {$r0}; cvt.f32.f16 {$w0}, low; cvt.f32.f16 {$w1}, high;}",
        write_only_types=[Float32, Float32],
        read_only_args=[pair],
    )


@cute.jit
def larger_f16(a: Uint32, b: Uint32) -> Uint32:
    """The larger of each of two f16."""
    return cute.arch.inline_ptx("max.f16x2 {$w0}, {$r0}, {$r1};", write_only_types=[Uint32], read_only_args=[a, b])


@cute.jit
def unpack_bf16(pair: Uint32) -> tuple[Float32, Float32]:
    """Two bf16 to two f32."""
    return from_bits(pair << 16), from_bits(pair & Uint32(0xFFFF0000))


@cute.jit
def multiply_16x8x16(
    c0: Float32, c1: Float32, c2: Float32, c3: Float32,
    a0: Uint32, a1: Uint32, a2: Uint32, a3: Uint32,
    b0: Uint32, b1: Uint32,
) -> tuple[Float32, Float32, Float32, Float32]:  # fmt: skip
    """`mma.sync.m16n8k16` on f16 with f32 accumulation: c + a b."""
    return cute.arch.inline_ptx(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{$w0}, {$w1}, {$w2}, {$w3}}, "
        "{{$r0}, {$r1}, {$r2}, {$r3}}, {{$r4}, {$r5}}, {{$r6}, {$r7}, {$r8}, {$r9}};",
        write_only_types=[Float32] * 4,
        read_only_args=[a0, a1, a2, a3, b0, b1, c0, c1, c2, c3],
    )


@cute.jit
def exp2(value: Float32) -> Float32:
    """2 to the power of `value`, the hardware's approximation (relative error 2^-22); 0 for -inf."""
    return cute.math.exp2(value, fastmath=True)


@cute.jit
def divide(dividend: Float32, divisor: Float32) -> Float32:
    """The quotient rounded to nearest, whatever the compiler's options: Q's e4m3 codes must not depend on them."""
    return cute.arch.inline_ptx(
        "div.rn.f32 {$w0}, {$r0}, {$r1};", write_only_types=[Float32], read_only_args=[dividend, divisor]
    )


@cute.jit
def bits_of(value: Float32) -> Uint32:
    """The bits of an f32."""
    return cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[Uint32], read_only_args=[value])


@cute.jit
def from_bits(value: Uint32) -> Float32:
    """The f32 of these bits."""
    return cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[Float32], read_only_args=[value])


def constant(value: float) -> Float32:
    """An f32 constant in a register: as an argument of an instruction the compiler takes only whole ones."""
    return from_bits(Uint32(struct.unpack("<I", struct.pack("<f", value))[0]))


@cute.jit
def store_shared_zero(address: Int32) -> None:
    """Write four zero bytes to shared memory."""
    cute.arch.inline_ptx("st.shared.b32 [{$r0}], {$r1};", read_only_args=[address, Uint32(0)])


@cute.jit
def store_shared_word(address: Int32, word: Uint32) -> None:
    """Write a register to shared memory."""
    cute.arch.inline_ptx("st.shared.b32 [{$r0}], {$r1};", read_only_args=[address, word])


@cute.jit
def store_shared_words(address: Int32, low: Uint32, high: Uint32) -> None:
    """Write two registers to shared memory; `address` is a multiple of 8."""
    cute.arch.inline_ptx("st.shared.v2.b32 [{$r0}], {{$r1}, {$r2}};", read_only_args=[address, low, high])


@cute.jit
def load_shared_words(address: Int32) -> tuple[Uint32, Uint32]:
    """Read two registers from shared memory; `address` is a multiple of 8."""
    return cute.arch.inline_ptx(
        "ld.shared.v2.b32 {{$w0}, {$w1}}, [{$r0}];", write_only_types=[Uint32, Uint32], read_only_args=[address]
    )


@cute.jit
def here(value: Int32) -> Int32:
    """The same value, as if it were made here: what follows from it is not kept in registers through a loop before."""
    return cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[Int32], read_only_args=[value])


@cute.jit
def store_shared(address: Int32, value: Float32) -> None:
    """Write an f32 to shared memory."""
    cute.arch.inline_ptx("st.shared.f32 [{$r0}], {$r1};", read_only_args=[address, value])


@cute.jit
def store_shared_pair(address: Int32, low: Float32, high: Float32) -> None:
    """Write two neighbouring f32 to shared memory; `address` is a multiple of 8."""
    cute.arch.inline_ptx("st.shared.v2.f32 [{$r0}], {{$r1}, {$r2}};", read_only_args=[address, low, high])


@cute.jit
def load_shared(address: Int32) -> Float32:
    """Read an f32 from shared memory."""
    return cute.arch.inline_ptx("ld.shared.f32 {$w0}, [{$r0}];", write_only_types=[Float32], read_only_args=[address])


@cute.jit
def load_shared_pair(address: Int32) -> tuple[Float32, Float32]:
    """Read two neighbouring f32 from shared memory; `address` is a multiple of 8."""
    return cute.arch.inline_ptx(
        "ld.shared.v2.f32 {{$w0}, {$w1}}, [{$r0}];", write_only_types=[Float32, Float32], read_only_args=[address]
    )


@cute.jit
def load_shared_quad(address: Int32) -> tuple[Float32, Float32, Float32, Float32]:
    """Read four neighbouring f32 from shared memory; `address` is a multiple of 16."""
    return cute.arch.inline_ptx(
        "ld.shared.v4.f32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
        write_only_types=[Float32] * 4,
        read_only_args=[address],
    )


@cute.jit
def load_global_words(address: Int64) -> tuple[Uint32, Uint32]:
    """Read eight bytes; `address` is a multiple of 8."""
    return cute.arch.inline_ptx(
        "ld.global.v2.b32 {{$w0}, {$w1}}, [{$r0}];", write_only_types=[Uint32, Uint32], read_only_args=[address]
    )


@cute.jit
def touch_global(address: Int64) -> None:
    """Bring a line into L1: a read whose value nobody waits for."""
    cute.arch.inline_ptx("{.reg .b32 unused; ld.global.b32 unused, [{$r0}];}", read_only_args=[address])


@cute.jit
def load_global_quad(address: Int64) -> tuple[Float32, Float32, Float32, Float32]:
    """Read four f32; `address` is a multiple of 16."""
    return cute.arch.inline_ptx(
        "ld.global.v4.f32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
        write_only_types=[Float32] * 4,
        read_only_args=[address],
    )


@cute.jit
def load_shared_by_grid_quad(address: Int64) -> tuple[Float32, Float32, Float32, Float32]:
    """Read four f32 that another CTA wrote, past L1, which may hold what was there before."""
    return cute.arch.inline_ptx(
        "ld.global.cg.v4.f32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
        write_only_types=[Float32] * 4,
        read_only_args=[address],
    )


@cute.jit
def load_shared_by_grid(address: Int64) -> Float32:
    """Read an f32 that another CTA wrote, past L1."""
    return cute.arch.inline_ptx(
        "ld.global.cg.f32 {$w0}, [{$r0}];", write_only_types=[Float32], read_only_args=[address]
    )


@cute.jit
def store_global_quad(address: Int64, a: Float32, b: Float32, c: Float32, d: Float32) -> None:
    """Write four f32; `address` is a multiple of 16."""
    cute.arch.inline_ptx(
        "st.global.v4.f32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};", read_only_args=[address, a, b, c, d]
    )


@cute.jit
def store_global_pair(address: Int64, a: Float32, b: Float32) -> None:
    """Write two f32; `address` is a multiple of 8."""
    cute.arch.inline_ptx("st.global.v2.f32 [{$r0}], {{$r1}, {$r2}};", read_only_args=[address, a, b])


@cute.jit
def store_global_words(address: Int64, a: Uint32, b: Uint32) -> None:
    """Write eight bytes; `address` is a multiple of 8."""
    cute.arch.inline_ptx("st.global.v2.b32 [{$r0}], {{$r1}, {$r2}};", read_only_args=[address, a, b])


@cute.jit
def store_global_word(address: Int64, a: Uint32) -> None:
    """Write four bytes; `address` is a multiple of 4."""
    cute.arch.inline_ptx("st.global.b32 [{$r0}], {$r1};", read_only_args=[address, a])


@cute.jit
def count_arrival(address: Int64) -> Int32:
    """Add one to a counter, with release and acquire over the GPU; returns what it was."""
    return cute.arch.inline_ptx(
        "atom.acq_rel.gpu.global.add.u32 {$w0}, [{$r0}], 1;", write_only_types=[Int32], read_only_args=[address]
    )


@cute.jit
def any_of_barrier(flag: Int32, barrier: cutlass.Constexpr[int], threads: cutlass.Constexpr[int]) -> Int32:
    """Wait at a named barrier; 1 where any of its threads brought a flag that is not zero."""
    return cute.arch.inline_ptx(
        "{.reg .pred mine, all; setp.ne.s32 mine, {$r0}, 0; "
        f"barrier.cta.red.or.pred all, {barrier}, {threads}, mine; "
        "selp.s32 {$w0}, 1, 0, all;}",
        write_only_types=[Int32],
        read_only_args=[flag],
    )
