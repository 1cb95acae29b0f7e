"""FlashAttention 3 as vLLM brings it: fp8 Q and KV, scheduler metadata made before, several numbers of splits.

Q comes as bf16 or f16 and is turned to fp8 with a scale of one, by a kernel of its own in front of the attention, as
vLLM does with a static scale.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module

import torch

from mjolnir.research.bench.peers.contender import Entry, Heats, Way
from mjolnir.research.bench.points import Spot
from mjolnir.research.bench.pool import Sets

FP8 = torch.float8_e4m3fn
SPLITS = (0, 1, 8, 16, 32)
"""0 is FA3's own choice; 32 is what vLLM allows in CUDA graphs."""

LAYOUTS = ("B2NHD", "B2HND")


class FlashAttention3:
    """`flash_attn_varlen_func` with `fa_version=3`."""

    name = "fa3"

    def choose(self, spot: Spot, heats: Heats) -> None:
        """Both layouts with each number of splits."""
        import_module("vllm.vllm_flash_attn.flash_attn_interface")
        for layout in LAYOUTS:
            for splits in SPLITS:
                heats.time(Way(layout, f"num_splits={splits}", partial(_prepare, splits=splits)))


def _prepare(sets: Sets, splits: int) -> Entry:
    interface = import_module("vllm.vllm_flash_attn.flash_attn_interface")
    spot, geometry, outs = sets.spot, sets.spot.geometry, sets.outs()
    device, longest = outs[0].device, max(sets.spot.contexts)
    used = sets.items[0].seq_lens
    starts = torch.arange(spot.batch + 1, dtype=torch.int32, device=device) * geometry.q_len
    ones = torch.ones(spot.batch, geometry.heads_kv, device=device)
    queries = [torch.empty_like(item.q, dtype=FP8) for item in sets.items]
    plans = [
        interface.get_scheduler_metadata(
            batch_size=spot.batch, max_seqlen_q=geometry.q_len, max_seqlen_k=longest, num_heads_q=geometry.heads_q,
            num_heads_kv=geometry.heads_kv, headdim=geometry.head_dim, cache_seqlens=used, qkv_dtype=FP8,
            cu_seqlens_q=starts, page_size=geometry.page_size, causal=geometry.causal, num_splits=splits,
        )
        for _ in sets.items
    ]  # fmt: skip

    def launch(number: int) -> None:
        item = sets.items[number]
        queries[number].copy_(item.q)
        interface.flash_attn_varlen_func(
            q=queries[number], k=item.k.view(FP8), v=item.v.view(FP8), max_seqlen_q=geometry.q_len,
            cu_seqlens_q=starts, max_seqlen_k=longest, seqused_k=used, softmax_scale=geometry.head_dim**-0.5,
            causal=geometry.causal, block_table=item.block_table, out=outs[number],
            scheduler_metadata=plans[number], q_descale=ones, k_descale=ones, v_descale=ones, num_splits=splits,
            fa_version=3,
        )  # fmt: skip

    return Entry(launch, lambda: sets.error(outs))
