"""Attention of the fallback in PyTorch, for vLLM's CPU platform: cache write, and every step that Mjolnir leaves.

vLLM's own CPU backend packs its cache in an order of its own, which neither the kernel nor the emulator reads. Here the
cache is the one that GPUs have, so that the same builder, metadata and cache views run without one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

FP8 = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


class TorchAttention:
    """Put before a stock implementation, of which it takes the attributes and leaves the kernels alone."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    kv_cache_dtype: str
    logits_soft_cap: float
    sliding_window: tuple[int, int]
    alibi_slopes: Tensor | None
    sinks: Tensor | None

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Write K and V (tokens, heads_kv, head_dim) where `slot_mapping` (tokens,) says; below zero is padding."""
        there = slot_mapping >= 0
        slots = slot_mapping[there]
        block, place = slots // kv_cache.shape[2], slots % kv_cache.shape[2]
        tokens = slot_mapping.shape[0]
        for part, scale, begin in ((key, layer._k_scale, 0), (value, layer._v_scale, self.head_size)):
            codes = self._encode(part[:tokens][there], scale, kv_cache.dtype)
            kv_cache[..., begin : begin + self.head_size][block, :, place] = codes

    def _encode(self, values: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        fp8 = FP8.get(self.kv_cache_dtype)
        if fp8 is None:
            return values.to(dtype)
        largest = torch.finfo(fp8).max
        return (values.float() / _by_head(scale)).clamp(-largest, largest).to(fp8).view(dtype)

    def _decode(self, codes: Tensor, scale: Tensor) -> Tensor:
        """(tokens, heads_kv, head_dim) f32."""
        fp8 = FP8.get(self.kv_cache_dtype)
        return codes.float() if fp8 is None else codes.contiguous().view(fp8).float() * _by_head(scale)

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
        """Attend, one request after another; arguments as vLLM has them."""
        if attn_metadata is None:
            return output.fill_(0)
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("attention on the CPU writes no quantised output")
        starts, causal = attn_metadata.query_start_loc.tolist(), attn_metadata.causal
        for request, length in enumerate(attn_metadata.seq_lens.tolist()):
            begin, end = starts[request], starts[request + 1]
            if begin == end or not length:
                continue
            k, v = self._read(layer, kv_cache, attn_metadata.block_table[request], length)
            one = bool(causal[request]) if isinstance(causal, Tensor) else causal
            rows = self._attend(query[begin:end], k, v, causal=one)
            output[begin:end].copy_(rows.reshape(output[begin:end].shape))
        return output

    def _read(self, layer: Any, kv_cache: Tensor, table: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """K and V of one request, (length, heads_kv, head_dim) f32."""
        pages = kv_cache[table[: -(-length // kv_cache.shape[2])].long()].transpose(1, 2).flatten(0, 1)[:length]
        k, v = pages[..., : self.head_size], pages[..., self.head_size : 2 * self.head_size]
        return self._decode(k, layer._k_scale), self._decode(v, layer._v_scale)

    def _attend(self, query: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        """Query (q, heads, d) over K and V (n, heads_kv, d): (q, heads, d) f32."""
        q = query.float().view(len(query), self.num_kv_heads, -1, self.head_size)
        scores = torch.einsum("qhgd,khd->hgqk", q, k) * self.scale
        if self.logits_soft_cap:
            scores = self.logits_soft_cap * torch.tanh(scores / self.logits_soft_cap)
        count, length = scores.shape[-2:]
        behind = torch.arange(length - count, length)[:, None] - torch.arange(length)  # how far a key lies back
        if self.alibi_slopes is not None:
            scores = scores - self.alibi_slopes.float().view(self.num_kv_heads, -1, 1, 1) * behind
        scores = scores.masked_fill(self._hidden(behind, causal=causal), -math.inf)
        if self.sinks is not None:
            sink = self.sinks.float().view(self.num_kv_heads, -1, 1, 1).expand(*scores.shape[:-1], 1)
            weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        return torch.einsum("hgqk,khd->qhgd", weights, v).flatten(1, 2)

    def _hidden(self, behind: Tensor, *, causal: bool) -> Tensor:
        """Which keys (q, n) are not seen."""
        before, after = self.sliding_window
        hidden = behind < 0 if causal else torch.zeros_like(behind, dtype=torch.bool)
        if before >= 0:
            hidden = hidden | (behind > before)
            if not causal:
                hidden = hidden | (-behind > max(after, before))
        return hidden


def _by_head(scale: Tensor) -> Tensor:
    """A scale of one value or one a head, to go with (tokens, heads, head_dim)."""
    return scale.reshape(-1, 1)
