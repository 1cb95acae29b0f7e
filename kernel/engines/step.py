"""One layer's launch as a host function: TMA descriptors of the two caches, and the decode kernel."""

from __future__ import annotations

import cuda.bindings.driver as cuda
from cutlass import BFloat16, Float16, Float32, Int32, Uint8, cute
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream, make_fake_tensor

from mjolnir.kernel.engines import decode
from mjolnir.kernel.engines.ring import pool_view, swizzled
from mjolnir.kernel.variant import Variant

DTYPES = {"bf16": BFloat16, "f16": Float16}


class Step:
    """The launch of one variant."""

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        self.decode = decode.Decode(variant)

    @cute.jit
    def __call__(
        self,
        query: cute.Tensor,
        k_cache: cute.Tensor,
        v_cache: cute.Tensor,
        table: cute.Tensor,
        lengths: cute.Tensor,
        out: cute.Tensor,
        lse: cute.Tensor,
        k_scale: cute.Tensor,
        v_scale: cute.Tensor,
        q_mul: cute.Tensor,
        o_mul: cute.Tensor,
        cuts: cute.Tensor,
        tiles: cute.Tensor,
        partial: cute.Tensor,
        partial_lse: cute.Tensor,
        counters: cute.Tensor,
        scale: Float32,
        stream: cuda.CUstream,
    ) -> None:
        """Shapes as `arguments` gives them; `scale` is the softmax scale times log2(e)."""
        ring = self.decode.ring
        box_layout, ring_layout = ring.layouts()
        tma_k, cache_k = swizzled(pool_view(k_cache), ring.box, box_layout)
        tma_v, cache_v = swizzled(pool_view(v_cache), ring.box, box_layout)
        grid = cute.size(cuts, mode=[0]) - 1
        self.decode.kernel(
            tma_k, cache_k, tma_v, cache_v, reverse(query), reverse(out), reverse(lse), table, lengths, tiles, cuts,
            k_scale, v_scale, reverse(q_mul), reverse(o_mul), partial, partial_lse, counters, scale, ring_layout,
        ).launch(stream=stream, **decode.launch_shape(self.variant, grid))  # fmt: skip


def reverse(tensor: cute.Tensor) -> cute.Tensor:
    """The same cells with the innermost dimension first."""
    rank = cute.rank(tensor.layout)
    return cute.make_tensor(tensor.iterator, cute.select(tensor.layout, mode=list(reversed(range(rank)))))


def arguments(variant: Variant) -> tuple[object, ...]:
    """Symbolic arguments to compile `Step(variant)` with, in its order."""
    geometry = variant.geometry
    batch, tokens, width, blocks, slots = (cute.sym_int32() for _ in range(5))
    heads, dim, page, rows = geometry.heads_kv, geometry.head_dim, geometry.page_size, variant.shape.rows
    dtype = DTYPES[geometry.dtype]

    def stride(divisibility: int = 1) -> object:
        return cute.sym_int64(divisibility=divisibility)

    def per_token() -> object:
        return make_fake_tensor(
            dtype, (tokens, geometry.heads_q, dim), stride=(stride(8), stride(8), 1), assumed_align=16
        )

    def pool() -> object:
        return make_fake_tensor(
            Uint8, (blocks, page, heads, dim), stride=(stride(16), stride(16), stride(16), 1), assumed_align=16
        )

    def scales() -> object:
        return make_fake_tensor(Float32, (batch, heads), stride=(stride(), stride()), assumed_align=4)

    def factors() -> object:
        return make_fake_compact_tensor(Float32, (geometry.heads_q, dim), stride_order=(1, 0), assumed_align=16)

    table = make_fake_tensor(Int32, (batch, width), stride=(stride(), 1), assumed_align=4)
    lengths = make_fake_compact_tensor(Int32, (batch,))
    lse = make_fake_compact_tensor(Float32, (tokens, geometry.heads_q), stride_order=(1, 0))
    cuts = make_fake_compact_tensor(Int32, (cute.sym_int32(), 4), stride_order=(1, 0), assumed_align=16)
    tiles = make_fake_compact_tensor(Int32, (batch,))
    partial = make_fake_compact_tensor(Float32, (slots, rows, dim), stride_order=(2, 1, 0), assumed_align=16)
    partial_lse = make_fake_compact_tensor(Float32, (slots, rows), stride_order=(1, 0))
    counters = make_fake_compact_tensor(Int32, (cute.sym_int32(),))
    return (
        per_token(), pool(), pool(), table, lengths, per_token(), lse, scales(), scales(), factors(), factors(), cuts,
        tiles, partial, partial_lse, counters, Float32(1.0), make_fake_stream(use_tvm_ffi_env_stream=True),
    )  # fmt: skip
