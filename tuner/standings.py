"""The leads of a search: each bucket's settings by the mean of what their trials have measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nsmallest

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.session import Best

CONTENDERS = 3
"""Settings of a bucket that are worth another instance, at most."""

MOST_INSTANCES = 3
"""Trials of one setting, at most."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a setting has come to in a bucket: the geometric mean of its ratios, their number, and the latest trial."""

    ratio: float = 1.0
    count: int = 0
    trial: int = 0

    def after(self, ratio: float, trial: int = 0) -> Standing:
        """The standing with one more trial."""
        if not self.count:
            return Standing(ratio, 1, trial)
        count = self.count + 1
        return Standing(self.ratio * (ratio / self.ratio) ** (1 / count), count, trial)


class Standings:
    """What each setting has come to in each bucket.

    Args:
        best: the lead of each bucket, kept up to date here.
    """

    def __init__(self, best: dict[int, Best]) -> None:
        self._best = best
        self._known: dict[int, dict[Setting, Standing]] = {}

    def would_lead(self, setting: Setting, ratios: Mapping[int, float]) -> list[int]:
        """The buckets in which `setting`, with these ratios added, is a new or a better lead."""
        kept = []
        for bucket, ratio in ratios.items():
            standing = self._known.get(bucket, {}).get(setting, Standing()).after(ratio)
            if bucket not in self._best or standing.ratio < self._best[bucket].ratio:
                kept.append(bucket)
        return kept

    def add(self, setting: Setting, ratios: Mapping[int, float], trial: int) -> None:
        """Take a trial in."""
        for bucket, ratio in ratios.items():
            known = self._known.setdefault(bucket, {})
            known[setting] = known.get(setting, Standing()).after(ratio, trial)
            lead = self._best.get(bucket)
            if lead is None or known[setting].ratio < lead.ratio:
                self._lead(bucket, setting)
            elif lead.setting == setting:  # measured again and found slower: any other may lead now
                self._lead(bucket, self._first(bucket)[0])

    def contends(self, bucket: int, setting: Setting, floor: float) -> bool:
        """Whether another instance of `setting` can change who leads `bucket`.

        It is among the first `CONTENDERS`, within twice the noise of the lead, and was measured less than
        `MOST_INSTANCES` times.
        """
        standing = self._known.get(bucket, {}).get(setting)
        if standing is None or standing.count >= MOST_INSTANCES:
            return False
        if math.log(standing.ratio / self._best[bucket].ratio) > 2 * floor:
            return False
        return setting in self._first(bucket)

    def _lead(self, bucket: int, setting: Setting) -> None:
        standing = self._known[bucket][setting]
        self._best[bucket] = Best(setting, standing.ratio, standing.trial)

    def _first(self, bucket: int) -> list[Setting]:
        """The first few settings of a bucket, the fastest first."""
        known = self._known[bucket]
        return nsmallest(CONTENDERS, known, key=lambda setting: (known[setting].ratio, setting))
