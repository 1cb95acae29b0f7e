"""The attention implementation: a mixin before a stock one. Steps with `DecodeMetadata` run here, the rest below."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from mjolnir.backend import query as queries
from mjolnir.backend import server, versions
from mjolnir.backend.cache_view import CacheViews
from mjolnir.backend.eligibility import FP8, Group, refusal
from mjolnir.backend.metadata import DecodeMetadata
from mjolnir.kernel.formats import DTYPES

if TYPE_CHECKING:
    from torch import Tensor

    from mjolnir.kernel.geometry import Geometry


class MjolnirImpl:
    """Put before a stock implementation, whose `__init__` and `forward` it calls.

    The cache is written by the stock one, and vLLM's layer hands over a query that is not quantised: `forward`
    quantises it where the fallback needs that.

    Attributes:
        mjolnir_fallback_takes_fp8: whether the stock implementation needs an fp8 query over an fp8 cache.
        mjolnir_layer: what the layer asks for.
        mjolnir_drafter: whether it is a drafter's.
    """

    mjolnir_fallback_takes_fp8: ClassVar[bool] = False
    supports_quant_query_input = False

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.mjolnir_layer = server.layer_of(given, named)
        self.mjolnir_drafter = versions.building_drafter()
        self._views: CacheViews | None = None
        self._dtype = torch.bfloat16
        quantised = bool(self.supports_quant_query_input) and self.mjolnir_layer.kv_dtype in FP8
        ours = refusal(Group((self.mjolnir_layer,), block_size=None)) is None
        self._quantises = ours and quantised and self.mjolnir_fallback_takes_fp8
        if ours:
            self.supports_quant_query_input = False

    def mjolnir_serve(self, geometry: Geometry, layout: str | None) -> None:
        """Be told that the layer's group runs on Mjolnir."""
        self._views, self._dtype = CacheViews(geometry, layout), DTYPES[geometry.dtype]

    def fused_output_quant_supported(self, quant_key: Any) -> bool:
        """Mjolnir writes bf16 and f16, so that no fusion may ask a served layer for anything else."""
        if refusal(Group((self.mjolnir_layer,), block_size=None)) is None:
            return False
        return bool(super().fused_output_quant_supported(quant_key))  # type: ignore[misc]

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Attend; arguments as vLLM has them. Returns `output`."""
        if not isinstance(attn_metadata, DecodeMetadata):
            if self._quantises and attn_metadata is not None and query.dtype != queries.E4M3:
                return self._forward_quantised(
                    layer, query, key, value, kv_cache, attn_metadata, output, output_scale, output_block_scale
                )
            result: Tensor = super().forward(  # type: ignore[misc]
                layer, query, key, value, kv_cache, attn_metadata, output=output, output_scale=output_scale,
                output_block_scale=output_block_scale,
            )  # fmt: skip
            return result
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError(
                "Mjolnir writes no quantised output; disable vLLM's fusion of attention and quant"
            )
        assert self._views is not None
        attn_metadata.make_plan()
        if query.dtype == queries.E4M3:
            query = queries.dequantise(query, layer._q_scale, self.mjolnir_layer.heads_kv, self._dtype)
        k_cache, v_cache = self._views.get(kv_cache)
        attn_metadata.launcher.run(
            query, k_cache, v_cache, attn_metadata.block_table, attn_metadata.seq_lens, output, layer._k_scale,
            layer._v_scale, self.scale,  # type: ignore[attr-defined]
        )  # fmt: skip
        return output

    def _forward_quantised(self, layer: Any, query: Tensor, *rest: Any) -> Tensor:
        """A step of a fallback that takes an fp8 query, and believes so only where the layer quantises it."""
        *before, output, output_scale, output_block_scale = rest
        fused = versions.quantiser() if query.is_cuda else None
        codes = queries.quantise(query, layer._q_scale, self.mjolnir_layer.heads_kv, fused)
        self.supports_quant_query_input = True
        try:
            result: Tensor = super().forward(  # type: ignore[misc]
                layer, codes, *before, output=output, output_scale=output_scale, output_block_scale=output_block_scale
            )
        finally:
            self.supports_quant_query_input = False
        return result
