"""From evidence to a decision: who leads a shoot-out, and whether a confirmation proves a setting faster.

Pure functions of records, so that a certificate can be derived again from what it cites. The proof asked for is
simple: the candidate has to beat every baseline (the built-in default, and the row in force) by the margin in every
instance. If the true median of an instance's value were not beyond the margin, n of n in favour would happen with a
probability of at most 2^-n (the sign test); over the buckets of a campaign these add up, and the sum has to stay within
alpha. That bound takes instances as independent; those of one process share its bias, which is why they are spread over
several, and why every single one has to beat the margin. No point may be slower than a baseline by more than its noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.bench import Bench, Status
from mjolnir.tuner.options import Options
from mjolnir.tuner.statistics import Array, Weights, all_in_favour, instance_values, median_interval
from mjolnir.tuner.workload import Workload

METHOD = "every instance beyond the margin (sign test)"
PROMOTE, NOT_PROVEN, DEFAULT_IS_BEST = "promote", "not-proven", "default-is-best"

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Arms:
    """The settings of an instance, by their place in it.

    Attributes:
        settings: resolved, each once; candidates first.
        default: place of the built-in default.
        incumbent: place of the row in force; None without one.
    """

    settings: tuple[Setting, ...]
    default: int
    incumbent: int | None

    @classmethod
    def of(cls, candidates: Sequence[Setting], default: Setting, incumbent: Setting | None) -> Arms:
        """Candidates, then the baselines that are not among them."""
        settings = list(dict.fromkeys([*candidates, default, *([incumbent] if incumbent else [])]))
        return cls(tuple(settings), settings.index(default), settings.index(incumbent) if incumbent else None)

    def baselines(self, place: int) -> dict[str, int]:
        """Places of the baselines that the setting at `place` has to beat, by name; never itself, each once."""
        named = {"default": self.default, "incumbent": self.incumbent}
        found: dict[str, int] = {}
        for name, other in named.items():
            if other is not None and other != place and other not in found.values():
                found[name] = other
        return found


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of a bucket.

    Attributes:
        decision: `promote`, `not-proven` or `default-is-best`.
        reason: one sentence.
        setting: the setting it is about.
        values: by baseline, the weighted instance values (logarithms of time over the baseline's).
        worst: name of the slowest point against any baseline, and its ratio; None without instances.
    """

    decision: str
    reason: str
    setting: Setting
    values: Mapping[str, tuple[float, ...]]
    worst: tuple[str, float] | None = None

    def ratio(self, baseline: str) -> dict[str, Any] | None:
        """Time over that of a baseline, with the interval of its median; None when they were not compared."""
        values = self.values.get(baseline)
        if not values:
            return None
        interval = median_interval([math.exp(value) for value in values])
        return interval.as_dict(math.exp(float(np.median(values))))


def table_key(bench: Bench, bucket: int) -> dict[str, Any]:
    """The key of the defaults table's row for a bucket of this bench."""
    geometry, device, placement = bench.geometry, bench.device, bench.placement
    card = {"arch": device.arch, "device": device.name, "sm_count": device.sm_count, "mig": device.mig}
    shape = {name: value for name, value in geometry.as_dict().items() if name != "dtype"}
    return {**card, **shape, **asdict(placement), "batch": bucket}


def resources(setting: Setting) -> tuple[int, ...]:
    """What a setting takes, for ties: ring bytes, prefetch, splits (0 fills the grid), dependent launch, CTAs."""
    splits = setting.max_splits or 1 << 10
    return (setting.ctas_per_sm * setting.kv_stages, setting.l2_prefetch, splits, setting.pdl, setting.ctas_per_sm)


def rank(arms: Arms, values: Sequence[float], tie: float) -> tuple[list[int], int, str]:
    """Order the arms of a shoot-out, and choose one.

    Args:
        arms: the settings.
        values: by arm, the weighted log of its time over the default's.
        tie: how far from the fastest still counts as equal.

    Returns:
        Places by time, the place chosen, and why.
    """
    order = sorted(range(len(values)), key=lambda place: (values[place], place))
    tied = [place for place in order if values[place] <= values[order[0]] + tie]
    if arms.incumbent in tied:
        return order, arms.incumbent, "the row in force is as fast as the fastest, within the noise"
    if arms.default in tied:
        return order, arms.default, "the default is as fast as the fastest, within the noise"
    chosen = min(tied, key=lambda place: (resources(arms.settings[place]), order.index(place)))
    why = "the fastest" if len(tied) == 1 else f"takes the fewest resources of {len(tied)} that tie for the fastest"
    return order, chosen, why


