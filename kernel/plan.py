"""The plan: which CTA reads which KV tiles of which sequence, for one step. Reference on the host.

**Rule.** An item is one (sequence, KV head); items are ordered by sequence, heads innermost. Sequence `b` has `T_b =
max(1, ceil(n_b / 64))` tiles for each of its items, where `n_b = min(len_b + margin, capacity)`, and no margin is
given to a length of zero (its single tile is empty: somebody has to write its zeros). The tiles of all items form one
line of `T = heads_kv * sum(T_b)` tiles, and a grid of `G` CTAs cuts it `G - 1` times, into runs of equal length. That
length is `T / G`, or a little more where runs then end with items: with `L` the longest item's tiles,

- where `L >= T / G`, the longest item is cut into `n = floor(L G / T)` equal chunks, but `max_splits` at most, and a
  run is `L / n`, if that is at most 9/8 of `T / G`, or if `max_splits` is what limits n and all sequences are as long;
- else a run holds `k = ceil(T / (G L))` items as long as the longest, if `k L` is at most 9/8 of `T / G`.

So with equal lengths a run is one chunk, or a few whole items; the last CTAs may have nothing to do, which costs
little, as the others read at the memory's rate all the same. The ideal place of cut `c` is `floor(c * run)`, or the
line's end. It is moved to the nearest place where the item it falls into may be cut: a multiple of the item's
grain from its start (ties go down), or its end. The grain is 1 when `max_splits` is 0, else `ceil(T_b / max_splits)`,
so that no item falls into more than `max_splits` chunks, and 1 means cuts at item borders only. CTA `c` reads what
lies between cut `c` and cut `c + 1`; equal cuts leave it an empty run. Every tile is read once.

A cut is stored as (item, tile within the item); a cut at an item's end is stored as (next item, 0). The first cut is
(0, 0) and the last (items, 0). The plan keeps `tiles[b] = T_b` beside the cuts, so that a kernel walks its run
by the lengths that were planned, and masks by the lengths that are true when it runs.

A chunk is the part of an item inside one run. An item inside one run is written as it is. Otherwise each of its chunks
leaves a partial (output normalised over the chunk, and its base-2 log-sum-exp) in a slot of its CTA: slot `2 c` if the
item is the first of run `c`, else `2 c + 1` (it is then the last). So the workspace depends on the grid alone:
`2 G * rows * (head_dim + 1)` floats.

The partials of an item are merged by the CTA that is the last to write one; where they come from more than
`MERGE_GROUP` CTAs, in groups of that many neighbours first. On the device each cut inside an item also names the slot
of the item's first chunk and one past the last CTA that has a chunk of it.

Where an engine deals a head's query rows out to several items (see `engine`), "head" in all of this means one (KV
head, row block), blocks innermost.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from mjolnir.kernel.geometry import TILE

MERGE_GROUP = 16
"""Most CTAs whose partials are merged at once."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The part of one item inside one CTA's run.

    Attributes:
        cta: the CTA that reads it.
        item: `sequence * heads_kv + head`.
        first: first tile of the chunk within the item.
        last: one past its last tile.
        slot: the partial's place in the workspace, or None when the item is whole inside this run.
    """

    cta: int
    item: int
    first: int
    last: int
    slot: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """One step's plan.

    Attributes:
        heads_kv: KV heads, to tell the sequence of an item.
        tiles: planned tiles of each sequence's items.
        cuts: `G + 1` pairs (item, tile), ascending.
    """

    heads_kv: int
    tiles: tuple[int, ...]
    cuts: tuple[tuple[int, int], ...]

    @property
    def items(self) -> int:
        """Number of (sequence, KV head) pairs."""
        return len(self.tiles) * self.heads_kv

    def chunks(self) -> Iterator[Chunk]:
        """All chunks, by CTA and then in the order in which the CTA reads them."""
        for cta, (begin, end) in enumerate(zip(self.cuts, self.cuts[1:], strict=False)):
            (item, tile), (end_item, end_tile) = begin, end
            first_item = item
            while (item, tile) < (end_item, end_tile):
                planned = self.tiles[item // self.heads_kv]
                last = end_tile if item == end_item else planned
                whole = tile == 0 and last == planned
                slot = None if whole else 2 * cta + (item != first_item)
                yield Chunk(cta, item, tile, last, slot)
                item, tile = item + 1, 0

    def digest(self) -> str:
        """16 hex digits that two settings share exactly when they have the same plan."""
        return hashlib.sha256(repr((self.heads_kv, self.tiles, self.cuts)).encode()).hexdigest()[:16]


def planned_tiles(length: int, capacity: int, margin: int = 0) -> int:
    """Tiles planned for a sequence of `length` tokens in a block table of `capacity` tokens."""
    if length <= 0:
        return 1
    return max(1, -(-min(length + margin, capacity) // TILE))


def make_plan(
    lengths: Sequence[int], heads_kv: int, grid: int, max_splits: int = 0, *, capacity: int, margin: int = 0
) -> Plan:
    """The plan that the device makes, by the rule of this module.

    Args:
        lengths: tokens of each sequence; below zero counts as zero.
        heads_kv: KV heads.
        grid: CTAs of the persistent grid, `sm_count * ctas_per_sm`.
        max_splits: the knob.
        capacity: tokens that a row of the block table can hold; longer sequences are clamped to it.
        margin: tokens by which lengths may grow before the plan is used.

    Raises:
        ValueError: an empty batch, or a grid below one.
    """
    if not lengths or grid < 1 or heads_kv < 1:
        raise ValueError(
            f"a plan needs sequences, heads and CTAs: {len(lengths)} sequences, {heads_kv} heads, {grid} CTAs"
        )
    tiles = tuple(planned_tiles(length, capacity, margin) for length in lengths)
    starts = list(accumulate((heads_kv * count for count in tiles), initial=0))
    total = starts.pop()
    length, pieces = run_length(total, max(tiles), heads_kv * len(tiles), grid, max_splits)
    cuts = []
    for cut in range(grid):
        place = cut * length // pieces
        if place >= total:
            cuts.append((len(tiles) * heads_kv, 0))
            continue
        sequence = bisect_right(starts, place) - 1
        head, tile = divmod(place - starts[sequence], tiles[sequence])
        cuts.append(_snap(sequence * heads_kv + head, tile, tiles[sequence], max_splits))
    return Plan(heads_kv, tiles, (*cuts, (len(tiles) * heads_kv, 0)))


def run_length(total: int, longest: int, items: int, grid: int, max_splits: int) -> tuple[int, int]:
    """Tiles of a CTA's run as a fraction, by the rule of this module.

    Args:
        total, longest: tiles of the line, and of the longest item.
        items: items on the line.
        grid, max_splits: CTAs, and the knob.
    """
    if longest * grid < total:
        run = -(-total // (grid * longest)) * longest
        return (run, 1) if 8 * run * grid <= 9 * total else (total, grid)
    filling = longest * grid // total
    chunks = min(filling, max_splits) if max_splits else filling
    limited = chunks < filling and total == longest * items
    return (longest, chunks) if limited or 8 * longest * grid <= 9 * total * chunks else (total, grid)


def _snap(item: int, tile: int, tiles: int, max_splits: int) -> tuple[int, int]:
    """Move a cut before `tile` of `item` to the nearest allowed place, ties down."""
    grain = -(-tiles // max_splits) if max_splits else 1
    down = tile // grain * grain
    up = min(down + grain, tiles)
    best = down if tile - down <= up - tile else up
    return (item + 1, 0) if best == tiles else (item, best)
