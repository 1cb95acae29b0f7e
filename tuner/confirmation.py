"""The confirmation of a bucket: its candidates tested one after the other, group by group in fresh processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner import promotion
from mjolnir.tuner.bench import Status
from mjolnir.tuner.instances import Instances
from mjolnir.tuner.journal import Record
from mjolnir.tuner.promotion import Arms, Body, Decision
from mjolnir.tuner.proof import Court
from mjolnir.tuner.session import Session
from mjolnir.tuner.shootout import SPARE, Shot
from mjolnir.tuner.trial import UNTOLD


class Confirmation:
    """Tests the candidates of a bucket until one is proven, or none is left.

    Attributes:
        records: the confirmations so far, of all candidates.

    Args:
        session: the campaign.
        instances: takes instances.
        court: decides.
        shot: the shoot-out.
        baselines: the built-in default, and the row in force if there is one.
    """

    def __init__(
        self,
        session: Session,
        instances: Instances,
        court: Court,
        shot: Shot,
        baselines: tuple[Setting, Setting | None],
    ) -> None:
        self._session = session
        self._instances = instances
        self._court = court
        self._shot = shot
        self._waiting = [Arms.of([setting], *baselines) for setting in shot.queue]
        self._arms: Arms | None = None
        self._good: list[Body] = []
        self._lost = 0
        self._decisions: list[Decision] = []
        self.records: list[Record] = []
        self._next()

    @property
    def open(self) -> bool:
        """Whether a candidate is being tested."""
        return self._arms is not None

    @property
    def decision(self) -> Decision:
        """What the bucket comes to: a candidate that is proven, else the first that was tested."""
        proven = [decision for decision in self._decisions if decision.decision == promotion.PROMOTE]
        return [*proven, *self._decisions, self._shot.decision][0]

    def correctness(self) -> Sequence[Body]:
        """Bodies of the measured instances that the decision rests on."""
        setting = self.decision.setting.as_dict()
        bodies = [record["body"] for record in self.records]
        return [body for body in bodies if body["status"] == Status.MEASURED and body["arms"][0] == setting]

    def group(self) -> None:
        """Take a group of instances of the candidate in the process at hand, then look at the evidence.

        Raises:
            Halt: stopped, or the infrastructure failed too often.
        """
        arms, wanted, failure = self._arms, len(self._good) + self._session.options.group, ""
        assert arms is not None
        while len(self._good) < wanted and not failure:
            body = self._take(arms)["body"]
            if body["status"] == Status.MEASURED:
                self._good.append(body)
            elif body["status"] not in UNTOLD:
                failure = f"instance {len(self.records)} {body['status']}: {body['reason']}"
            else:
                self._lost += 1
                failure = f"{self._lost} instances were lost; the last: {body['reason']}" * (self._lost > SPARE)
        self._settle(failure)

    def _next(self) -> None:
        """Go on to the candidate that waits, if one does and could be proven at all."""
        self._arms = self._waiting.pop(0) if self._waiting else None
        self._good, self._lost = [], 0
        if self._arms is not None:
            self._settle()

    def _settle(self, failure: str = "") -> None:
        """Look at the evidence; a candidate that is decided makes way for the next, unless it is proven."""
        assert self._arms is not None
        decision = self._court.judge(self._good, self._arms)
        if failure:
            decision = replace(decision, decision=promotion.NOT_PROVEN, reason=failure)
        if decision.decision == promotion.OPEN:
            return
        self._decisions.append(decision)
        if decision.decision == promotion.PROMOTE:
            self._waiting.clear()
        self._next()

    def _take(self, arms: Arms) -> Record:
        options, number = self._session.options, len(self.records) + 1
        done = len({body["process"] for body in self._good} | {self._instances.process})
        record = self._instances.take(
            "confirmation",
            (self._court.bucket, number),
            arms,
            options.rounds,
            lambda body: self._values(body, arms),
            (done, self._court.rules.most),
            attempt=self._court.attempt,
        )
        self.records.append(record)
        return record

    def _values(self, body: Body, arms: Arms) -> dict[str, Any]:
        """The weighted value against each baseline."""
        weights, count = self._session.weights, len(self._court.floor)
        tables = {name: promotion.values_of(body, 0, place, count) for name, place in arms.baselines(0).items()}
        return {"values": {name: weights.of_bucket(self._court.bucket, row) for name, row in tables.items()}}
