"""vLLM's Triton unified attention, with the constants of its backend: 16 segments below 128 / heads_kv sequences.

Q is taken as it is, or turned to fp8 in front of the kernel as vLLM does; KV is cast without a scale, or with one scale
for the tensor as vLLM does. The fastest of these counts.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module

import torch

from mjolnir.research.bench.peers.contender import Entry, Heats, Way
from mjolnir.research.bench.points import Spot
from mjolnir.research.bench.pool import Sets

MODULE = "vllm.v1.attention.ops.triton_unified_attention"
FP8 = torch.float8_e4m3fn
SEGMENTS = 16
GRID_OF_2D = 128
"""CTAs from which on the kernel without segments is taken."""

MODES = (("native", "NONE"), ("native", "FP8_PER_TENSOR"), ("fp8", "FP8_PER_TENSOR"))
"""Format of Q, and how KV is cast: a member of vLLM's `KVQuantMode`."""

LAYOUTS = ("B2NHD", "B2HND")


class UnifiedAttention:
    """`unified_attention`."""

    name = "vllm-triton"

    def choose(self, spot: Spot, heats: Heats) -> None:
        """Both layouts in each mode."""
        import_module(MODULE)
        for layout in LAYOUTS:
            for query, kv in MODES:
                label = f"query={query} kv={kv.lower()}"
                heats.time(Way(layout, label, partial(_prepare, query=query, kv=kv)))


def _prepare(sets: Sets, query: str, kv: str) -> Entry:
    module = import_module(MODULE)
    spot, geometry, outs = sets.spot, sets.spot.geometry, sets.outs()
    device = outs[0].device
    threshold = GRID_OF_2D // geometry.heads_kv
    shape = (max(threshold, 1), geometry.heads_q, SEGMENTS)
    partial = torch.empty(*shape, geometry.head_dim, device=device)
    largest, total = torch.empty(shape, device=device), torch.empty(shape, device=device)
    starts = torch.arange(spot.batch + 1, dtype=torch.int32, device=device) * geometry.q_len
    ones = torch.ones(spot.batch, geometry.heads_kv, device=device)
    used, longest = sets.items[0].seq_lens, max(spot.contexts)
    queries = [torch.empty_like(item.q, dtype=FP8) if query == "fp8" else item.q for item in sets.items]

    def launch(number: int) -> None:
        item = sets.items[number]
        if query == "fp8":
            queries[number].copy_(item.q)
        module.unified_attention(
            q=queries[number], k=item.k.view(FP8), v=item.v.view(FP8), out=outs[number], cu_seqlens_q=starts,
            max_seqlen_q=geometry.q_len, seqused_k=used, max_seqlen_k=longest, softmax_scale=geometry.head_dim**-0.5,
            causal=geometry.causal, window_size=(-1, -1), block_table=item.block_table, softcap=0.0,
            q_descale=ones[0, :1] if query == "fp8" else None, k_descale=ones, v_descale=ones,
            seq_threshold_3D=threshold, num_par_softmax_segments=SEGMENTS, softmax_segm_output=partial,
            softmax_segm_max=largest, softmax_segm_expsum=total, kv_quant_mode=module.KVQuantMode[kv],
        )  # fmt: skip

    return Entry(launch, lambda: sets.error(outs))
