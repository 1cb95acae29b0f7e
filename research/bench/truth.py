"""Attention in f64 on the device, for the errors that stand beside the times.

`mjolnir.kernel.reference` has the measure of the kernel's own tests: f64 on the CPU, which takes minutes at the sizes
that are timed, and f32 on the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mjolnir.kernel.geometry import Geometry


def attention(
    q: Tensor, k: Tensor, v: Tensor, block_table: Tensor, lengths: Sequence[int], geometry: Geometry
) -> Tensor:
    """`softmax(Q K^T / sqrt(head_dim)) V` for scales of one.

    Args:
        q: (batch * q_len, heads_q, head_dim), bf16 or f16.
        k, v: (num_pages, page_size, heads_kv, head_dim), e4m3 as bytes, any strides.
        block_table: (batch, width), int32.
        lengths: tokens of each sequence, its queries among them.
        geometry: the problem; row i of a causal sequence sees keys up to `length - q_len + i`.

    Returns:
        (batch * q_len, heads_q, head_dim), f64; rows that see no key are zero.
    """
    rows = q.double().view(len(lengths), geometry.q_len, geometry.heads_kv, geometry.gqa, geometry.head_dim)
    out = torch.zeros_like(rows)
    for number, length in enumerate(lengths):
        if not length:
            continue
        pages = block_table[number, : -(-length // geometry.page_size)].long()
        keys, values = (_gather(part, pages, length) for part in (k, v))
        scores = torch.einsum("ihgd,nhd->hign", rows[number], keys) * geometry.head_dim**-0.5
        if geometry.causal and geometry.q_len > 1:
            last = length - geometry.q_len + torch.arange(geometry.q_len, device=q.device)
            hidden = torch.arange(length, device=q.device) > last[:, None]
            scores = scores.masked_fill(hidden[None, :, None], -torch.inf)
        weights = scores.softmax(-1).nan_to_num(0.0)  # a row that sees nothing is 0 / 0
        out[number] = torch.einsum("hign,nhd->ihgd", weights, values)
    return out.flatten(2, 3).flatten(0, 1)


def _gather(part: Tensor, pages: Tensor, length: int) -> Tensor:
    """Tokens of one sequence, (length, heads_kv, head_dim), f64."""
    return part[pages].flatten(0, 1)[:length].contiguous().view(torch.float8_e4m3fn).to(torch.float64)
