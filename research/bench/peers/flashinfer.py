"""FlashInfer: tensor-core decode (for several queries its causal paged prefill), and XQA.

Both take the two layouts NHD and HND, and use programmatic dependent launch as they choose by themselves. The plan of
the wrappers is made before; XQA needs none, and turns Q to fp8 inside its kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from mjolnir.kernel.geometry import Geometry
from mjolnir.research.bench.peers.contender import Entry, Heats, Way
from mjolnir.research.bench.points import Spot
from mjolnir.research.bench.pool import InputSet, Sets

WORKSPACE_BYTES = 256 << 20
SEMAPHORES = 2 << 20
FP8 = torch.float8_e4m3fn
DIMENSIONS = {"B2NHD": "NHD", "B2HND": "HND"}
BUILDERS = 4
"""Modules that are compiled at once, each by several processes of some GB."""


class TensorCores:
    """`BatchDecodeWithPagedKVCacheWrapper` with tensor cores, or `BatchPrefillWithPagedKVCacheWrapper`."""

    name = "flashinfer-tc"

    def choose(self, spot: Spot, heats: Heats) -> None:
        """Both layouts."""
        import flashinfer  # noqa: F401

        heats.all(Way(layout, "", _wrapped) for layout in DIMENSIONS)


class Xqa:
    """`flashinfer.xqa`; with several queries by its mask for speculative decoding."""

    name = "flashinfer-xqa"

    def choose(self, spot: Spot, heats: Heats) -> None:
        """Both layouts."""
        import flashinfer.xqa  # noqa: F401

        heats.all(Way(layout, "", _xqa) for layout in DIMENSIONS)


def _wrapped(sets: Sets) -> Entry:
    wrappers = [_planned(sets.spot, item, DIMENSIONS[sets.layout]) for item in sets.items]
    caches, outs = [item.cache.view(FP8) for item in sets.items], sets.outs()

    def launch(number: int) -> None:
        wrappers[number].run(sets.items[number].q, caches[number], out=outs[number])

    return Entry(launch, lambda: sets.error(outs))


def _planned(spot: Spot, item: InputSet, dimensions: str) -> Any:
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper

    geometry, device = spot.geometry, item.q.device
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    pages = torch.tensor(spot.pages, dtype=torch.int32)
    ends = _ends(pages).to(device)
    indices = torch.cat([row[:count] for row, count in zip(item.block_table, spot.pages, strict=True)])
    last = (torch.tensor(spot.contexts, dtype=torch.int32) - (pages - 1) * geometry.page_size).to(device)
    heads = (geometry.heads_q, geometry.heads_kv, geometry.head_dim, geometry.page_size)
    dtypes = {"q_data_type": item.q.dtype, "kv_data_type": FP8}
    if geometry.q_len == 1:
        decode = BatchDecodeWithPagedKVCacheWrapper(workspace, dimensions, use_tensor_cores=True)
        decode.plan(ends, indices, last, *heads, **dtypes)
        return decode
    queries = _ends(torch.full((spot.batch,), geometry.q_len, dtype=torch.int32)).to(device)
    prefill = BatchPrefillWithPagedKVCacheWrapper(workspace, dimensions)
    prefill.plan(queries, ends, indices, last, *heads, causal=geometry.causal, **dtypes)
    return prefill


def _ends(counts: Tensor) -> Tensor:
    """(n,) counts to (n + 1,) offsets, int32."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0).int()])


def _xqa(sets: Sets) -> Entry:
    from flashinfer.xqa import xqa

    geometry, outs = sets.spot.geometry, sets.outs()
    device = outs[0].device
    if geometry.q_len > 1 and not geometry.causal:
        raise ValueError("the mask of XQA covers the block of queries alone, and a non-causal block is of no peer here")
    # One workspace a set: launches overlap by PDL.
    work = [torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device) for _ in outs]
    semaphores = [torch.zeros(SEMAPHORES, dtype=torch.uint32, device=device) for _ in outs]
    lengths = torch.tensor(sets.spot.contexts, dtype=torch.uint32).view(-1, 1).to(device)
    several: dict[str, Any] = {}
    if geometry.q_len > 1:
        several = {"q_seq_len": geometry.q_len, "mask": causal_mask(sets.spot.batch, geometry.q_len).to(device)}
    shape = (sets.spot.batch, 1, *(() if geometry.q_len == 1 else (geometry.q_len,)), *outs[0].shape[1:])

    def launch(number: int) -> None:
        item = sets.items[number]
        xqa(
            item.q.view(shape), item.k.view(FP8), item.v.view(FP8), item.block_table, lengths,
            outs[number].view(shape), work[number], semaphores[number], geometry.heads_kv, geometry.page_size,
            kv_layout="NHD", q_scale=1.0, kv_scale=1.0, **several,
        )  # fmt: skip

    return Entry(launch, lambda: sets.error(outs))


def causal_mask(batch: int, q_len: int) -> Tensor:
    """XQA's mask, (batch, q_len, 2 ceil(q_len / 32)) words of 16 bits: bit j of row i is whether query i sees j."""
    words = -(-q_len // 32) * 2
    rows = [[(1 << i + 1) - 1 >> 16 * word & 0xFFFF for word in range(words)] for i in range(q_len)]
    return torch.tensor([rows] * batch, dtype=torch.int32).to(torch.uint16)


def build(geometries: Iterable[Geometry]) -> None:
    """Compile what the geometries need side by side, which takes a minute each when first used.

    What does not compile is left to be told by the contender that needs it.

    Raises:
        ImportError: FlashInfer is not installed.
    """
    from flashinfer.jit.attention import gen_batch_prefill_module
    from flashinfer.jit.xqa import gen_xqa_module

    specs: dict[str, Any] = {}
    for geometry in geometries:
        dtype = torch.float16 if geometry.dtype == "f16" else torch.bfloat16
        made = (
            gen_xqa_module(
                dtype, FP8, geometry.page_size, geometry.head_dim, geometry.gqa, False, dtype, geometry.q_len
            ),
            gen_batch_prefill_module(
                "fa2", dtype, FP8, dtype, torch.int32, geometry.head_dim, geometry.head_dim, 0, False, False, False
            ),
        )
        specs |= {spec.name: spec for spec in made}
    with ThreadPoolExecutor(BUILDERS) as pool:
        for done in [pool.submit(spec.build, False) for spec in specs.values() if not spec.is_compiled]:
            done.exception()
