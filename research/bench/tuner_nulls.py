"""How often a campaign promotes anything where nothing may be promoted.

Campaigns of as many buckets as the recording has, with three points each, and two candidates in every bucket, all of
them tested, whatever a shoot-out would have spared. The nulls: no gain at all; a gain of exactly the margin; a gain of
5 % but for one point that is slower by exactly its noise floor, as that campaign measured it. Noise within an instance
is the recording's, rounds and points together, its sign drawn anew, so that the median is exactly what was planted.
Each process is biased by 0.5 %, one way or the other, in all its instances and points. `Claims`, `rule` and `rules_of`
decide, as they do in a live campaign.

Two other tests see the same numbers at the same level: a t-test that takes each pair of rounds as independent, on as
many instances as the earliest promotion rests on; and the e-process with instances as units in place of processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import t as student

from mjolnir.tuner import alpha, eprocess
from mjolnir.tuner.bench import InstanceRequest, Status
from mjolnir.tuner.claims import Claims
from mjolnir.tuner.eprocess import Booleans
from mjolnir.tuner.options import Options
from mjolnir.tuner.recording import Recording
from mjolnir.tuner.replay import ReplayBench
from mjolnir.tuner.statistics import Array, noise_floor
from mjolnir.tuner.workload import Workload, uniform

BIAS = 0.005
"""The persistent bias of a process, a fraction."""

POOL = 1500
"""Recorded instances that noise is drawn from."""

BUCKET = Workload("a bucket", (uniform(1, 4096), uniform(1, 16384), uniform(1, 65536)))
"""The points of each bucket."""

Null = Callable[[Array, float], Array]
"""From floors, shape (campaigns, points), and the margin to the true log ratios, of the same shape."""


def _no_gain(floor: Array, margin: float) -> Array:
    return np.zeros_like(floor)


def _at_the_margin(floor: Array, margin: float) -> Array:
    return np.full_like(floor, -math.log1p(margin))


def _one_point_slower(floor: Array, margin: float) -> Array:
    truth = np.full_like(floor, -math.log(1.05))
    truth[:, 0] = floor[:, 0]
    return truth


NULLS: Mapping[str, Null] = {"no gain": _no_gain, "margin": _at_the_margin, "one point slower": _one_point_slower}


class Nulls:
    """Campaigns under a null.

    Args:
        source: the recording that noise comes from.
        options: of the campaigns.
        bias: persistent bias of a process, a fraction.
        seed: of the draws.
    """

    def __init__(self, source: Recording, options: Options, bias: float = BIAS, seed: int = 0) -> None:
        self._options = options
        self._bias = bias
        self._seed = seed
        self._buckets = len(source.workload.buckets)
        self._pool = _pool(source, options.rounds)
        self._rules = alpha.rules_of(options, self._buckets, 1)

    def promoted(self, name: str, campaigns: int) -> dict[str, float]:
        """The share of campaigns that promote anything under one of `NULLS`, by test."""
        rng = np.random.default_rng((self._seed, list(NULLS).index(name)))
        found = {test: np.zeros(campaigns, dtype=bool) for test in ("e_process", "instances_as_units", "pairs")}
        for bucket in range(self._buckets):
            points = self._points(bucket)
            floor = noise_floor(self._draw(points, (self._options.noise, campaigns), 1, rng).values[..., 0, :])
            truth = NULLS[name](floor, self._options.margin)
            claims = Claims(BUCKET, BUCKET.buckets[0], floor, self._options.margin)
            for _ in range(alpha.TESTED):
                drawn = self._draw(points, (campaigns, self._rules.most), self._options.group, rng)
                values = drawn.values + truth[:, None, None, :]
                pairs = drawn.pairs + truth[:, None, None, None, :]
                found["e_process"] |= self._by_units(values, claims, self._options.group)
                found["instances_as_units"] |= self._by_units(values, claims, 1)
                found["pairs"] |= self._by_pairs(pairs, claims)
        return {test: float(promoted.mean()) for test, promoted in found.items()}

    def _points(self, bucket: int) -> list[int]:
        """The recorded points whose noise the points of a bucket have."""
        return [(bucket * len(BUCKET.points) + i) % self._pool.shape[-1] for i in range(len(BUCKET.points))]

    def _draw(self, points: list[int], processes: tuple[int, int], group: int, rng: np.random.Generator) -> Draw:
        """Noise of `group` instances in each process."""
        shape = (*processes, group)
        pairs = self._pool[rng.integers(len(self._pool), size=shape)][..., points]
        pairs *= rng.choice((-1.0, 1.0), size=(*shape, 1, 1))
        pairs += self._bias * rng.choice((-1.0, 1.0), size=(*processes, 1, 1, 1))
        return Draw(pairs, np.asarray(np.median(pairs, axis=-2)))

    def _by_units(self, values: Array, claims: Claims, group: int) -> Booleans:
        """Which campaigns the e-process promotes in, with `group` instances to a unit."""
        instances = values.reshape(len(values), -1, values.shape[-1])
        count = instances.shape[1]
        units = claims.units(instances, [number // group for number in range(count)])
        state, _ = eprocess.rule(claims.in_favour(units), replace(self._rules, most=count // group))
        return np.asarray(state == eprocess.PROVEN)

    def _by_pairs(self, pairs: Array, claims: Claims) -> Booleans:
        """Which campaigns a one-sided t-test over pairs promotes in, for every claim at the level of the e-process."""
        processes = int(np.argmax(self._rules.needed() <= np.arange(self._rules.most + 1)))
        values = claims.values(pairs[:, :processes]).reshape(len(pairs), -1, claims.limits.shape[-1])
        count = values.shape[1]
        t = (values.mean(axis=1) - claims.limits) * math.sqrt(count) / values.std(axis=1, ddof=1)
        return np.asarray((t < student.ppf(1 / self._rules.threshold, count - 1)).all(axis=-1))


@dataclass(frozen=True, slots=True)
class Draw:
    """Noise of instances.

    Attributes:
        pairs: log ratios of rounds, shape (..., instances, rounds, points).
        values: their medians over rounds, shape (..., instances, points).
    """

    pairs: Array
    values: Array


def _pool(source: Recording, rounds: int) -> Array:
    """Log ratios of replayed pairs about their median, shape (instances, rounds, points): no truth, no bias."""
    bench, points = ReplayBench(source), tuple(range(len(source.workload.points)))
    measured = (s for place, s in enumerate(source.settings) if source.status(place) is Status.MEASURED)
    arms = (next(setting for setting in measured if setting != source.default), source.default)
    samples = [bench.instance(InstanceRequest(1, number, points, arms, rounds)).samples for number in range(POOL)]
    logs = np.log(np.array(samples, dtype=np.float64))
    pairs = np.moveaxis(logs[:, :, 0] - logs[:, :, 1], 1, 2)
    return np.asarray(pairs - np.median(pairs, axis=(0, 1)))
