"""What the decode kernel works on, bundled so that its parts can hand it on."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Float32, Int32, cute

from mjolnir.kernel.engine import Engine
from mjolnir.kernel.geometry import Geometry


@dataclass(frozen=True)
class Operands:
    """The kernel's tensors.

    Attributes:
        query, out: (head_dim, heads_q, tokens), bf16 or f16; token `sequence * q_len + i` is the i-th of a sequence.
        lse: (heads_q, tokens), f32, natural logarithm.
        table: (sequences, width), int32.
        lengths, tiles: (sequences,), int32; tiles are the planned ones.
        cuts: (grid + 1, 4), int32: item, tile, slot of the cut item's first chunk, one past its last CTA.
        k_scale, v_scale: (sequences, heads_kv), f32, any strides.
        q_mul, o_mul: (head_dim, heads_q), f32.
        partial: (2 grid, rows, head_dim), f32, outputs normalised over their chunk.
        partial_lse: (2 grid, rows), f32, base 2.
        counters: (4 grid,), int32: how many CTAs have brought their chunk, zero between launches.
        scale: softmax scale times log2(e).
    """

    query: cute.Tensor
    out: cute.Tensor
    lse: cute.Tensor
    table: cute.Tensor
    lengths: cute.Tensor
    tiles: cute.Tensor
    cuts: cute.Tensor
    k_scale: cute.Tensor
    v_scale: cute.Tensor
    q_mul: cute.Tensor
    o_mul: cute.Tensor
    partial: cute.Tensor
    partial_lse: cute.Tensor
    counters: cute.Tensor
    scale: Float32


@dataclass(frozen=True)
class Item:
    """One (sequence, KV head, row block); `row` is its first query row."""

    sequence: Int32
    head: Int32
    row: Int32


@dataclass(frozen=True)
class Chunk:
    """The part of an item that lies in one CTA's run.

    Attributes:
        item: of which.
        low, live: its first tile, and one past the last that holds a token.
        length: tokens of the sequence.
        whole: whether it is all of the item.
        slot: where its partial goes otherwise; twice the CTA, and one more where the item is not the run's first.
    """

    item: Item
    low: Int32
    live: Int32
    length: Int32
    whole: cutlass.Boolean
    slot: Int32


def item_of(number: Int32, geometry: Geometry, engine: Engine) -> Item:
    """The item of that number in the plan's order."""
    sequence = number // (geometry.heads_kv * engine.blocks)
    place = number % (geometry.heads_kv * engine.blocks)
    if engine.blocks == 1:
        return Item(sequence, place, Int32(0))
    return Item(sequence, place // engine.blocks, place % engine.blocks * engine.rows)
