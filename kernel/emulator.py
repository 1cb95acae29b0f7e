"""The `warp` engine in PyTorch: the same tiles, chunks, softmax states, roundings and merge order, on any device.

Written from the engine's contract:

- A tile is 64 tokens. Warp w of four owns tokens 16 w to 16 w + 15 of every tile, and keeps a running maximum m (of raw
  scores), a sum l and an unnormalised output O of its own, in f32, from a chunk's first tile to its last.
- Q is rounded to f16 (`formats.round_query`), K and V are e4m3, exact in f16; scores and O accumulate in f32.
- With c = softmax_scale * log2(e) * k_scale: p = exp2(S c - m c), l sums p as it is, O takes p rounded to f16.
- At a chunk's end the warps are combined in warp order, at the merge the chunks in CTA order, by their maxima.
  The output is multiplied by v_scale in f32 and rounded once.

A whole item goes through the same merge, which changes nothing: its one weight is exp2(0) = 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mjolnir.kernel.formats import FORMATS, round_query
from mjolnir.kernel.geometry import TILE, Geometry
from mjolnir.kernel.plan import Chunk, Plan

WARPS = 4
LN2 = math.log(2.0)


@dataclass(frozen=True, slots=True)
class _Keys:
    """The cache as the chunks see it; chunks run along dimension 0, longest first.

    Attributes:
        k, v: logical views of the codes, uint8.
        table: (batch, width) pages.
        lengths: (chunks,) tokens of the chunk's sequence, clamped to the table.
        sequence, head, first: (chunks,) whose tiles, and the first of them.
    """

    k: Tensor
    v: Tensor
    table: Tensor
    lengths: Tensor
    sequence: Tensor
    head: Tensor
    first: Tensor

    def tile(self, count: int, step: int, geometry: Geometry) -> tuple[Tensor, Tensor, Tensor]:
        """K and V (count, warps, 16, head_dim) and which tokens are seen (count, warps, 1, 16), `step` tiles on."""
        token = (self.first[:count, None] + step) * TILE + torch.arange(TILE, device=self.k.device)
        seen = token < self.lengths[:count, None]
        place = torch.where(seen, token, 0)
        page = torch.where(seen, self.table[self.sequence[:count, None], place // geometry.page_size], 0)
        where = page.long(), place % geometry.page_size, self.head[:count, None]
        decode = FORMATS[geometry.kv_format].dequantise
        keys, values = (decode(part[where]).masked_fill(~seen[..., None], 0.0) for part in (self.k, self.v))
        shape = (count, WARPS, TILE // WARPS, geometry.head_dim)
        return keys.view(shape), values.view(shape), seen.view(count, WARPS, 1, TILE // WARPS)


@dataclass(frozen=True, slots=True)
class _State:
    """Softmax state of every chunk, warp and query row; `c` turns raw scores into powers of two.

    Attributes:
        peak, total: m and l, (chunks, warps, rows).
        out: O, (chunks, warps, rows, head_dim).
        c: (chunks, 1, 1).
    """

    peak: Tensor
    total: Tensor
    out: Tensor
    c: Tensor

    def update(self, scores: Tensor, seen: Tensor, values: Tensor) -> None:
        """One tile for the first `len(scores)` chunks: scores (n, warps, rows, 16), values (n, warps, 16, head_dim)."""
        old, total, out, c = (part[: len(scores)] for part in (self.peak, self.total, self.out, self.c))
        peak = torch.maximum(old, scores.masked_fill(~seen, -torch.inf).amax(-1))
        base = torch.where(peak.isinf(), 0.0, peak)
        p = torch.exp2(scores * c[..., None] - (base * c)[..., None]).masked_fill(~seen, 0.0)
        alpha = torch.exp2((old - base) * c).masked_fill(old.isinf(), 0.0)
        total.mul_(alpha).add_(p.sum(-1))
        out.mul_(alpha[..., None]).add_(p.half().float() @ values)
        old.copy_(peak)

    def combine(self) -> tuple[Tensor, Tensor]:
        """The warps of each chunk made one: output (chunks, rows, head_dim) and base-2 log-sum-exp (chunks, rows)."""
        peak = self.peak.amax(1)
        base = torch.where(peak.isinf(), 0.0, peak)
        total, out = torch.zeros_like(peak), torch.zeros_like(self.out[:, 0])
        for warp in range(WARPS):
            own = self.peak[:, warp]
            weight = torch.exp2((own - base) * self.c[:, 0]).masked_fill(own.isinf(), 0.0)
            total += self.total[:, warp] * weight
            out += self.out[:, warp] * weight[..., None]
        empty = total == 0
        out = (out / total[..., None]).masked_fill(empty[..., None], 0.0)
        return out, (base * self.c[:, 0] + total.log2()).masked_fill(empty, -torch.inf)


def emulate(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    plan: Plan,
    *,
    geometry: Geometry,
    scale: float,
    k_scale: Tensor,
    v_scale: Tensor,
    lse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """What the `warp` engine computes by `plan`; shapes of the inputs as in `mjolnir.kernel.reference`.

    Args:
        q, k, v, block_table, seq_lens: the inputs; lengths may differ from those that were planned.
        plan: which CTA reads which tiles. Tokens beyond an item's planned tiles are not read.
        geometry: the problem.
        scale: softmax scale.
        k_scale, v_scale: f32, at least zero.
        lse: whether the log-sum-exp is asked for.

    Returns:
        Output (batch, heads_q, head_dim) in q's dtype, and f32 (batch, heads_q) in natural logarithms, or None.

    Raises:
        ValueError: the plan is of another batch or number of heads.
    """
    batch, heads, device = q.shape[0], geometry.heads_kv, q.device
    if plan.heads_kv != heads or len(plan.tiles) != batch:
        raise ValueError(f"a plan of {len(plan.tiles)} x {plan.heads_kv} items for a batch of {batch} x {heads}")
    k_scales, v_scales = (s.to(device).float().expand(batch, heads) for s in (k_scale, v_scale))
    chunks = sorted(plan.chunks(), key=lambda chunk: chunk.first - chunk.last)
    keys = _keys(chunks, k, v, block_table, seq_lens, geometry)
    c = k_scales * torch.tensor(scale / LN2, dtype=torch.float32, device=device)
    state = _walk(chunks, keys, q, c, geometry)
    out, lse2 = _merge(chunks, plan.items, *state.combine())
    out = out.view(batch, heads, geometry.rows, geometry.head_dim) * v_scales[..., None, None]
    shape = (batch, geometry.heads_q)
    return out.view(*shape, -1).to(q.dtype), (lse2 * LN2).view(shape) if lse else None


def _keys(chunks: list[Chunk], k: Tensor, v: Tensor, table: Tensor, seq_lens: Tensor, geometry: Geometry) -> _Keys:
    item, first = (torch.tensor(x, device=k.device) for x in zip(*((c.item, c.first) for c in chunks), strict=True))
    sequence, head = item // geometry.heads_kv, item % geometry.heads_kv
    lengths = seq_lens.clamp(max=table.shape[1] * geometry.page_size)[sequence]
    return _Keys(k.view(torch.uint8), v.view(torch.uint8), table, lengths, sequence, head, first)


def _walk(chunks: list[Chunk], keys: _Keys, q: Tensor, c: Tensor, geometry: Geometry) -> _State:
    """Every chunk from its first tile to its last; chunks are sorted, so those still at work are the first few."""
    rows, factor = round_query(q.reshape(len(q), geometry.heads_kv, geometry.rows, geometry.head_dim))
    where = keys.sequence, keys.head
    queries, back = rows[where].float()[:, None], factor[where][:, None, :, None]
    shape = (len(chunks), WARPS, geometry.rows)
    state = _State(
        peak=torch.full(shape, -torch.inf, device=q.device),
        total=torch.zeros(shape, device=q.device),
        out=torch.zeros(*shape, geometry.head_dim, device=q.device),
        c=c[where][:, None, None],
    )
    tiles = [chunk.last - chunk.first for chunk in chunks]
    for step in range(tiles[0]):
        count = sum(step < n for n in tiles)
        k, v, seen = keys.tile(count, step, geometry)
        state.update(queries[:count] @ k.mT * back[:count], seen, v)
    return state


def _merge(chunks: list[Chunk], items: int, out: Tensor, lse2: Tensor) -> tuple[Tensor, Tensor]:
    """The chunks of each item made one, in CTA order: (items, rows, head_dim) and base-2 (items, rows)."""
    parts: list[list[int]] = [[] for _ in range(items)]
    for index in sorted(range(len(chunks)), key=lambda i: chunks[i].cta):
        parts[chunks[index].item].append(index)
    most = max(map(len, parts))
    # One place more, of weight zero, stands for the chunks that an item does not have.
    padded = torch.tensor([part + [len(chunks)] * (most - len(part)) for part in parts], device=out.device)
    out = torch.cat([out, torch.zeros_like(out[:1])])
    lse2 = torch.cat([lse2, torch.full_like(lse2[:1], -torch.inf)])
    peak = lse2[padded].amax(1)
    base = torch.where(peak.isinf(), 0.0, peak)
    total, merged = torch.zeros_like(peak), torch.zeros_like(out[padded[:, 0]])
    for part in padded.unbind(1):
        weight = torch.exp2(lse2[part] - base)
        total += weight
        merged += weight[..., None] * out[part]
    empty = total == 0
    merged = (merged / total[..., None]).masked_fill(empty[..., None], 0.0)
    return merged, (base + total.log2()).masked_fill(empty, -torch.inf)
