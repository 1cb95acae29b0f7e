"""Whether a change of the kernel's sources is proven faster than its base.

The same test as for a setting (`tuner.proof`): a sequential sign test over processes, here pairs of fresh processes.
What is claimed is the whole of the workload: its weighted mean is faster by the margin, and no point is slower beyond
its noise. The k-th experiment on one base gets alpha 6 / (pi^2 k^2), so that a base gives way to anything falsely with
a probability of at most alpha, however long one goes on trying. Pure functions of records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mjolnir.tuner import alpha, eprocess
from mjolnir.tuner.claims import Claims
from mjolnir.tuner.eprocess import Rules
from mjolnir.tuner.options import Options
from mjolnir.tuner.statistics import Array, Weights, instance_values
from mjolnir.tuner.workload import Workload

KEEP, DISCARD, OPEN = "keep", "discard", "open"

HOPELESS_AFTER = 3
"""Processes without one in favour of a claim that end a test: giving up early proves nothing, and costs power alone."""

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the instances come to.

    Attributes:
        decision: `KEEP`, `DISCARD`, or `OPEN` where further processes may decide.
        reason: one sentence.
        ratio: weighted geometric mean of time over the base's, the median over processes; None without instances.
        interval: of that median, JSON form.
        points: the same of each point.
        ratios: the same of each bucket.
        processes: those that were measured.
        evidence, threshold: the least e-value of any claim, and what is asked for.
        worst: the slowest point and its ratio.
    """

    decision: str
    reason: str
    ratio: float | None = None
    interval: Mapping[str, Any] | None = None
    points: tuple[float, ...] = ()
    ratios: Mapping[int, float] | None = None
    processes: int = 0
    evidence: float | None = None
    threshold: float = 0.0
    worst: tuple[str, float] | None = None

    def as_dict(self) -> dict[str, Any]:
        """The members of a record that are about the proof."""
        worst = None if self.worst is None else {"point": self.worst[0], "ratio": self.worst[1]}
        return {
            "decision": self.decision,
            "interval": self.interval,
            "processes": self.processes,
            "evidence": self.evidence,
            "threshold": self.threshold,
            "worst_point": worst,
        }


@dataclass(frozen=True, slots=True)
class SourceCourt:
    """Decides one experiment.

    Attributes:
        workload: the points.
        floor: noise floor of each point, fractions: the base against itself, each in a process of its own.
        options: margin, alpha, and how instances are taken.
        attempt: which experiment on this base it is, from 1.
    """

    workload: Workload
    floor: Array
    options: Options
    attempt: int

    @property
    def rules(self) -> Rules:
        """When the test ends, in processes."""
        options = self.options
        threshold = 1 / alpha.share(options.alpha, self.attempt)
        return Rules(threshold, options.processes, max(1, options.instances // options.group))

    def judge(self, bodies: Sequence[Body]) -> Ruling:
        """Decide over the measured instances, whose first arm is the change.

        Args:
            bodies: bodies of their records, in order.

        Raises:
            ValueError: a time that is not above zero.
        """
        rules = self.rules
        if not rules.attainable:
            limit = f"{rules.most} processes cannot prove anything at alpha {self.options.alpha}"
            return Ruling(DISCARD, f"{limit} in experiment {self.attempt} on this base; start from another base or tag")
        if not bodies:
            return Ruling(OPEN, "no instance could be measured", threshold=rules.threshold)
        claims = Claims(self.workload, None, self.floor, self.options.margin)
        values = np.array([instance_values(body["samples"], 0, 1) for body in bodies])
        units = claims.units(values, [int(body["process"]) for body in bodies])
        return self._ruled(claims, units, rules)

    def _ruled(self, claims: Claims, units: Array, rules: Rules) -> Ruling:
        in_favour = claims.in_favour(units)
        count, favour = len(units), in_favour.sum(axis=0)
        state = int(eprocess.rule(in_favour, rules)[0])
        lost = state == eprocess.HOPELESS or (count >= HOPELESS_AFTER and not favour.all())
        if state == eprocess.PROVEN:
            decision, reason = KEEP, self._gain(units)
        else:
            decision, reason = DISCARD if lost else OPEN, self._objection(claims, favour, count)
        medians = np.median(units[:, 1:], axis=0)
        slowest, weights = int(medians.argmax()), Weights(self.workload)
        mean = [math.exp(value) for value in units[:, 0].tolist()]
        ratio = math.exp(float(np.median(units[:, 0])))
        return Ruling(
            decision,
            reason,
            ratio=ratio,
            interval=eprocess.interval(mean).as_dict(ratio),
            points=tuple(np.exp(medians).tolist()),
            ratios={b: math.exp(weights.of_bucket(b, medians)) for b in self.workload.buckets},
            processes=count,
            evidence=float(np.exp(eprocess.log_evidence(favour, count).min())),
            threshold=rules.threshold,
            worst=(self.workload.points[slowest].name, math.exp(float(medians[slowest]))),
        )

    def _gain(self, units: Array) -> str:
        gain = math.expm1(-float(np.median(units[:, 0])))
        return f"{gain:.1%} faster than the base; beyond the margin of {self.options.margin:.1%}; no point is slower"

    def _objection(self, claims: Claims, favour: Array, count: int) -> str:
        """What the claim with the least evidence lacks."""
        weakest = int(favour.argmin())
        said = f"in {count - int(favour[weakest])} of {count} processes"
        if not weakest:
            return f"{said} not faster than the base by the margin of {self.options.margin:.1%}"
        point = claims.points[weakest - 1]
        name, floor = self.workload.points[point].name, self.floor[point]
        return f"{said} slower than the base at {name} by its noise of {floor:.1%} or more"
