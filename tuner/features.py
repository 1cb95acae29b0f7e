"""Settings as a surrogate sees them: a place on a line for each knob, and what the plan makes of a batch.

A knob's values are a step apart each; no split limit at all comes after the largest. How a limit and a number of CTAs
act together is the work of the planner. What comes of it is known without measuring: a limit counts as the smallest
that gives the bucket the same plans, so that settings which differ in nothing but a limit that does not bind are one,
and what the slowest SM has to stream is one more feature.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mjolnir.kernel.engine import engine_for
from mjolnir.kernel.knobs import KNOBS, Setting
from mjolnir.tuner.runs import planned
from mjolnir.tuner.space import Coordinates, Space
from mjolnir.tuner.surrogate import Array
from mjolnir.tuner.workload import Workload

STREAM_STEPS = 4.0
"""Steps of the feature `stream` in which it grows by a factor of e."""

Ways = dict[int, list[tuple[int, str]]]
"""By split limit, the longest run and the plan's digest at each point of a bucket."""


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
        self._places = {
            name: {value: place for place, value in enumerate(sorted(found, key=lambda value: _order(name, value)))}
            for name, found in values.items()
        }
        self._known: dict[int, dict[Coordinates, tuple[float, ...]]] = {}
        self._plans: dict[tuple[int, int], Ways] = {}

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

    def alike(self, setting: Coordinates) -> tuple[float, ...]:
        """What tells a setting from others: its features for all buckets, one after the other."""
        buckets = (None,) if self._workload is None else self._workload.buckets
        return tuple(value for bucket in buckets for value in self.table(bucket or 0, [setting])[0].tolist())

    def _row(self, bucket: int, setting: Setting) -> tuple[float, ...]:
        values, stream = setting.as_dict(), list[float]()
        if self._workload is not None:
            ways = self._ways(bucket, setting.ctas_per_sm)
            values["max_splits"] = next(limit for limit, way in ways.items() if way == ways[setting.max_splits])
            runs = [run for run, _ in ways[setting.max_splits]]
            stream.append(STREAM_STEPS * (float(np.mean(np.log(runs))) + float(np.log(setting.ctas_per_sm))))
        return (*(float(self._places[name][value]) for name, value in values.items()), *stream)

    def _ways(self, bucket: int, ctas_per_sm: int) -> Ways:
        """For each split limit of the space, at each of the bucket's points, the longest run and the plan."""
        assert self._workload is not None
        ways = self._plans.get((bucket, ctas_per_sm))
        if ways is None:
            geometry, device = self._space.geometry, self._space.device
            heads = geometry.heads_kv * engine_for(geometry, device.arch).blocks
            grid = device.sm_count * ctas_per_sm
            points = [self._workload.points[place] for place in self._workload.of_bucket(bucket)]
            limits = self._places["max_splits"]
            ways = {limit: [planned(point, heads, grid, limit) for point in points] for limit in limits}
            self._plans[bucket, ctas_per_sm] = ways
        return ways


def _order(name: str, value: int) -> tuple[bool, int]:
    """Where a knob's value stands: no limit after all limits."""
    return name == "max_splits" and not value, value
