"""What a campaign takes and can prove, told before it begins; a plan that can prove nothing is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isinf
from typing import TYPE_CHECKING, Any

from mjolnir.research.answer import UsageFailure
from mjolnir.tuner import alpha, coordinator
from mjolnir.tuner.promotion import table_key
from mjolnir.tuner.replay import ReplayBench

if TYPE_CHECKING:
    from mjolnir.tuner.bench import Bench
    from mjolnir.tuner.options import Options

Record = Mapping[str, Any]


def plan(bench: Bench, options: Options, elsewhere: Sequence[Record]) -> coordinator.Estimate:
    """What the campaign takes and can prove; a recording knows its noise and its time beforehand.

    Args:
        bench: where it runs.
        options: its rules.
        elsewhere: the promotion records of other tags, which are earlier attempts.
    """
    buckets, number = len(bench.workload.buckets), attempt(bench, elsewhere)
    if not isinstance(bench, ReplayBench):
        return coordinator.estimate(options, buckets, attempt=number, devices=bench.width)
    return coordinator.estimate(
        options,
        buckets,
        deviation=bench.deviation,
        trial_seconds=bench.trial_seconds,
        compile_seconds=bench.compile_seconds,
        noise_seconds=bench.noise_seconds,
        attempt=number,
    )


def minutes(seconds: float) -> str:
    """Whole minutes, in words."""
    return f"about {max(1, round(seconds / 60))} min"


def attempt(bench: Bench, elsewhere: Sequence[Record]) -> int:
    """Which attempt the campaign is, from 1, on the bucket that was tried least."""
    kernel = bench.environment.get("kernel_hash")
    keys = {bucket: table_key(bench, bucket) for bucket in bench.workload.buckets}
    return 1 + min(alpha.attempts((), elsewhere, bucket, key, kernel) for bucket, key in keys.items())


def require_provable(bench: Bench, options: Options, elsewhere: Sequence[Record]) -> None:
    """Refuse a campaign whose instances, were they all in favour, would not be enough to prove anything.

    Raises:
        UsageFailure: says what would do.
    """
    if not isinf(plan(bench, options, elsewhere).smallest_gain):
        return
    buckets, number = len(bench.workload.buckets), attempt(bench, elsewhere)
    rules = alpha.rules_of(options, buckets, number)
    smaller = " a smaller --group," if options.group > 1 else ""
    raise UsageFailure(
        f"this campaign could prove nothing: with --alpha {options.alpha:g} over {buckets} buckets in attempt {number} "
        f"a gain needs {rules.fewest} processes in favour, and --instances {options.instances} with --group "
        f"{options.group} are {rules.most}; give --instances {rules.fewest * options.group} at least,{smaller} or a "
        "larger --alpha"
    )
