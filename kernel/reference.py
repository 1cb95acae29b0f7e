"""Attention as the contract states it: `softmax(scale * Q K^T) V` over a paged cache, with no tiles and no tricks.

`attention_f64` is the measure of everything else: one sequence at a time, in f64, on the CPU. `attention_f32` is for
the sizes that are timed, on the device. Neither rounds its output. Shapes of both:

- q: (batch, heads_q, head_dim), bf16 or f16, any strides;
- k, v: (num_pages, page_size, heads_kv, head_dim) views of the cache, uint8 or float8_e4m3fn;
- block_table: (batch, width) int32; entries from ceil(length / page_size) on are never followed;
- seq_lens: (batch,) int32; more than width * page_size is clamped, less than zero is zero;
- k_scale, v_scale: f32, one value, (heads_kv,) or (batch, heads_kv).

Output is (batch, heads_q, head_dim), the log-sum-exp (batch, heads_q) in natural logarithms. A row that sees no key
is zero, with a log-sum-exp of -inf. Query head `j` reads KV head `j // gqa`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mjolnir.kernel.formats import FORMATS
from mjolnir.kernel.geometry import Geometry


def attention_f64(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    geometry: Geometry,
    scale: float,
    k_scale: Tensor,
    v_scale: Tensor,
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp in f64, on the CPU wherever the inputs are. Shapes as in the module's docstring."""
    batch, heads = q.shape[0], geometry.heads_kv
    decode = FORMATS[geometry.kv_format].dequantise
    queries = q.cpu().double().reshape(batch, heads, geometry.gqa, geometry.head_dim)
    k_scales, v_scales = (s.cpu().double().expand(batch, heads) for s in (k_scale, v_scale))
    out = torch.zeros_like(queries)
    lse = torch.full(queries.shape[:-1], -torch.inf, dtype=torch.float64)
    for b, length in enumerate(_lengths(seq_lens, block_table, geometry)):
        if not length:
            continue
        pages = block_table[b, : -(-length // geometry.page_size)].long()
        keys, values = (
            decode(part[pages].flatten(0, 1)[:length].view(torch.uint8).cpu(), torch.float64) * scales[b, :, None]
            for part, scales in ((k, k_scales), (v, v_scales))
        )
        scores = scale * torch.einsum("hgd,nhd->hgn", queries[b], keys)
        lse[b] = scores.logsumexp(-1)
        out[b] = torch.einsum("hgn,nhd->hgd", (scores - lse[b][..., None]).exp(), values)
    return out.flatten(1, 2), lse.flatten(1, 2)


def attention_f32(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    geometry: Geometry,
    scale: float,
    k_scale: Tensor,
    v_scale: Tensor,
    budget: int = 1 << 27,
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp in f32, on the device of the inputs. Shapes as in the module's docstring.

    Sequences of like lengths are taken together, one KV head at a time, with at most `budget` elements of K (or one
    sequence) gathered at once; memory is about 12 bytes for each of them. The lengths are read by the host.

    Raises:
        RuntimeError: f32 matrix products are set to lower precision, and would not be a reference.
    """
    if torch.get_float32_matmul_precision() != "highest":
        raise RuntimeError("the f32 reference needs torch.set_float32_matmul_precision('highest')")
    batch, heads = q.shape[0], geometry.heads_kv
    queries = q.float().reshape(batch, heads, geometry.gqa, geometry.head_dim) * scale
    k_scales, v_scales = (s.to(q.device).float().expand(batch, heads) for s in (k_scale, v_scale))
    out = torch.zeros_like(queries)
    lse = torch.full(queries.shape[:-1], -torch.inf, device=q.device)
    for members, lengths in _groups(_lengths(seq_lens, block_table, geometry), budget // geometry.head_dim):
        index = torch.tensor(members, device=q.device)
        pages, visible = _pages(block_table, index, lengths, geometry.page_size)
        for head in range(heads):
            keys = _gather(k, pages, head, geometry)
            scores = queries[index, head] @ keys.mT * k_scales[index, head, None, None]
            del keys
            scores = scores.masked_fill(~visible[:, None], -torch.inf)
            values = _gather(v, pages, head, geometry).masked_fill_(~visible[..., None], 0.0)
            lse[index, head] = scores.logsumexp(-1)
            out[index, head] = scores.softmax(-1) @ values * v_scales[index, head, None, None]
    return out.flatten(1, 2), lse.flatten(1, 2)


def _lengths(seq_lens: Tensor, block_table: Tensor, geometry: Geometry) -> list[int]:
    capacity = block_table.shape[1] * geometry.page_size
    return [min(max(length, 0), capacity) for length in seq_lens.tolist()]


def _groups(lengths: list[int], tokens: int) -> Iterator[tuple[list[int], list[int]]]:
    """Sequences that are not empty, longest first, so that padding to a group's longest wastes little."""
    order = sorted((b for b, length in enumerate(lengths) if length), key=lambda b: -lengths[b])
    while order:
        count = max(1, tokens // lengths[order[0]])
        members, order = order[:count], order[count:]
        yield members, [lengths[b] for b in members]


def _pages(block_table: Tensor, index: Tensor, lengths: list[int], page_size: int) -> tuple[Tensor, Tensor]:
    """Pages (group, n) with those past an end replaced by the sequence's first, and which tokens are seen."""
    device = block_table.device
    ends = torch.tensor(lengths, device=device)
    count = -(-max(lengths) // page_size)
    pages = block_table[index, :count].long()
    used = torch.arange(count, device=device) * page_size < ends[:, None]
    visible = torch.arange(count * page_size, device=device) < ends[:, None]
    return torch.where(used, pages, pages[:, :1]), visible


def _gather(part: Tensor, pages: Tensor, head: int, geometry: Geometry) -> Tensor:
    codes = part.view(torch.uint8)[:, :, head][pages].flatten(1, 2)
    return FORMATS[geometry.kv_format].dequantise(codes)
