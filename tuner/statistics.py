"""From samples to ratios, noise floors and intervals. Ratios are time over time: below 1 is faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from mjolnir.tuner.bench import Timing
from mjolnir.tuner.workload import Workload

Array = npt.NDArray[np.float64]

LEAST_FLOOR = 0.005
"""No point is believed to be quieter than 0.5 %."""


def point_ratios(timings: Sequence[Timing]) -> Array:
    """Ratio of candidate to baseline at each point, both freed of the chain around them.

    The median of the empty chain is taken off the medians, (med c - med e) / (med b - med e): subtracting a constant
    and taking a median commute.

    Returns:
        One ratio per timing, in order.

    Raises:
        ValueError: a ratio that is no positive finite number; the message names the point.
    """
    candidate = _medians([timing.candidate for timing in timings])
    baseline = _medians([timing.baseline for timing in timings])
    empty = _medians([timing.empty for timing in timings])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios: Array = (candidate - empty) / (baseline - empty)
    bad = np.flatnonzero(~(np.isfinite(ratios) & (ratios > 0) & (baseline > empty)))
    if bad.size:
        first = int(bad[0])
        raise ValueError(
            f"point {timings[first].point} has no ratio: candidate {candidate[first]:.0f} ns, baseline "
            f"{baseline[first]:.0f} ns, empty chain {empty[first]:.0f} ns"
        )
    return ratios


def _medians(samples: Sequence[Sequence[int]]) -> Array:
    """Median of each row; rows of equal length are taken together."""
    if len({len(row) for row in samples}) == 1 and samples and len(samples[0]):
        table = np.array(samples, dtype=np.float64)
        table[~np.isfinite(table).all(axis=1)] = np.nan
        table.sort(axis=1)
        middle = table.shape[1] // 2
        return table[:, middle] if table.shape[1] % 2 else (table[:, middle - 1] + table[:, middle]) / 2
    return np.array([np.median(row) if len(row) else np.nan for row in samples])


class Weights:
    """The weights of a workload's points, by bucket and over all."""

    def __init__(self, workload: Workload) -> None:
        weights = np.array([point.weight for point in workload.points])
        rows = [
            np.where([point.bucket == bucket for point in workload.points], weights, 0) for bucket in workload.buckets
        ]
        self._names = workload.buckets
        self._matrix = np.array([*rows, weights])
        self._matrix /= self._matrix.sum(axis=1, keepdims=True)

    def means(self, ratios: Array) -> tuple[dict[int, float], float]:
        """Weighted geometric means of point ratios: by bucket, and over all points."""
        *buckets, overall = np.exp(self._matrix @ np.log(ratios)).tolist()
        return dict(zip(self._names, buckets, strict=True)), overall

    def complete(self, ratios: Mapping[int, float]) -> dict[int, float]:
        """Weighted geometric means of the buckets that have a ratio, by point, at all of their points."""
        found = {}
        for name, row in zip(self._names, self._matrix, strict=False):
            points = np.flatnonzero(row).tolist()
            if all(point in ratios for point in points):
                found[name] = float(np.exp(sum(row[point] * np.log(ratios[point]) for point in points)))
        return found

    def of_bucket(self, bucket: int | None, values: Array) -> float:
        """Weighted mean of per-point values (logarithms, floors) over a bucket's points; `values` has every point.

        Without a bucket it is that of all points.
        """
        return float(self._matrix[-1 if bucket is None else self._names.index(bucket)] @ values)


def noise_floor(values: Array) -> Array:
    """The noise floor nu of each point: the larger of 0.5 % and the 95 % quantile of |A/A instance values|.

    Args:
        values: logarithms of A/A ratios, shape (instances, points).

    Returns:
        Fractions, one per point.
    """
    floor: Array = np.maximum(LEAST_FLOOR, np.quantile(np.abs(values), 0.95, axis=0))
    return floor


def instance_values(samples: Sequence[Sequence[Sequence[int]]], candidate: int, baseline: int) -> Array:
    """The value of an instance at each point: median over rounds of log(candidate / baseline).

    Args:
        samples: `samples[point][arm]` as `Instance` has them.
        candidate: index of the candidate's arm.
        baseline: index of the baseline's arm.

    Raises:
        ValueError: a time that is not above zero.
    """
    pairs = np.array([[point[candidate], point[baseline]] for point in samples], dtype=np.float64)
    if not (np.isfinite(pairs).all() and (pairs > 0).all()):
        raise ValueError("an instance has a time that is not above zero")
    values: Array = np.median(np.log(pairs[:, 0] / pairs[:, 1]), axis=-1)
    return values


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval, and the coverage that it has exactly."""

    low: float
    high: float
    coverage: float

    def as_dict(self, value: float) -> dict[str, Any]:
        """JSON form, beside the estimate."""
        return {"value": value, "low": self.low, "high": self.high, "coverage": self.coverage}


@lru_cache(maxsize=64)
def _rank(count: int, confidence: float) -> tuple[int, float]:
    """The largest r with P(r-th smallest < median < r-th largest) >= confidence, and that probability; at least 1."""
    # here because it takes half a second to import, which those who read a summary that is there need not pay
    from scipy.stats import binom

    best = 1
    while 2 * (best + 1) <= count and 1 - 2 * float(binom.cdf(best, count, 0.5)) >= confidence:
        best += 1
    return best, 1 - 2 * float(binom.cdf(best - 1, count, 0.5))


def median_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """The interval of a median from order statistics, free of any model: the inversion of the sign test.

    With r the largest rank for which 1 - 2 BinomCDF(r - 1; n, 1/2) >= confidence it is [x_(r), x_(n+1-r)] (David and
    Nagaraja, Order Statistics, 7.1). With too few values it is their whole range; `coverage` says what that is worth.
    """
    ordered = sorted(values)
    rank, coverage = _rank(len(ordered), confidence)
    return Interval(ordered[rank - 1], ordered[-rank], max(0.0, coverage))
