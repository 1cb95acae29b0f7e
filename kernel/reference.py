"""Attention as the contract states it: `softmax(scale * Q K^T + mask) V` over a paged cache, without tiles or tricks.

`attention_f64` is the measure of everything else: one sequence at a time, in f64, on the CPU. `attention_f32` is for
the sizes that are timed, on the device. Neither rounds its output. Shapes of both, with tokens = batch * q_len and
query token i of sequence b in row b * q_len + i:

- q: (tokens, heads_q, head_dim), bf16 or f16, any strides;
- k, v: (num_pages, page_size, heads_kv, head_dim) views of the cache, uint8 or float8_e4m3fn;
- block_table: (batch, width) int32; entries from ceil(length / page_size) on are never followed;
- seq_lens: (batch,) int32; more than width * page_size is clamped, less than zero is zero;
- k_scale, v_scale: f32, one value, (heads_kv,) or (batch, heads_kv);
- q_mul, o_mul: f32 (heads_q, head_dim) or None, factors of Q before it is rounded and of the output.

Output is (tokens, heads_q, head_dim), the log-sum-exp (tokens, heads_q) in natural logarithms. Query token i sees the
keys j <= length - q_len + i, or all keys where the geometry is not causal. A row that sees no key is zero, with a
log-sum-exp of -inf. Query head `j` reads KV head `j // gqa`. Q is rounded as its format says
(`formats.contract_query`), since that is part of what is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mjolnir.kernel.formats import FORMATS, contract_query
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
    q_mul: Tensor | None = None,
    o_mul: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp in f64, on the CPU wherever the inputs are. Shapes as in the module's docstring."""
    batch, heads = len(seq_lens), geometry.heads_kv
    decode = FORMATS[geometry.kv_format].dequantise
    q_mul, o_mul = (None if m is None else m.cpu() for m in (q_mul, o_mul))
    queries = contract_query(q.cpu(), q_mul, geometry, torch.float64)
    queries = queries.reshape(batch, geometry.q_len, heads, geometry.gqa, geometry.head_dim)
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
        scores = scale * torch.einsum("ihgd,nhd->ihgn", queries[b], keys)
        if geometry.causal:
            last = length - geometry.q_len + torch.arange(geometry.q_len)
            scores.masked_fill_((torch.arange(length) > last[:, None])[:, None, None], -torch.inf)
        lse[b] = scores.logsumexp(-1)
        weights = (scores - lse[b][..., None]).exp().masked_fill(lse[b].isinf()[..., None], 0.0)
        out[b] = torch.einsum("ihgn,nhd->ihgd", weights, values)
    out = out.view(q.shape)
    return out if o_mul is None else out * o_mul.double(), lse.view(q.shape[:-1])


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
    q_mul: Tensor | None = None,
    o_mul: Tensor | None = None,
    budget: int = 1 << 27,
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp in f32, on the device of the inputs. Shapes as in the module's docstring.

    Sequences of like lengths are taken together, one KV head at a time, with at most `budget` elements of K or of the
    scores (or one sequence) at once; memory is about 12 bytes for each of them. The lengths are read by the host.

    Raises:
        RuntimeError: f32 matrix products are set to lower precision, and would not be a reference.
    """
    if torch.get_float32_matmul_precision() != "highest":
        raise RuntimeError("the f32 reference needs torch.set_float32_matmul_precision('highest')")
    batch, heads, rows = len(seq_lens), geometry.heads_kv, geometry.rows
    queries = contract_query(q, q_mul, geometry, torch.float32) * scale
    queries = queries.reshape(batch, geometry.q_len, heads, geometry.gqa, -1).transpose(1, 2).flatten(2, 3)
    k_scales, v_scales = (s.to(q.device).float().expand(batch, heads) for s in (k_scale, v_scale))
    out = torch.zeros_like(queries)
    lse = torch.full(queries.shape[:-1], -torch.inf, device=q.device)
    most = budget // max(geometry.head_dim, rows)
    for members, lengths in _groups(_lengths(seq_lens, block_table, geometry), most):
        index = torch.tensor(members, device=q.device)
        pages, visible, seen = _pages(block_table, index, lengths, geometry)
        for head in range(heads):
            keys = _gather(k, pages, head, geometry)
            scores = queries[index, head] @ keys.mT * k_scales[index, head, None, None]
            del keys
            scores = scores.masked_fill_(~seen, -torch.inf)
            values = _gather(v, pages, head, geometry)
            if min(lengths) < values.shape[1]:
                values.masked_fill_(~visible[..., None], 0.0)
            lse[index, head] = scores.logsumexp(-1)
            some = seen.any(-1, keepdim=True)
            weights = scores.softmax(-1).masked_fill_(~some, 0.0)
            out[index, head] = weights @ values * v_scales[index, head, None, None]
    by_head = batch, heads, geometry.q_len, geometry.gqa
    out = out.view(*by_head, -1).transpose(1, 2).reshape(q.shape)
    return out if o_mul is None else out * o_mul, lse.view(by_head).transpose(1, 2).reshape(q.shape[:-1])


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


def _pages(block_table: Tensor, index: Tensor, lengths: list[int], geometry: Geometry) -> tuple[Tensor, Tensor, Tensor]:
    """Pages (group, pages) with those past an end replaced by the sequence's first; which tokens there are (group, n);
    and which of them each query row sees (group, rows, n), or (group, 1, n) where all rows see the same."""
    device = block_table.device
    ends = torch.tensor(lengths, device=device)[:, None]
    count = -(-max(lengths) // geometry.page_size)
    pages = block_table[index, :count].long()
    used = torch.arange(count, device=device) * geometry.page_size < ends
    place = torch.arange(count * geometry.page_size, device=device)
    hidden = torch.zeros(1, dtype=torch.long, device=device)
    if geometry.causal and geometry.q_len > 1:
        hidden = geometry.q_len - 1 - torch.arange(geometry.rows, device=device) // geometry.gqa
    seen = place < (ends - hidden)[..., None]
    return torch.where(used, pages, pages[:, :1]), place < ends, seen


def _gather(part: Tensor, pages: Tensor, head: int, geometry: Geometry) -> Tensor:
    words = part.view(torch.uint8)[:, :, head].view(torch.int64)[pages]  # byte by byte takes eight times as long
    return FORMATS[geometry.kv_format].dequantise(words.view(torch.uint8).flatten(1, 2))
