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
        search_seconds: bench seconds of the search, at most.
        proof_seconds: bench seconds of all else, at most: the noise before the search and the finals after it.
        smallest_gain: the smallest true gain that is proven four times in five, a fraction.
    """

    trials: int
    instances: int
    search_seconds: float
    proof_seconds: float
    smallest_gain: float

    @property
    def seconds(self) -> float:
        """Bench seconds of the whole campaign, at most."""
        return self.search_seconds + self.proof_seconds


def estimate(
    options: Options,
    buckets: int,
    *,
    deviation: float | None = None,
    trial_seconds: float | None = None,
    compile_seconds: float = 0.0,
    noise_seconds: float | None = None,
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
        compile_seconds: that a trial waits for its compile (a replay knows them); a GPU's are hidden by the trials.
        noise_seconds: seconds of one A/A instance; None: as a trial.
        attempt: which attempt on its keys the campaign is, from 1.
        devices: that measure side by side.
    """
    each = GUESSED_TRIAL_SECONDS if trial_seconds is None else trial_seconds
    spread = GUESSED_DEVIATION if deviation is None else deviation
    rules = alpha.rules_of(options, buckets, attempt)
    processes, instances = 1 + alpha.TESTED * rules.most, alpha.TESTED * options.instances
    noise = options.noise * (each if noise_seconds is None else noise_seconds)
    search = min(60 * options.minutes, options.trials * (each + compile_seconds) / devices)
    proof = (noise + processes * PROCESS_SECONDS + (2 + instances) * each) / devices
    gain = smallest_provable_gain(spread, options.margin, rules)
    return Estimate(options.trials, instances * buckets, search, proof, gain)
