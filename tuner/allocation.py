"""Which bucket is asked next: the one that has the most to gain, weighed by how long it has waited.

What a bucket has to gain is the expected improvement of its best untried setting, where its study can say; else how
much its lead has improved over its last `MEMORY` trials, a trial. The bucket with the largest product of the square
root of its gain and the asks since its last one is asked: so asks are shared about in proportion to the roots, and much
to gain in one bucket does not silence the others. No bucket waits longer than `PATIENCE` rounds of all, whatever it has
to gain; and while none is known to have anything, they are asked in turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import sqrt

from mjolnir.tuner.proposers import Gain

MEMORY = 12
"""Trials over which the improvement of a lead is counted."""

PATIENCE = 4
"""Rounds that a bucket waits at most; a round is as many asks as there are buckets."""


class Allocation:
    """Decides for whom the proposer is asked.

    Args:
        buckets: those of the workload, in order.
    """

    def __init__(self, buckets: Sequence[int]) -> None:
        self._buckets = buckets
        self._best: dict[int, float] = {}
        self._steps: dict[int, deque[float]] = {bucket: deque(maxlen=MEMORY) for bucket in buckets}
        self._asked = dict.fromkeys(buckets, 0)

    def tell(self, bucket: int, value: float | None) -> None:
        """Take in the logarithm of a trial's ratio in one bucket, None where it has none."""
        best = self._best.get(bucket)
        step = 0.0
        if value is not None:
            step = 0.0 if best is None else max(0.0, best - value)
            self._best[bucket] = value if best is None else min(best, value)
        self._steps[bucket].append(step)

    def note(self, bucket: int, number: int) -> None:
        """Trial `number` was asked for by this bucket."""
        self._asked[bucket] = number

    def choose(self, number: int, gain: Callable[[int], Gain | None]) -> int:
        """The bucket that trial `number` is proposed for.

        Args:
            number: the trial.
            gain: what a bucket's study expects.
        """
        waited = {bucket: number - self._asked[bucket] for bucket in self._buckets}
        longest = max(self._buckets, key=lambda bucket: waited[bucket])
        weights = {bucket: sqrt(self._expected(bucket, gain(bucket))) for bucket in self._buckets}
        if waited[longest] > PATIENCE * len(self._buckets) or not any(weights.values()):
            return longest
        return max(self._buckets, key=lambda bucket: weights[bucket] * waited[bucket])

    def _expected(self, bucket: int, gain: Gain | None) -> float:
        steps = self._steps[bucket]
        return gain.expected if gain else sum(steps) / max(1, len(steps))
