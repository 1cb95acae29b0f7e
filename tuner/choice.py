"""Choosing one setting for all context lengths of a bucket.

A server captures its CUDA graphs by batch size, so one setting serves every context length. The regret of a setting at
a point is the logarithm of its time over that of the fastest there. A bucket's winner has the least weighted regret
over its points or, where the choice is to be robust, the least largest one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mjolnir.tuner.statistics import Array, Weights
from mjolnir.tuner.workload import Workload


class Choice:
    """The choice in one bucket.

    Args:
        workload: the points.
        bucket: which.
        robust: by the largest regret instead of the weighted one.
    """

    def __init__(self, workload: Workload, bucket: int, robust: bool) -> None:
        self._workload = workload
        self._bucket = bucket
        self._robust = robust
        self._weights = Weights(workload)
        self.points = workload.of_bucket(bucket)

    def costs(self, logs: Array) -> list[float]:
        """What each setting costs: its weighted or largest regret.

        Args:
            logs: log ratios to one baseline, shape (settings, points of the workload).
        """
        regrets = logs - logs.min(axis=0)
        if self._robust:
            return [float(row[list(self.points)].max()) for row in regrets]
        return [self._weights.of_bucket(self._bucket, row) for row in regrets]

    def tie(self, floor: Array) -> float:
        """How far apart two costs may be and still be equal: the noise floors, put together as the regrets are."""
        if self._robust:
            return float(floor[list(self.points)].max())
        return self._weights.of_bucket(self._bucket, floor)

    def fastest(self, logs: Array) -> list[int]:
        """The places of the settings that are fastest at some point of the bucket, each once."""
        return list(dict.fromkeys(int(place) for place in logs[:, list(self.points)].argmin(axis=0)))

    def price(self, logs: Array, place: int) -> dict[str, Any]:
        """What the setting at `place` costs against the best for each length: fractions, weighted and by point."""
        regret = logs[place] - logs.min(axis=0)
        names = {point: self._workload.points[point].name for point in self.points}
        return {
            "weighted": math.expm1(self._weights.of_bucket(self._bucket, regret)),
            "points": {name: float(np.expm1(regret[point])) for point, name in names.items()},
        }
