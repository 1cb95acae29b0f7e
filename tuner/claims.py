"""What a promotion claims of a setting against a baseline, as numbers that a unit of evidence is in favour of or not.

Against each baseline it claims, of the median over fresh processes: that the weighted log ratio of the bucket lies
below -log(1 + margin); and, for each point of the bucket, that its log ratio lies below +nu_p, the point's noise floor.

Of a change of the sources the same is claimed over the whole workload, as if it were one bucket.

The unit is a process, not an instance: whatever a process is biased by (where its buffers came to lie, which clocks it
met), all its instances share, so that they are no independent evidence. Its value is the median over its instances,
for each claim by itself. A bias that favours either side equally often then leaves the sign test valid, however large
it is; it costs power, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mjolnir.tuner.eprocess import Booleans
from mjolnir.tuner.statistics import Array, Weights
from mjolnir.tuner.workload import Workload


class Claims:
    """The claims about one bucket, or about all of them together: first the gain, then one a point.

    Attributes:
        points: the points of the claims but for the first, by their index in the workload.
        limits: a value below its limit is in favour; logarithms, shape (..., claims).

    Args:
        workload: the points.
        bucket: which; None for the whole workload.
        floor: noise floor of each point of the workload, shape (points,), or (..., points) for many campaigns at once.
        margin: the margin, a fraction.
    """

    def __init__(self, workload: Workload, bucket: int | None, floor: Array, margin: float) -> None:
        everything = tuple(range(len(workload.points)))
        self.points = everything if bucket is None else workload.of_bucket(bucket)
        gain = np.full((*floor.shape[:-1], 1), -math.log1p(margin))
        self.limits: Array = np.concatenate([gain, floor[..., list(self.points)]], axis=-1)
        rows = np.eye(len(workload.points))
        weighted = [Weights(workload).of_bucket(bucket, row) for row in rows]
        self._matrix = np.array([weighted, *rows[list(self.points)]])

    def values(self, instances: Array) -> Array:
        """Claim values of instances: log ratios of shape (..., points) become (..., claims)."""
        return np.asarray(instances @ self._matrix.T)

    def units(self, instances: Array, processes: Sequence[int]) -> Array:
        """Claim values of processes, in the order in which they came.

        Args:
            instances: log ratios, shape (..., instances, points).
            processes: the process of each instance.

        Returns:
            Medians over the instances of each process, shape (..., processes, claims).
        """
        values, each = self.values(instances), np.asarray(processes)
        medians = [np.median(values[..., each == process, :], axis=-2) for process in dict.fromkeys(processes)]
        return np.stack(medians, axis=-2)

    def in_favour(self, units: Array) -> Booleans:
        """Which claims each unit, shape (..., units, claims), is in favour of."""
        return np.asarray(units < self.limits[..., None, :])
