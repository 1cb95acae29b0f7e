"""Which engine runs a geometry on an architecture, and how its query rows are dealt out to items.

An item is one (sequence, KV head, row block). A row block is as many of the head's `gqa * q_len` query rows as one
CTA's registers can hold; where there are more rows, KV is read once for each block. Blocks of one head are neighbours
in the plan's order, and all but the last have the same number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from mjolnir.kernel.geometry import Geometry

WARP, WGMMA = "warp", "wgmma"
ENGINES = (WARP, WGMMA)

MOST_ROWS = {(WARP, 128): 16, (WARP, 256): 8, (WGMMA, 128): 64, (WGMMA, 256): 32}
"""Most query rows of an item by engine and head size: what two CTAs an SM leave registers for."""

WGMMA_ARCHITECTURES = ("sm_90a",)

TILE_WARPS = 4
"""Warps that compute on one tile together; one more warp of the CTA loads."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One geometry's way through an engine.

    Attributes:
        name: "warp" or "wgmma".
        rows: query rows of one item, a multiple of eight unless the item holds all rows.
        blocks: items of one (sequence, KV head).
    """

    name: str
    rows: int
    blocks: int


def refusal(name: str, geometry: Geometry, arch: str) -> str | None:
    """Why an engine cannot run `geometry` on `arch`, or None."""
    if name not in ENGINES:
        return f"engine {name!r} is not one of {', '.join(ENGINES)}"
    if name == WGMMA and arch not in WGMMA_ARCHITECTURES:
        return f"engine wgmma needs {', '.join(WGMMA_ARCHITECTURES)}, not {arch}"
    if (name, geometry.head_dim) not in MOST_ROWS:
        return f"engine {name} has no code for head_dim {geometry.head_dim}"
    return None


def engine_for(geometry: Geometry, arch: str, name: str | None = None, warps: int = TILE_WARPS) -> Engine:
    """The engine that is best for `geometry` on `arch` with so many computing warps a CTA, or the named one.

    Raises:
        ValueError: the named engine cannot run it; the message says why.
    """
    name = name or _best(geometry, arch, warps)
    reason = refusal(name, geometry, arch)
    if reason:
        raise ValueError(reason)
    most = MOST_ROWS[name, geometry.head_dim]
    blocks = -(-geometry.rows // most)
    rows = geometry.rows if blocks == 1 else 8 * -(-geometry.rows // (8 * blocks))
    return Engine(name, rows, -(-geometry.rows // rows))


def _best(geometry: Geometry, arch: str, warps: int) -> str:
    """By measurement on the H200: of four warps, `warp` is the faster for up to eight rows of a short head alone.

    Eight computing warps, which work on two tiles at once, are of `warp` as long as it holds the rows.
    """
    if arch not in WGMMA_ARCHITECTURES:
        return WARP
    most = MOST_ROWS[WARP, geometry.head_dim]
    few = geometry.rows <= most if warps > TILE_WARPS else geometry.rows <= 8 and geometry.head_dim == 128
    return WARP if few else WGMMA
