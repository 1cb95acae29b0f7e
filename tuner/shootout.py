"""The shoot-out of a bucket: the leads of the search against one another and the baselines, in a fresh process.

It chooses whom to test, and its instance is no evidence: the best of several flatters itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner import promotion
from mjolnir.tuner.alpha import TESTED
from mjolnir.tuner.bench import Status
from mjolnir.tuner.choice import Choice
from mjolnir.tuner.instances import Begun, Instances
from mjolnir.tuner.journal import Record
from mjolnir.tuner.promotion import Arms, Body, Decision
from mjolnir.tuner.session import Session
from mjolnir.tuner.statistics import Array
from mjolnir.tuner.trial import UNTOLD

SPARE = 12
"""Instances that may be lost to dirty windows or infrastructure before a bucket is given up."""


@dataclass(frozen=True, slots=True)
class Lead:
    """A measured setting of the search.

    Attributes:
        setting: resolved.
        points: time over the default's at each point of the workload.
        line: hash of its trial's record.
    """

    setting: Setting
    points: Sequence[float]
    line: str


@dataclass(frozen=True, slots=True)
class Shot:
    """What a shoot-out came to.

    Attributes:
        queue: the settings to test, the most promising first; empty when there is nothing to test.
        decision: what the bucket comes to when nothing is tested.
        records: the records made on the way.
        prices: what each setting costs against the best for each length, as the measured shoot-out saw it.
    """

    queue: tuple[Setting, ...]
    decision: Decision
    records: tuple[Record, ...]
    prices: Mapping[Setting, Mapping[str, Any]] = field(default_factory=dict)


class Shootout:
    """The shoot-out of one bucket; should an arm of it fail, each of the best is tried by itself.

    Attributes:
        shot: what it came to; None while it is open.

    Args:
        session: the campaign.
        instances: takes instances.
        means: of the search's trials, by setting: logarithms of its ratio at each point (see `means_of`).
        floor: noise floor of each point.
        bucket: which.
        incumbent: the row in force, if there is one.
    """

    def __init__(
        self,
        session: Session,
        instances: Instances,
        means: Mapping[Setting, Array],
        floor: Array,
        bucket: int,
        incumbent: Setting | None,
    ) -> None:
        self._session = session
        self._instances = instances
        self._logs = means
        self._floor = floor
        self._bucket = bucket
        self._incumbent = incumbent
        self._default = session.space.default
        best, fastest = self._candidates(bucket, incumbent)
        self._fields = [[*best, *fastest], *([lead] for lead in best if len(best) + len(fastest) > 1)]
        self._records: list[Record] = []
        self._begun: Begun | None = None
        self.shot: Shot | None = None
        if len(Arms.of(self._fields[0], self._default, incumbent).settings) == 1:
            self.shot = Shot((), self._alone(), ())

    def _alone(self) -> Decision:
        """What the bucket comes to with nothing beside the default, which is the best where anything else was tried."""
        default, space = self._default, self._session.space
        trials = self._session.tape.of_epoch("trial")
        tried = any(record["body"]["resolved"] != default.as_dict() for record in trials)
        if tried or (space.size == 1 and space.coordinates(default) is not None):
            return Decision(promotion.DEFAULT_IS_BEST, "no other setting could be measured", default)
        return Decision(promotion.UNTRIED, "the search ended before it tried any other setting", default)

    def begin(self, place: int) -> None:
        """Announce the field that is next, in a process of the wave."""
        arms, rounds = Arms.of(self._fields[0], self._default, self._incumbent), 2 * self._session.options.rounds
        key = (self._bucket, len(self._records) + 1)
        self._begun = self._instances.begin("shootout", key, place, arms, rounds)

    def take(self) -> None:
        """Time the leads against the baselines.

        Raises:
            Halt: stopped, or the infrastructure failed too often.
        """
        begun, buckets = self._begun, self._session.bench.workload.buckets
        assert begun is not None
        progress = (buckets.index(self._bucket) + 1, len(buckets))
        record = self._instances.take(begun, lambda body: self._ranking(body, self._bucket, begun.arms), progress)
        self._records.append(record)
        body = record["body"]
        if body["status"] == Status.MEASURED:
            self.shot = self._shot(body, self._incumbent, self._records)
            return
        if body["status"] not in UNTOLD:
            self._fields.pop(0)
        if not self._fields or len(self._records) >= SPARE:
            failure = f"shoot-out {body['status']}: {body['reason']}"
            self.shot = Shot((), Decision(promotion.NOT_PROVEN, failure, self._default), tuple(self._records))

    def _candidates(self, bucket: int, incumbent: Setting | None) -> tuple[list[Setting], list[Setting]]:
        """The best few settings of the search in this bucket, then the fastest at single points; no baselines.

        What may not win (see `Session.may_win`) is left out.
        """
        held = {setting for setting in self._logs if self._session.may_win(setting, bucket)}
        settings = sorted(held - {self._default, incumbent})
        if not settings:
            return [], []
        choice, most = self._choice(bucket), self._session.options.candidates
        logs = np.array([self._logs[setting] for setting in settings])
        costs = choice.costs(np.vstack([logs, np.zeros(logs.shape[1])]))
        best = [settings[place] for place in sorted(range(len(settings)), key=lambda place: costs[place])][:most]
        single = [settings[place] for place in choice.fastest(logs)]
        return best, [setting for setting in single if setting not in best][:most]

    def _choice(self, bucket: int) -> Choice:
        return Choice(self._session.bench.workload, bucket, self._session.options.robust)

    def _ranking(self, body: Body, bucket: int, arms: Arms) -> dict[str, Any]:
        """The order of the arms, the one chosen and why, and what each costs against the best for each length."""
        choice, count = self._choice(bucket), len(self._floor)
        logs = np.array([promotion.values_of(body, p, arms.default, count) for p in range(len(arms.settings))])
        costs = choice.costs(logs)
        order, chosen, why = promotion.rank(arms, costs, choice.tie(self._floor))
        values = [self._session.weights.of_bucket(bucket, row) for row in logs]
        prices = [choice.price(logs, place) for place in range(len(logs))]
        return {"values": values, "costs": costs, "ranking": order, "chosen": chosen, "why": why, "prices": prices}

    def _shot(self, body: Body, incumbent: Setting | None, records: Sequence[Record]) -> Shot:
        """Whom to test: the chosen setting, then others, as far as they look provable here; never the row.

        A default that is chosen ends the bucket, unless it is beyond the margin of the row in force.
        """
        arms, chosen = Arms.of_body(body), body["chosen"]
        baselines = (arms.default, arms.incumbent)
        setting, kind, why = arms.settings[chosen], promotion.NOT_PROVEN, body["why"]
        queue: tuple[Setting, ...] = ()
        if chosen == arms.default and incumbent is None:
            kind = promotion.DEFAULT_IS_BEST
        elif setting != incumbent:
            others = [] if chosen == arms.default else [place for place in body["ranking"] if place not in baselines]
            beyond = [place for place in dict.fromkeys([chosen, *others]) if not self._objection(body, arms, place)]
            queue = tuple(arms.settings[place] for place in beyond[:TESTED])
            why = self._objection(body, arms, chosen)
        prices = dict(zip(arms.settings, body.get("prices", ()), strict=False))
        return Shot(queue, Decision(kind, why, setting), tuple(records), prices)

    def _objection(self, body: Body, arms: Arms, place: int) -> str:
        """Why a setting is not worth a test, in words: within a baseline's margin, or slower at a point; else empty."""
        margin, workload = self._session.options.margin, self._session.bench.workload
        for name, other in arms.baselines(place).items():
            logs = promotion.values_of(body, place, other, len(self._floor))
            gain = -self._session.weights.of_bucket(body["bucket"], logs)
            if gain <= math.log1p(margin):
                said = f"{math.expm1(gain):.1%} faster than the {name}" if gain > 0 else f"no faster than the {name}"
                return f"in the shoot-out {said}, the margin is {margin:.1%}"
            point = max(workload.of_bucket(body["bucket"]), key=(logs - self._floor).__getitem__)
            if logs[point] > self._floor[point]:
                said = f"{math.expm1(logs[point]):.1%} slower than the {name} at {workload.points[point].name}"
                return f"in the shoot-out {said}, its noise is {self._floor[point]:.1%}"
        return ""


def means_of(leads: Sequence[Lead]) -> dict[Setting, Array]:
    """Log ratios of each setting by point, the mean over its trials: the least of several would flatter it."""
    trials: dict[Setting, list[Sequence[float]]] = {}
    for lead in leads:
        trials.setdefault(lead.setting, []).append(lead.points)
    return {setting: np.log(np.array(rows)).mean(axis=0) for setting, rows in trials.items()}
