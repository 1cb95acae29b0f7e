"""The metadata builder: a mixin before a stock builder. It decides for each step, describes Mjolnir's, and leaves the
rest.

What vLLM calls on every step, replays of CUDA graphs included, is `build`; all of it is host code that launches and
waits for nothing. The plan of a step is made by its first layer, see `mjolnir.backend.metadata`.
"""

from __future__ import annotations

import logging
import os
from typing import Any, ClassVar

from mjolnir.backend import agreement, logs, server, versions
from mjolnir.backend.cache_view import SHAPE, placement_of
from mjolnir.backend.counters import STEPS
from mjolnir.backend.metadata import DecodeMetadata
from mjolnir.backend.promises import graph_support
from mjolnir.backend.routing import Decode, Refused, decodes, route
from mjolnir.backend.service import (
    Service,
    group_refusal,
    log_refusal,
    open_service,
    settings_given,
    start_line,
)
from mjolnir.backend.settings import Settings, sources
from mjolnir.kernel.geometry import Placement

log = logging.getLogger(__name__)


class MjolnirBuilder:
    """Put before a stock metadata builder, whose `__init__`, `build` and class methods it calls.

    Attributes:
        mjolnir_settings: the user's.
        mjolnir_fallback: the stock backend, as the log names it.
        mjolnir: the service, or None where the group runs on the fallback.
    """

    mjolnir_settings: ClassVar[Settings]
    mjolnir_fallback: ClassVar[str] = ""
    supports_update_block_table = False
    supports_draft_decode_metadata_update: bool

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any, **more: Any) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device, **more)  # type: ignore[call-arg]
        settings = self.mjolnir_settings
        granted = bool(self.supports_draft_decode_metadata_update)
        self.supports_draft_decode_metadata_update = granted and settings.fused_draft
        self.supports_update_block_table = False
        self._spec, self._names, self._config, self._device = kv_cache_spec, layer_names, vllm_config, device
        self._q_len = 1 + server.speculative_tokens(vllm_config)
        self._reason = Refused("")
        self.mjolnir: Service | None = self._open()

    def _open(self) -> Service | None:
        """Put the group into service, or say why not."""
        config, settings = self._config, self.mjolnir_settings
        defaults = agreement.defaults(versions.gather)  # on every rank, whether its group is ours or not
        layers = server.layers_of(config, self._names)
        group = server.group_of(
            config, self._spec, layers, drafter_allowed=settings.draft_t5,
            batch_invariant=versions.batch_invariant(), block_size=server.first_spec(self._spec).block_size,
        )  # fmt: skip
        reason = group_refusal(group, self._device)
        if reason is not None:
            self._reason = Refused(reason)
            if versions.first_rank():
                log_refusal(self._names, reason)
            return None
        drafting = any(getattr(layer.impl, "mjolnir_drafter", False) for layer in layers)
        fused = drafting and self.supports_draft_decode_metadata_update
        service = open_service(
            group, self._device, settings, defaults,
            server.limits_of(config, settings.max_qlen, non_causal=settings.noncausal),
            self._placement(group.layers[0].heads_kv), os.environ,
            margin=self._q_len - 1 if fused else 0, non_causal=drafting and server.parallel_drafter(config),
        )  # fmt: skip
        for layer in layers:
            layer.impl.mjolnir_serve(service.geometry, settings.kv_layout)
        if versions.first_rank():
            logs.banner(log, wanted=settings.banner)
            logs.once(log, start_line(service, self.mjolnir_fallback, settings_given(sources(os.environ))))
            if settings.kv_layout not in (None, SHAPE):
                logs.once(log, _forced(settings.kv_layout), logging.WARNING)
        return service

    def _placement(self, heads_kv: int) -> Placement:
        layout = self.mjolnir_settings.kv_layout
        if layout is not None:
            head_major = heads_kv == 1 or layout.index("H") < layout.index("N")
            return Placement("head-major" if head_major else "token-major", "apart" if layout[0] == "2" else "together")
        return placement_of(versions.memory_layout(self._config), heads_kv)

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> Any:
        """What is promised; see `mjolnir.backend.promises`. Asked before there are builders, so by spec."""
        stock = super().get_cudagraph_support(vllm_config, kv_cache_spec)  # type: ignore[misc]
        settings, spec = cls.mjolnir_settings, server.first_spec(kv_cache_spec)
        layers = [layer for layer in _our_layers(vllm_config) if _is_of(layer.impl.mjolnir_layer, spec)]
        group = server.group_of(vllm_config, spec, layers, batch_invariant=versions.batch_invariant())
        drafters = any(layer.impl.mjolnir_drafter for layer in layers)
        eligible = group_refusal(group, _device(vllm_config)) is None and (settings.draft_t5 or not drafters)
        return versions.support(
            graph_support(
                stock.name, server.limits_of(vllm_config, settings.max_qlen, non_causal=settings.noncausal),
                eligible=eligible, speculative_tokens=server.speculative_tokens(vllm_config),
                parallel_drafter=server.parallel_drafter(vllm_config),
            )
        )  # fmt: skip

    @classmethod
    def get_varlen_cudagraph_max_query_len(cls, vllm_config: Any, kv_cache_spec: Any) -> int | None:
        """None: requests of one graph have equal query lengths."""
        return None

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False, **more: Any) -> Any:
        """The step's metadata: Mjolnir's, or the fallback's."""
        step = common_attn_metadata
        decode = self._route(common_prefix_len, step)
        if isinstance(decode, Refused):
            STEPS.fell_back(decode.reason, decoding=decodes(step, self._q_len))
            return super().build(common_prefix_len, step, fast_build, **more)  # type: ignore[misc]
        STEPS.ran(causal=decode.causal)
        assert self.mjolnir is not None
        return _described(self.mjolnir, decode, step)

    def _route(self, common_prefix_len: int, step: Any) -> Decode | Refused:
        return self._reason if self.mjolnir is None else route(step, common_prefix_len, self.mjolnir.limits)

    def build_for_cudagraph_capture(self, common_attn_metadata: Any) -> Any:
        """The metadata to capture with: on the path that replays will take."""
        with STEPS.paused():
            if isinstance(self._route(0, common_attn_metadata), Refused):
                return super().build_for_cudagraph_capture(common_attn_metadata)  # type: ignore[misc]
            return self.build(0, common_attn_metadata)

    def update_draft_decode_metadata(self, metadata: Any) -> None:
        """Lengths advanced in place: Mjolnir's plan has the margin for it."""
        if not isinstance(metadata, DecodeMetadata):
            super().update_draft_decode_metadata(metadata)  # type: ignore[misc]


