"""The engines in PyTorch: the same tiles, chunks, softmax states, roundings and merge order, on any device.

Written from the engines' contract:

- An item is one (sequence, KV head, row block) of `engine.rows` query rows; row r of a head is query token r // gqa
  and query head r % gqa. A tile is 64 tokens.
- `warp`: four warps share a tile, or eight two tiles; warp w owns 16 tokens of every tile, or of every other tile from
  tile w // 4 of the chunk on: those from 16 (w % 4). It keeps a running maximum m (of raw scores), a sum l and an
  unnormalised output O of its own, in f32, from a chunk's first tile to its last.
- `wgmma`: one state over whole tiles, whose maximum is raised only when a tile outgrows it by more than 2^8; p is then
  at most 256.
- Q is rounded as its format says (`formats.prepare_query`), K and V are e4m3, exact in f16; scores and O accumulate
  in f32.
- With c = softmax_scale * log2(e) * k_scale * the row's factor: p = exp2(S c - m c), l sums p as it is, O takes p
  rounded to f16. When m is raised, l and O are multiplied by exp2(old c - new c).
- At a chunk's end the states are combined in warp order, at the merge the chunks in CTA order, by their maxima. An item
  over more than `MERGE_GROUP` CTAs is merged in groups of as many, counted from its first, then the groups in order.
- The output is multiplied by v_scale and by o_mul in f32, and rounded once.

A whole item goes through the same merge, which changes nothing: its one weight is exp2(0) = 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from mjolnir.kernel.engine import TILE_WARPS, Engine
from mjolnir.kernel.formats import FORMATS, prepare_query
from mjolnir.kernel.geometry import TILE, Geometry
from mjolnir.kernel.plan import MERGE_GROUP, Chunk, Plan
from mjolnir.kernel.softmax import Softmax, State

LN2 = math.log(2.0)


@dataclass(frozen=True, slots=True)
class _Keys:
    """The cache as the chunks see it; chunks run along dimension 0, longest first.

    Attributes:
        k, v: logical views of the codes, uint8.
        table: (batch, width) pages.
        lengths: (chunks,) tokens of the chunk's sequence, clamped to the table.
        seen: (chunks, rows) one past the last token that each query row sees, within the chunk.
        sequence, head, first: (chunks,) whose tiles, and the first of them.
        softmax: how tokens are shared.
    """

    k: Tensor
    v: Tensor
    table: Tensor
    lengths: Tensor
    seen: Tensor
    sequence: Tensor
    head: Tensor
    first: Tensor
    softmax: Softmax

    def tile(self, count: int, step: int, geometry: Geometry) -> tuple[Tensor, Tensor, Tensor]:
        """K and V (count, states, n, head_dim) and which tokens are seen (count, states, rows, n), `step` steps on."""
        span = self.softmax.tiles * TILE
        token = self.first[:count, None] * TILE + step * span + torch.arange(span, device=self.k.device)
        there = token < self.lengths[:count, None]
        place = torch.where(there, token, 0)
        page = torch.where(there, self.table[self.sequence[:count, None], place // geometry.page_size], 0)
        where = page.long(), place % geometry.page_size, self.head[:count, None]
        decode = FORMATS[geometry.kv_format].dequantise
        keys, values = (decode(part[where]).masked_fill(~there[..., None], 0.0) for part in (self.k, self.v))
        seen = token[:, None] < self.seen[:count, :, None]
        share = (count, self.softmax.states, span // self.softmax.states, geometry.head_dim)
        seen = seen.view(count, -1, *share[1:3]).transpose(1, 2)
        return keys.view(share), values.view(share), seen


def emulate(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    plan: Plan,
    *,
    geometry: Geometry,
    engine: Engine,
    scale: float,
    k_scale: Tensor,
    v_scale: Tensor,
    q_mul: Tensor | None = None,
    o_mul: Tensor | None = None,
    warps: int = TILE_WARPS,
    lse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """What `engine` computes by `plan`; shapes of the inputs as in `mjolnir.kernel.reference`.

    Args:
        q, k, v, block_table, seq_lens: the inputs; lengths may differ from those that were planned.
        plan: which CTA reads which tiles, made for `heads_kv * engine.blocks` heads. Tokens beyond an item's planned
            tiles are not read.
        geometry: the problem.
        engine: how query rows are dealt out to items, and what computes them.
        scale: softmax scale.
        k_scale, v_scale: f32, at least zero.
        q_mul, o_mul: f32 (heads_q, head_dim), or None.
        warps: computing warps of the `warp` engine, 4 or 8.
        lse: whether the log-sum-exp is asked for.

    Returns:
        Output (tokens, heads_q, head_dim) in q's dtype, and f32 (tokens, heads_q) in natural logarithms, or None.

    Raises:
        ValueError: the plan is of another batch or number of heads and row blocks.
    """
    batch, heads, device = len(seq_lens), geometry.heads_kv, q.device
    if plan.heads_kv != heads * engine.blocks or len(plan.tiles) != batch:
        raise ValueError(
            f"a plan of {len(plan.tiles)} x {plan.heads_kv} items for a batch of {batch} x {heads * engine.blocks}"
        )
    k_scales, v_scales = (part.to(device).float().expand(batch, heads)[..., None] for part in (k_scale, v_scale))
    values, factor = prepare_query(q, q_mul, geometry)
    c = k_scales * torch.tensor(scale / LN2, dtype=torch.float32, device=device) * _by_head(factor, geometry)
    chunks = sorted(plan.chunks(), key=lambda chunk: chunk.first - chunk.last)
    softmax = Softmax.of(engine.name, warps)
    keys = _keys(chunks, k, v, block_table, seq_lens, geometry, engine, softmax)
    queries = _by_item(_by_head(values, geometry), engine).float()
    state = _walk(chunks, keys, queries, _by_item(c, engine), geometry)
    merged, lse2 = _merge(chunks, plan.items, *state.combine())
    out = _by_token(_of_items(merged, batch, geometry) * v_scales[..., None], geometry)
    out = out if o_mul is None else out * o_mul
    return out.to(q.dtype), _by_token(_of_items(lse2, batch, geometry), geometry) * LN2 if lse else None


def _by_head(x: Tensor, geometry: Geometry) -> Tensor:
    """(tokens, heads_q, ...) as (batch, heads_kv, query rows of one KV head, ...)."""
    x = x.reshape(-1, geometry.q_len, geometry.heads_kv, geometry.gqa, *x.shape[2:])
    return x.transpose(1, 2).flatten(2, 3)


def _by_token(x: Tensor, geometry: Geometry) -> Tensor:
    """The inverse of `_by_head`."""
    x = x.reshape(*x.shape[:2], geometry.q_len, geometry.gqa, *x.shape[3:])
    return x.transpose(1, 2).flatten(2, 3).flatten(0, 1)


def _by_item(x: Tensor, engine: Engine) -> Tensor:
    """(batch, heads_kv, rows, ...) as (items, engine.rows, ...), with zeros where a last block has fewer rows."""
    missing = engine.blocks * engine.rows - x.shape[2]
    padded = torch.cat([x, x.new_zeros(*x.shape[:2], missing, *x.shape[3:])], 2)
    return padded.reshape(-1, engine.rows, *x.shape[3:])


def _of_items(x: Tensor, batch: int, geometry: Geometry) -> Tensor:
    """The inverse of `_by_item`."""
    return x.reshape(batch, geometry.heads_kv, -1, *x.shape[2:])[:, :, : geometry.rows]


def _keys(
    chunks: list[Chunk],
    k: Tensor,
    v: Tensor,
    table: Tensor,
    seq_lens: Tensor,
    geometry: Geometry,
    engine: Engine,
    softmax: Softmax,
) -> _Keys:
    places = [(chunk.item, chunk.first, chunk.last) for chunk in chunks]
    item, first, last = torch.tensor(places, device=k.device).unbind(1)
    head = item // engine.blocks
    sequence, head = head // geometry.heads_kv, head % geometry.heads_kv
    lengths = seq_lens.clamp(max=table.shape[1] * geometry.page_size)[sequence]
    row = item[:, None] % engine.blocks * engine.rows + torch.arange(engine.rows, device=k.device)
    hidden = geometry.q_len - 1 - row // geometry.gqa if geometry.causal else torch.zeros_like(row)
    seen = (lengths[:, None] - hidden).minimum(last[:, None] * TILE).masked_fill(row >= geometry.rows, 0)
    codes = k.view(torch.uint8), v.view(torch.uint8)
    return _Keys(*codes, table, lengths, seen, sequence, head, first, softmax)


def _walk(chunks: list[Chunk], keys: _Keys, queries: Tensor, c: Tensor, geometry: Geometry) -> State:
    """Every chunk from its first tile to its last; chunks are sorted, so those still at work are the first few.

    Args:
        chunks, keys: what is read.
        queries, c: (items, rows, head_dim) and (items, rows).
        geometry: the problem.
    """
    item = torch.tensor([chunk.item for chunk in chunks], device=queries.device)
    queries = queries[item][:, None]
    state = State.fresh(len(chunks), keys.softmax, c[item], geometry.head_dim)
    steps = [-(-(chunk.last - chunk.first) // keys.softmax.tiles) for chunk in chunks]
    for step in range(steps[0]):
        count = sum(step < n for n in steps)
        k, v, seen = keys.tile(count, step, geometry)
        state.update(queries[:count] @ k.mT, seen, v)
    return state


def _merge(chunks: list[Chunk], items: int, out: Tensor, lse2: Tensor) -> tuple[Tensor, Tensor]:
    """The chunks of each item made one: (items, rows, head_dim) and base-2 (items, rows).

    Chunks are merged in CTA order within groups of `MERGE_GROUP` CTAs, and then the groups of each item in order.
    """
    parts: list[list[list[int]]] = [[] for _ in range(items)]
    first: dict[int, int] = {}
    for index in sorted(range(len(chunks)), key=lambda i: chunks[i].cta):
        chunk = chunks[index]
        group = (chunk.cta - first.setdefault(chunk.item, chunk.cta)) // MERGE_GROUP
        groups = parts[chunk.item]
        groups.extend([] for _ in range(group + 1 - len(groups)))
        groups[group].append(index)
    flat = [group for groups in parts for group in groups]
    starts = list(accumulate(map(len, parts), initial=0))
    out, lse2 = _merge_level(flat, out, lse2)
    return _merge_level([list(range(*pair)) for pair in pairwise(starts)], out, lse2)


def _merge_level(parts: list[list[int]], out: Tensor, lse2: Tensor) -> tuple[Tensor, Tensor]:
    """Each list of partials made one, in its order; what is empty stays empty."""
    most = max(map(len, parts))
    # One place more, of weight zero, stands for the partials that a list does not have.
    padded = torch.tensor([part + [len(out)] * (most - len(part)) for part in parts], device=out.device)
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
