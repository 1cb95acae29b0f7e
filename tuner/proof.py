"""Whether instances prove a setting faster.

A setting is promoted when each of its claims (`tuner.claims`) against every baseline, the built-in default and the row
in force, has its evidence (`tuner.eprocess`) at one look, by the error budget of the campaign (`tuner.alpha`). A
promotion that is false is so by one of its claims at least, and the test of that one passes with a probability of at
most the budget, so asking for all of them costs nothing. Pure functions of records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner import alpha, eprocess
from mjolnir.tuner.bench import Status
from mjolnir.tuner.case import Case, Verdict
from mjolnir.tuner.claims import Claims
from mjolnir.tuner.eprocess import Rules
from mjolnir.tuner.options import Options
from mjolnir.tuner.promotion import NOT_PROVEN, OPEN, PROMOTE, Arms, Body, Decision, values_of
from mjolnir.tuner.statistics import Array
from mjolnir.tuner.workload import Workload


@dataclass(frozen=True, slots=True)
class Court:
    """What the decisions of a bucket share.

    Attributes:
        bucket: which.
        workload: the points of the campaign.
        floor: noise floor of each point of the workload, fractions.
        options: margin, alpha, and how instances are taken.
        attempt: which attempt on the bucket's key this is, from 1.
    """

    bucket: int
    workload: Workload
    floor: Array
    options: Options
    attempt: int

    @property
    def rules(self) -> Rules:
        """When a candidate's test ends, in processes."""
        return alpha.rules_of(self.options, len(self.workload.buckets), self.attempt)

    @property
    def claims(self) -> Claims:
        """What is claimed against each baseline."""
        return Claims(self.workload, self.bucket, self.floor, self.options.margin)

    def judge(self, bodies: Sequence[Body], arms: Arms) -> Decision:
        """Decide over the measured confirmation records of a candidate, which is arm 0.

        Args:
            bodies: bodies of the measured instances, in order.
            arms: the settings of each instance.
        """
        setting, rules = arms.settings[0], self.rules
        if not rules.attainable:
            return Decision(NOT_PROVEN, self._unattainable(), setting)
        if not bodies:
            return Decision(OPEN, "no instance could be measured", setting)
        units = self._units(bodies, arms)
        in_favour = np.concatenate([self.claims.in_favour(table) for table in units.values()], axis=1)
        state = int(eprocess.rule(in_favour, rules)[0])
        evidence = eprocess.log_evidence(in_favour.sum(axis=0), len(in_favour)).min()
        return Decision(
            decision={eprocess.PROVEN: PROMOTE, eprocess.OPEN: OPEN}.get(state, NOT_PROVEN),
            reason=self._gains(units) if state == eprocess.PROVEN else self._objection(list(units), in_favour),
            setting=setting,
            values={name: tuple(table[:, 0].tolist()) for name, table in units.items()},
            worst=self._worst(units),
            instances=len(bodies),
            evidence=float(np.exp(evidence)),
        )

    def members(self, decision: Decision) -> dict[str, Any]:
        """The members of a certificate that follow from the instances of a decision."""
        options, worst = self.options, decision.worst
        return {
            "ratio_default": decision.ratio("default"),
            "ratio_incumbent": decision.ratio("incumbent"),
            "instances": decision.instances,
            "processes": max((len(row) for row in decision.values.values()), default=0),
            "margin": options.margin,
            "alpha": alpha.share(options.alpha, self.attempt) / len(self.workload.buckets),
            "attempt": self.attempt,
            "evidence": decision.evidence,
            "threshold": self.rules.threshold,
            "worst_point": None if worst is None else {"point": worst[0], "ratio": worst[1]},
        }

    def _units(self, bodies: Sequence[Body], arms: Arms) -> dict[str, Array]:
        """By baseline, the values of the claims, shape (processes, claims)."""
        processes = [int(body["process"]) for body in bodies]
        count = len(self.workload.points)
        return {
            name: self.claims.units(np.array([values_of(body, 0, place, count) for body in bodies]), processes)
            for name, place in arms.baselines(0).items()
        }

    def _worst(self, units: Mapping[str, Array]) -> tuple[str, float]:
        """The slowest point against any baseline, and its ratio."""
        medians = np.max([np.median(table, axis=0)[1:] for table in units.values()], axis=0)
        place = int(medians.argmax())
        return self.workload.points[self.claims.points[place]].name, math.exp(float(medians[place]))

    def _unattainable(self) -> str:
        options, most = self.options, self.rules.most
        return (
            f"{options.instances} instances in {most} processes cannot prove anything at alpha {options.alpha} "
            f"over {len(self.workload.buckets)} buckets in attempt {self.attempt}"
        )

    def _gains(self, units: Mapping[str, Array]) -> str:
        medians = {name: float(np.median(table[:, 0])) for name, table in units.items()}
        gains = " and ".join(f"{math.expm1(-value):.1%} faster than the {name}" for name, value in medians.items())
        return f"{gains}; proven beyond the margin of {self.options.margin:.1%}, and no point slower beyond its noise"

    def _objection(self, baselines: Sequence[str], in_favour: eprocess.Booleans) -> str:
        """What the claim with the least evidence lacks."""
        claims, count = self.claims, len(in_favour)
        weakest = int(in_favour.sum(axis=0).argmin())
        against = count - int(in_favour[:, weakest].sum())
        name, place = baselines[weakest // claims.limits.size], weakest % claims.limits.size
        said = f"in {against} of {count} processes"
        if not place:
            return f"{said} not faster than the {name} by the margin of {self.options.margin:.1%}"
        point = claims.points[place - 1]
        return (
            f"{said} slower than the {name} at {self.workload.points[point].name} "
            f"by its noise of {self.floor[point]:.1%} or more"
        )


def rejudge(case: Case) -> Verdict:
    """Decide a recorded bucket again; the judge of `METHOD` (see `tuner.judges`).

    Raises:
        ValueError: a time that is not above zero.
    """
    tested: dict[tuple[tuple[str, int], ...], list[Body]] = {}
    for body in case.confirmations:
        tested.setdefault(tuple(body["arms"][0].items()), []).append(body)
    attempt = next((int(body["attempt"]) for body in case.confirmations), 1)
    court = Court(case.bucket, case.workload, case.floor, Options.from_dict(case.options), attempt)
    decisions = [_decided(court, bodies) for bodies in tested.values()] or [
        Decision(NOT_PROVEN, "no instance could be measured", Setting())
    ]
    decision = next((d for d in decisions if d.decision == PROMOTE), decisions[0])
    return Verdict(decision.decision, decision.reason, court.members(decision))


def _decided(court: Court, bodies: Sequence[Body]) -> Decision:
    measured = [body for body in bodies if body["status"] == Status.MEASURED]
    decision = court.judge(measured, Arms.of_body(bodies[0]))
    return replace(decision, decision=NOT_PROVEN) if decision.decision == OPEN else decision