def _described(service: Service, decode: Decode, step: Any) -> DecodeMetadata:
    """A step for all layers, of vLLM's own tensors, untouched: a call into torch costs more than all the rest."""
    batch, q_len, causal = decode
    return DecodeMetadata(
        service.launchers.get(batch, q_len, causal), batch, q_len, step.num_actual_tokens, step.max_query_len,
        step.max_seq_len, step.query_start_loc, step.seq_lens, step.block_table_tensor, step.slot_mapping, causal,
        service.margin, service.geometry.page_size,
    )  # fmt: skip


def _forced(layout: str | None) -> str:
    """The warning of a layout that vLLM's own caches have not."""
    return (
        f"MJOLNIR_ATTN_KV_LAYOUT = {layout} is taken as it is, but vLLM's own KV caches are {SHAPE} in every memory "
        f"order (VLLM_KV_CACHE_LAYOUT chooses that): where the cache does not fit, the first step on Mjolnir fails; "
        f"leave it out"
    )


def _our_layers(config: Any) -> list[Any]:
    """All layers of our backend."""
    layers = config.compilation_config.static_forward_context.values()
    return [layer for layer in layers if hasattr(getattr(layer, "impl", None), "mjolnir_layer")]


def _is_of(layer: Any, spec: Any) -> bool:
    """Whether a layer's cache may be the one that a spec describes."""
    return bool(layer.heads_kv == getattr(spec, "num_kv_heads", None) and layer.head_dim == spec.head_size)


def _device(config: Any) -> Any:
    import torch

    return torch.device(getattr(config.device_config, "device_type", None) or "cuda")
