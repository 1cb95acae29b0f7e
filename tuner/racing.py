"""Racing: a setting that is clearly slow at the first points is not timed at the others.

The first points are one of the smallest bucket, one of the middle and one of the largest. A setting is dropped when it
is slower at each of them than the lead of that point's bucket by more than `SLACK` and twice the noise: settings that
are good in one bucket are at least tolerable in another, so what is this slow everywhere is good nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mjolnir.tuner.bench import Timing
from mjolnir.tuner.statistics import point_ratios
from mjolnir.tuner.workload import Workload

SLACK = 0.25
"""By which fraction a setting has to be slower than the lead, at least."""


def first_points(workload: Workload) -> tuple[int, ...]:
    """The points that a race is decided at, ascending; none where there would be nothing left to save."""
    buckets = workload.buckets
    chosen = dict.fromkeys((buckets[0], buckets[len(buckets) // 2], buckets[-1]))
    points = tuple(sorted(workload.of_bucket(bucket)[0] for bucket in chosen))
    return points if len(points) < len(workload.points) else ()


class LeadRace:
    """`Race` against the lead of each bucket.

    Attributes:
        points: where it is decided.

    Args:
        workload: the points.
        leads: ratio of the lead in each bucket; without one nobody is dropped.
        floors: noise floor of each bucket, a fraction.
    """

    def __init__(self, workload: Workload, leads: Mapping[int, float], floors: Mapping[int, float]) -> None:
        self.points = first_points(workload)
        self._workload = workload
        self._leads = leads
        self._floors = floors

    def __call__(self, timings: Sequence[Timing]) -> bool:
        """Whether a setting with these timings of the first points may still be a good one."""
        try:
            ratios = point_ratios(timings).tolist()
        except ValueError:
            return True  # what makes no ratio is judged with all its points
        return not all(ratio > self._limit(timing.point) for timing, ratio in zip(timings, ratios, strict=True))

    def _limit(self, point: int) -> float:
        bucket = self._workload.points[point].bucket
        return self._leads.get(bucket, math.inf) * (1 + SLACK + 2 * self._floors.get(bucket, 0.0))
