"""What the plan makes of a point: its longest run of tiles, and what tells one plan from another."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, pairwise

from mjolnir.kernel.geometry import TILE
from mjolnir.kernel.plan import make_plan
from mjolnir.tuner.workload import Point


@lru_cache(maxsize=8192)
def planned(point: Point, heads: int, grid: int, max_splits: int) -> tuple[int, str]:
    """Tiles of the CTA that has the most, at least 1, and the plan's digest.

    `heads` are KV heads times the engine's row blocks.
    """
    capacity = TILE * max(1, -(-max(point.contexts) // TILE))
    plan = make_plan(point.contexts, heads, grid, max_splits, capacity=capacity)
    starts = list(accumulate((heads * count for count in plan.tiles), initial=0))
    places = [
        starts[item // heads] + item % heads * plan.tiles[item // heads] + tile if item < plan.items else starts[-1]
        for item, tile in plan.cuts
    ]
    return max([1, *(end - begin for begin, end in pairwise(places))]), plan.digest()
