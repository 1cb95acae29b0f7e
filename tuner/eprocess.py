"""The sequential sign test: evidence that may be looked at after every unit, and the intervals that go with it.

H0 says that the median of a unit's value is at least some limit, so that a unit is in favour (below it) with a
probability of at most 1/2, whatever came before. Betting on p in favour and averaging p evenly over (1/2, 1) gives

    e(S, n) = 2^(n+1) B(S+1, n-S+1) (1 - I_1/2(S+1, n-S+1))        for S of n units in favour,

a supermartingale under H0 that starts at 1. By Ville's inequality it ever reaches 1/a with a probability of at most a,
so stopping when one likes costs nothing (Ramdas et al., Game-theoretic statistics and safe anytime-valid inference,
2023; Howard and Ramdas, Sequential estimation of quantiles, 2022). No model of the noise is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import bdtr, betaln, ndtri

from mjolnir.tuner.statistics import Array, Interval

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

PROVEN, OPEN, HOPELESS = 1, 0, -1
"""States of a test: done in favour, undecided, and beyond rescue by the units that are left."""


def log_evidence(favour: npt.ArrayLike, count: npt.ArrayLike) -> Array:
    """log e(S, n); the arguments broadcast. 1 - I_1/2(S+1, n-S+1) is the binomial P(X <= S; n+1, 1/2)."""
    s, n = np.asarray(favour, dtype=np.int64), np.asarray(count, dtype=np.int64)
    return np.asarray((n + 1) * math.log(2) + betaln(s + 1, n - s + 1) + np.log(bdtr(s, n + 1, 0.5)))


@dataclass(frozen=True, slots=True)
class Rules:
    """When a test ends.

    Attributes:
        threshold: the evidence asked for, 1 / (error granted).
        least: units before anything is proven.
        most: units at most.
    """

    threshold: float
    least: int
    most: int

    def needed(self) -> Integers:
        """How many of n units have to be in favour, for n = 0 to `most`; more than n where no number will do."""
        return _needed(self.threshold, self.least, self.most)

    @property
    def fewest(self) -> int:
        """Units, all in favour, that would prove something; 2048 of them outgrow whatever a float can ask for."""
        counts = np.arange(2048)
        enough = (counts >= self.least) & (log_evidence(counts, counts) >= math.log(self.threshold))
        return int(enough.argmax()) if enough.any() else len(counts)

    @property
    def attainable(self) -> bool:
        """Whether units that are all in favour would be enough."""
        return bool(self.needed()[-1] <= self.most)


@lru_cache(maxsize=256)
def _needed(threshold: float, least: int, most: int) -> Integers:
    counts = np.arange(most + 1)
    favour = np.arange(most + 1)[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        enough = (favour <= counts) & (log_evidence(np.minimum(favour, counts), counts) >= math.log(threshold))
    enough[:, :least] = False
    needed: Integers = np.where(enough.any(axis=0), enough.argmax(axis=0), counts + 1)
    needed.flags.writeable = False
    return needed


def rule(in_favour: Booleans, rules: Rules) -> tuple[Integers, Integers]:
    """Where tests stand that are all looked at after every unit.

    Several claims are proven together when each has its evidence at the same look, and beyond rescue when one of them
    is: e never falls for a unit in favour, so the best that can come is that all which are left are.

    Args:
        in_favour: whether a unit was in favour of a claim, shape (..., units, claims).
        rules: when they end; units beyond `most` are not looked at.

    Returns:
        State (`PROVEN`, `OPEN`, `HOPELESS`) and the number of units that it took, each of shape (...).
    """
    favour = np.cumsum(in_favour[..., : rules.most, :], axis=-2)
    counts = np.arange(1, favour.shape[-2] + 1)
    needed = rules.needed()
    proven = (favour >= needed[counts, None]).all(axis=-1)
    hopeless = (favour + (rules.most - counts)[:, None] < needed[-1]).any(axis=-1)
    state = np.where(proven, PROVEN, np.where(hopeless, HOPELESS, OPEN))
    ended = state != OPEN
    first = np.where(ended.any(axis=-1), ended.argmax(axis=-1), len(counts) - 1)
    return np.take_along_axis(state, first[..., None], -1)[..., 0], first + 1


def interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """The interval of a median that holds at every look: the limits that the test does not refute, from both sides.

    With r the largest rank for which e(n+1-r, n) >= 2 / (1 - confidence) it is [x_(r), x_(n+1-r)]. With too few values
    it is their whole range; `coverage` says what that is worth.
    """
    ordered, count = sorted(values), len(values)
    ranks = np.arange(1, (count + 1) // 2 + 1)
    logs = log_evidence(count + 1 - ranks, count)
    enough = np.flatnonzero(logs >= math.log(2 / (1 - confidence)) - 1e-12)
    place = int(enough[-1]) if enough.size else 0
    return Interval(ordered[place], ordered[-1 - place], max(0.0, 1 - 2 * math.exp(-float(logs[place]))))


def chance(probability: float, rules: Rules) -> float:
    """How likely one claim is proven whose units are in favour with `probability`, each by itself."""
    needed = rules.needed()
    weights, proven = np.array([1.0]), 0.0
    for count in range(1, rules.most + 1):
        weights = np.append(weights * (1 - probability), 0.0) + np.append(0.0, weights * probability)
        proven += float(weights[needed[count] :].sum())
        weights[needed[count] :] = 0.0
    return proven


def smallest_provable_gain(deviation: float, margin: float, rules: Rules, power: float = 0.8) -> float:
    """The smallest true gain that is proven with the given power; infinite where nothing can be.

    With normal values of standard deviation s around the gain g, a unit is in favour with Phi((g - margin) / s).

    Args:
        deviation: standard deviation of a unit's A/A value, a fraction.
        margin: the margin, a fraction.
        rules: of the test.
        power: the probability asked for.
    """
    if not rules.attainable:
        return math.inf
    share = float(brentq(lambda p: chance(p, rules) - power, 0.01, 1 - 1e-12))
    return margin + deviation * float(ndtri(share))
