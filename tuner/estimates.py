"""What a campaign takes and can prove, told before it begins."""

from __future__ import annotations

from dataclasses import dataclass

from mjolnir.tuner import alpha
from mjolnir.tuner.eprocess import smallest_provable_gain
from mjolnir.tuner.options import Options

GUESSED_DEVIATION = 0.004
"""Standard deviation of A/A instance values where none was measured yet, a fraction."""

PROCESS_SECONDS = 6.0
"""Seconds until a fresh process on a GPU is ready to time: interpreter, CUDA context, KV pools, references."""

GUESSED_TRIAL_SECONDS = 0.5
"""Seconds of a trial on a GPU where none was timed yet: gate and eight points."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a campaign takes and can prove, told before it begins.

    Attributes:
        trials: most trials.
        instances: instances of all confirmations, at most: every candidate of every bucket to its cap.
        seconds: bench seconds, at most: the search's budget and the finals.
        smallest_gain: the smallest true gain that is proven four times in five, a fraction.
    """

    trials: int
    instances: int
    seconds: float
    smallest_gain: float


def estimate(
    options: Options,
    buckets: int,
    *,
    deviation: float | None = None,
    trial_seconds: float | None = None,
    attempt: int = 1,
    devices: int = 1,
) -> Estimate:
    """Plan a campaign.

    Args:
        options: the rules.
        buckets: number of buckets.
        deviation: standard deviation of A/A instance values, a fraction (a replay knows its own); None: guessed.
        trial_seconds: seconds of one trial (a replay knows them); None: guessed. One instance in every bucket takes
            about as long.
        attempt: which attempt on its keys the campaign is, from 1.
        devices: that measure side by side.
    """
    each = GUESSED_TRIAL_SECONDS if trial_seconds is None else trial_seconds
    spread = GUESSED_DEVIATION if deviation is None else deviation
    rules = alpha.rules_of(options, buckets, attempt)
    processes, instances = 1 + alpha.TESTED * rules.most, alpha.TESTED * options.instances
    finals = processes * PROCESS_SECONDS + (2 + instances + options.noise) * each
    seconds = min(60 * options.minutes, options.trials * each / devices) + finals / devices
    gain = smallest_provable_gain(spread, options.margin, rules)
    return Estimate(options.trials, instances * buckets, seconds, gain)
