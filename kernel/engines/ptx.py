"""The few instructions that CuTe DSL has no call for, or none that keeps the registers where they are."""

from __future__ import annotations

import cutlass
from cutlass import Float32, Int32, Uint32, cute

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
def bits_of(value: Float32) -> Uint32:
    """The bits of an f32."""
    return cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[Uint32], read_only_args=[value])


@cute.jit
def from_bits(value: Uint32) -> Float32:
    """The f32 of these bits."""
    return cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[Float32], read_only_args=[value])


@cute.jit
def store_shared_zero(address: Int32) -> None:
    """Write four zero bytes to shared memory."""
    cute.arch.inline_ptx("st.shared.b32 [{$r0}], {$r1};", read_only_args=[address, Uint32(0)])


@cute.jit
def store_shared_pair(address: Int32, low: Float32, high: Float32) -> None:
    """Write two neighbouring f32 to shared memory; `address` is a multiple of 8."""
    cute.arch.inline_ptx("st.shared.v2.f32 [{$r0}], {{$r1}, {$r2}};", read_only_args=[address, low, high])


@cute.jit
def load_shared(address: Int32) -> Float32:
    """Read an f32 from shared memory."""
    return cute.arch.inline_ptx("ld.shared.f32 {$w0}, [{$r0}];", write_only_types=[Float32], read_only_args=[address])
