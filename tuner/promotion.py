"""What a decision is made of: the settings of an instance, who leads a shoot-out, the decision and its certificate.

Pure functions of records, so that a certificate can be derived again from what it cites; `tuner.proof` decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner import eprocess
from mjolnir.tuner.bench import Bench
from mjolnir.tuner.statistics import Array, instance_values

METHOD = "mixture sign test over processes (e-process)"
PROMOTE, NOT_PROVEN, DEFAULT_IS_BEST = "promote", "not-proven", "default-is-best"
UNTRIED = "not-decided"
"""The search ended before it tried anything but the default."""

OPEN = "open"
"""Not decided yet: further instances may prove it. Never on record."""

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Arms:
    """The settings of an instance, by their place in it.

    Attributes:
        settings: resolved, each once; candidates first.
        default: place of the built-in default.
        incumbent: place of what is in force (a row, or what the built-in rule says); None without it.
    """

    settings: tuple[Setting, ...]
    default: int
    incumbent: int | None

    @classmethod
    def of(cls, candidates: Sequence[Setting], default: Setting, incumbent: Setting | None) -> Arms:
        """Candidates, then the baselines that are not among them."""
        settings = list(dict.fromkeys([*candidates, default, *([incumbent] if incumbent else [])]))
        return cls(tuple(settings), settings.index(default), settings.index(incumbent) if incumbent else None)

    @classmethod
    def of_body(cls, body: Body) -> Arms:
        """The arms of a recorded instance."""
        return cls(tuple(Setting.from_dict(arm) for arm in body["arms"]), body["default"], body["incumbent"])

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
    """What became of a setting.

    Attributes:
        decision: `promote`, `not-proven`, `default-is-best`, `not-decided`; `open` where instances may be taken.
        reason: one sentence.
        setting: the setting it is about.
        values: by baseline, the weighted value of each process (logarithms of time over the baseline's).
        worst: name of the slowest point against any baseline, and its ratio; None without instances.
        instances: those that it rests on.
        evidence: the least e-value of any claim; None without instances.
    """

    decision: str
    reason: str
    setting: Setting
    values: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    worst: tuple[str, float] | None = None
    instances: int = 0
    evidence: float | None = None

    def ratio(self, baseline: str) -> dict[str, Any] | None:
        """Time over that of a baseline, with the interval of its median; None when they were not compared."""
        values = self.values.get(baseline)
        if not values:
            return None
        interval = eprocess.interval([math.exp(value) for value in values])
        return interval.as_dict(math.exp(float(np.median(values))))


def table_key(bench: Bench, bucket: int) -> dict[str, Any]:
    """The key of the defaults table's row for a bucket of this bench."""
    geometry, device, placement = bench.geometry, bench.device, bench.placement
    card = {"arch": device.arch, "device": device.name, "sm_count": device.sm_count, "mig": device.mig}
    shape = {name: value for name, value in geometry.as_dict().items() if name != "dtype"}
    return {**card, **shape, **asdict(placement), "batch": bucket}


def resources(setting: Setting) -> tuple[int, ...]:
    """What a setting takes, for ties: ring, prefetch, split limit, dependent launch, warps, CTAs.

    A limit that gains nothing is a risk, as other lengths may need the splits: none is least, then the largest.
    """
    splits, ctas = -(setting.max_splits or 1 << 10), setting.ctas_per_sm
    ring, warps = ctas * setting.kv_stages, ctas * setting.consumer_warps
    return (ring, setting.l2_prefetch, splits, setting.pdl, warps, ctas)


def rank(arms: Arms, values: Sequence[float], tie: float) -> tuple[list[int], int, str]:
    """Order the arms of a shoot-out, and choose one.

    Args:
        arms: the settings.
        values: by arm, what it costs: its regret over the points, a logarithm.
        tie: how far from the fastest still counts as equal.

    Returns:
        Places by time, the place chosen, and why.
    """
    order = sorted(range(len(values)), key=lambda place: (values[place], place))
    tied = [place for place in order if values[place] <= values[order[0]] + tie]
    if arms.incumbent in tied:
        return order, arms.incumbent, "what is in force is as fast as the fastest, within the noise"
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


def certificate(
    decision: Decision, members: Mapping[str, Any], bench: Bench, floor: Array, confirmations: Sequence[Body]
) -> dict[str, Any]:
    """The evidence that a row carries, but for tag and records; see the design's defaults table.

    Args:
        decision: what was decided.
        members: what follows from the instances: `proof.members`.
        bench: where; its environment gives hash, policy and versions.
        floor: noise floor of each point.
        confirmations: bodies of the instances that the decision rests on.
    """
    environment = bench.environment
    names = [point.name for point in bench.workload.points]
    return {
        "method": METHOD,
        **members,
        "noise_floor": dict(zip(names, floor.tolist(), strict=True)),
        "correctness": [dict(body["correctness"]) for body in confirmations],
        "kernel_hash": environment.get("kernel_hash"),
        "policy": environment.get("policy"),
        "versions": environment.get("versions"),
    }
