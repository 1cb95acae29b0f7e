"""One layer's launches as one host function: decode, then the merge."""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass
from cutlass import BFloat16, Float16, Float32, Int32, Uint8, cute
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream, make_fake_tensor

from mjolnir.kernel.engines import decode, merge
from mjolnir.kernel.engines.ring import pool_view, swizzled
from mjolnir.kernel.variant import Variant

DTYPES = {"bf16": BFloat16, "f16": Float16}


class Step:
    """The launches of one variant."""

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        self.decode = decode.Decode(variant)
        self.merge = merge.Merge(variant)

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
        cuts: cute.Tensor,
        tiles: cute.Tensor,
        partial: cute.Tensor,
        partial_lse: cute.Tensor,
        scale: Float32,
        stream: cuda.CUstream,
    ) -> None:
        """Shapes as `arguments` gives them; `scale` is the softmax scale times log2(e)."""
        ring = self.decode.ring
        box_layout, ring_layout = ring.layouts()
        box = (ring.box_rows, ring.head_dim)
        tma_k, pool_k = swizzled(pool_view(k_cache), box, box_layout)
        tma_v, pool_v = swizzled(pool_view(v_cache), box, box_layout)
        rows_q = cute.make_tensor(query.iterator, cute.select(query.layout, mode=[2, 1, 0]))
        rows_out = cute.make_tensor(out.iterator, cute.select(out.layout, mode=[2, 1, 0]))
        rows_lse = cute.make_tensor(lse.iterator, cute.select(lse.layout, mode=[1, 0]))
        grid = cute.size(cuts, mode=[0]) - 1
        self.decode.kernel(
            tma_k, pool_k, tma_v, pool_v, rows_q, rows_out, rows_lse, table, lengths, cuts, tiles, k_scale, v_scale,
            partial, partial_lse, scale, ring_layout,
        ).launch(stream=stream, **decode.launch_shape(self.variant, grid))  # fmt: skip
        if cutlass.const_expr(self.variant.merge):
            self.merge.kernel(rows_out, rows_lse, cuts, v_scale, partial, partial_lse).launch(
                stream=stream, **merge.launch_shape(self.variant, grid)
            )


def arguments(variant: Variant) -> tuple[object, ...]:
    """Symbolic arguments to compile `Step(variant)` with, in its order."""
    geometry = variant.geometry
    batch, width, blocks, grid = cute.sym_int32(), cute.sym_int32(), cute.sym_int32(), cute.sym_int32()
    heads, dim, page, rows = geometry.heads_kv, geometry.head_dim, geometry.page_size, geometry.rows
    dtype = DTYPES[geometry.dtype]

    def stride(divisibility: int = 1) -> object:
        return cute.sym_int64(divisibility=divisibility)

    def per_token() -> object:
        return make_fake_tensor(
            dtype, (batch, geometry.heads_q, dim), stride=(stride(8), stride(8), 1), assumed_align=16
        )

    def pool() -> object:
        return make_fake_tensor(
            Uint8, (blocks, page, heads, dim), stride=(stride(16), stride(16), stride(16), 1), assumed_align=16
        )

    def scales() -> object:
        return make_fake_tensor(Float32, (batch, heads), stride=(stride(), stride()), assumed_align=4)

    table = make_fake_tensor(Int32, (batch, width), stride=(stride(), 1), assumed_align=4)
    lengths = make_fake_compact_tensor(Int32, (batch,))
    lse = make_fake_compact_tensor(Float32, (batch, geometry.heads_q), stride_order=(1, 0))
    cuts = make_fake_compact_tensor(Int32, (grid, 4), stride_order=(1, 0), assumed_align=16)
    tiles = make_fake_compact_tensor(Int32, (batch,))
    slots = cute.sym_int32()
    partial = make_fake_compact_tensor(Float32, (slots, rows, dim), stride_order=(2, 1, 0), assumed_align=16)
    partial_lse = make_fake_compact_tensor(Float32, (slots, rows), stride_order=(1, 0))
    return (
        per_token(), pool(), pool(), table, lengths, per_token(), lse, scales(), scales(), cuts, tiles, partial,
        partial_lse, Float32(1.0), make_fake_stream(),
    )  # fmt: skip
