"""The confirmation of a bucket: its candidates tested one after the other, group by group in fresh processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner import promotion
from mjolnir.tuner.bench import Status
from mjolnir.tuner.instances import Begun, Instances
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
        self._failure = ""
        self._begun: list[Begun] = []
        self._decisions: list[Decision] = []
        self._number = 0
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

    def begin(self, place: int) -> None:
        """Announce a group of instances of the candidate in a process of the wave."""
        self._begun += [self._announce(place) for _ in range(self._session.options.group)]

    def take(self) -> None:
        """Take what was announced, then look at the evidence; what was lost is taken again in the same process.

        Raises:
            Halt: stopped, or the infrastructure failed too often.
        """
        for begun in self._begun:
            while not self._is_there(begun) and not self._failure:
                begun = self._announce(begun.place)
        self._begun = []
        self._settle(self._failure)

    def _announce(self, place: int) -> Begun:
        assert self._arms is not None
        self._number += 1
        key = (self._court.bucket, self._number)
        return self._instances.begin("confirmation", key, place, self._arms, self._session.options.rounds)

    def _is_there(self, begun: Begun) -> bool:
        """Take an instance; whether it was measured, or says all that there is to say."""
        body = self._take(begun)["body"]
        if body["status"] == Status.MEASURED:
            self._good.append(body)
            return True
        if body["status"] not in UNTOLD:
            number = begun.key[1]
            self._failure = self._failure or f"instance {number} {body['status']}: {body['reason']}"
            return True
        self._lost += 1
        if self._lost > SPARE:
            self._failure = self._failure or f"{self._lost} instances were lost; the last: {body['reason']}"
        return False

    def _next(self) -> None:
        """Go on to the candidate that waits, if one does and could be proven at all."""
        self._arms = self._waiting.pop(0) if self._waiting else None
        self._good, self._lost, self._failure = [], 0, ""
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

    def _take(self, begun: Begun) -> Record:
        arms = begun.arms
        done = len({body["process"] for body in self._good} | {begun.request.process})
        record = self._instances.take(
            begun,
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
