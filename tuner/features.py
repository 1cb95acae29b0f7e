"""Settings as a surrogate sees them: a place on a line for each knob, and what the plan makes of a batch.

A knob's values are a step apart each. How a split limit and a number of CTAs act together is the work of the planner:
what the slowest SM has to stream. It is known without measuring, so it is one more feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from mjolnir.kernel.engine import engine_for
from mjolnir.kernel.geometry import TILE
from mjolnir.kernel.knobs import KNOBS, Setting
from mjolnir.kernel.plan import make_plan
from mjolnir.tuner.space import Coordinates, Space
from mjolnir.tuner.surrogate import Array
from mjolnir.tuner.workload import Point, Workload

STREAM_STEPS = 4.0
"""Steps of the feature `stream` in which it grows by a factor of e."""


class Features:
    """Features of the settings of a space.

    Args:
        space: the settings.
        workload: the points that the plan is made for; None leaves the feature `stream` out.
    """

    def __init__(self, space: Space, workload: Workload | None) -> None:
        self._space = space
        self._workload = workload
        values: dict[str, set[int]] = {item.name: set() for item in KNOBS}
        for dimension in space.dimensions:
            for name, found in zip(dimension.knobs, zip(*dimension.values, strict=True), strict=True):
                values[name].update(found)
        self._places = {name: {value: place for place, value in enumerate(sorted(v))} for name, v in values.items()}
        self._known: dict[int, dict[Coordinates, tuple[float, ...]]] = {}

    @property
    def count(self) -> int:
        """Number of features."""
        return len(KNOBS) + (self._workload is not None)

    def table(self, bucket: int, settings: Sequence[Coordinates]) -> Array:
        """Features of settings for one bucket, shape (settings, `count`)."""
        known = self._known.setdefault(bucket, {})
        for coordinates in settings:
            if coordinates not in known:
                known[coordinates] = self._row(bucket, self._space.setting(coordinates))
        return np.array([known[coordinates] for coordinates in settings], dtype=np.float64).reshape(-1, self.count)

    def _row(self, bucket: int, setting: Setting) -> tuple[float, ...]:
        places = (self._places[name][value] for name, value in setting.as_dict().items())
        stream = () if self._workload is None else (STREAM_STEPS * self._stream(bucket, setting),)
        return (*map(float, places), *stream)

    def _stream(self, bucket: int, setting: Setting) -> float:
        """Mean over the bucket's points of log(tiles of the longest run x CTAs that share an SM)."""
        assert self._workload is not None
        geometry, device = self._space.geometry, self._space.device
        heads = geometry.heads_kv * engine_for(geometry, device.arch).blocks
        grid = device.sm_count * setting.ctas_per_sm
        points = [self._workload.points[place] for place in self._workload.of_bucket(bucket)]
        runs = [longest_run(point, heads, grid, setting.max_splits) for point in points]
        return float(np.mean(np.log(runs))) + float(np.log(setting.ctas_per_sm))


@lru_cache(maxsize=8192)
def longest_run(point: Point, heads: int, grid: int, max_splits: int) -> int:
    """Tiles of the CTA that has the most, at least 1; `heads` are KV heads times the engine's row blocks."""
    capacity = TILE * max(1, -(-max(point.contexts) // TILE))
    runs: dict[int, int] = {}
    for chunk in make_plan(point.contexts, heads, grid, max_splits, capacity=capacity).chunks():
        runs[chunk.cta] = runs.get(chunk.cta, 0) + chunk.last - chunk.first
    return max([1, *runs.values()])