def values_of(body: Body, candidate: int, baseline: int, points: int) -> Array:
    """The instance values of a recorded instance, over all points of the workload; 0 where it did not look."""
    values = np.zeros(points)
    values[list(body["points"])] = instance_values(body["samples"], candidate, baseline)
    return values


def in_favour(value: float, options: Options) -> bool:
    """Whether a weighted instance value is beyond the margin."""
    return value < -math.log1p(options.margin)


def judge(
    bodies: Sequence[Body], arms: Arms, bucket: int, workload: Workload, floor: Array, options: Options
) -> Decision:
    """Decide over the measured confirmation records of a bucket; the candidate is arm 0.

    Args:
        bodies: bodies of the measured instances, in order.
        arms: the settings of each instance.
        bucket: which.
        workload: the points.
        floor: noise floor of each point of the workload.
        options: margin, alpha and number of instances.
    """
    weights, setting = Weights(workload), arms.settings[0]
    values: dict[str, tuple[float, ...]] = {}
    slowest: list[tuple[float, int]] = []
    too_slow: list[str] = []
    if not bodies:
        return Decision(NOT_PROVEN, "no instance could be measured", setting, values)
    for name, place in arms.baselines(0).items():
        table = np.array([values_of(body, 0, place, len(floor)) for body in bodies])
        values[name] = tuple(weights.of_bucket(bucket, row) for row in table)
        medians = np.median(table, axis=0)
        for point in workload.of_bucket(bucket):
            slowest.append((float(medians[point]), point))
            if medians[point] > floor[point]:
                too_slow.append(
                    f"{workload.points[point].name} is {math.expm1(medians[point]):.1%} slower than the {name}, "
                    f"its noise is {floor[point]:.1%}"
                )
    log_ratio, point = max(slowest)
    worst = (workload.points[point].name, math.exp(log_ratio))
    reason = _objection(values, too_slow, workload, options)
    if reason:
        return Decision(NOT_PROVEN, reason, setting, values, worst)
    gains = " and ".join(
        f"{math.expm1(-float(np.median(row))):.1%} faster than the {name}" for name, row in values.items()
    )
    text = f"{gains}; beyond the margin of {options.margin:.1%} in {len(bodies)} of {len(bodies)} instances"
    return Decision(PROMOTE, text, setting, values, worst)


def _objection(
    values: Mapping[str, Sequence[float]], too_slow: Sequence[str], workload: Workload, options: Options
) -> str:
    """What speaks against a promotion; empty when nothing does."""
    for name, row in values.items():
        for number, value in enumerate(row, 1):
            if not in_favour(value, options):
                faster = math.expm1(-value)
                said = f"{faster:.2%} faster" if faster > 0 else f"{-faster:.2%} slower"
                return f"instance {number}: {said} than the {name}, the margin is {options.margin:.2%}"
    count = min(len(row) for row in values.values())
    if count < options.instances:
        return f"only {count} of {options.instances} instances could be measured"
    if all_in_favour(count) * len(workload.buckets) > options.alpha:
        return f"{count} instances cannot prove anything at alpha {options.alpha} over {len(workload.buckets)} buckets"
    return too_slow[0] if too_slow else ""


def certificate(
    decision: Decision, bench: Bench, floor: Array, options: Options, confirmations: Sequence[Body]
) -> dict[str, Any]:
    """The evidence that a row carries, but for tag, records and attempt; see the design's defaults table.

    Args:
        decision: what was decided.
        bench: where; its environment gives hash, policy and versions.
        floor: noise floor of each point.
        options: the rules.
        confirmations: bodies of the bucket's confirmation records.
    """
    measured = [body for body in confirmations if body["status"] == Status.MEASURED]
    environment = bench.environment
    names = [point.name for point in bench.workload.points]
    worst = decision.worst
    return {
        "method": METHOD,
        "ratio_default": decision.ratio("default"),
        "ratio_incumbent": decision.ratio("incumbent"),
        "instances": len(measured),
        "processes": len({body["process"] for body in measured}),
        "margin": options.margin,
        "noise_floor": dict(zip(names, floor.tolist(), strict=True)),
        "alpha": all_in_favour(len(measured)) if measured else None,
        "worst_point": None if worst is None else {"point": worst[0], "ratio": worst[1]},
        "correctness": [dict(body["correctness"]) for body in measured],
        "kernel_hash": environment.get("kernel_hash"),
        "policy": environment.get("policy"),
        "versions": environment.get("versions"),
    }
