"""The finals of a bucket: a shoot-out of the leads, a confirmation of its winner, and the promotion record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import resolve
from mjolnir.tuner import promotion
from mjolnir.tuner.bench import InstanceRequest, Status
from mjolnir.tuner.journal import Record
from mjolnir.tuner.promotion import Arms, Body, Decision
from mjolnir.tuner.session import RECORD_SECONDS, Session
from mjolnir.tuner.statistics import Array
from mjolnir.tuner.trial import UNTOLD

SPARE = 12
"""Instances that may be lost to dirty windows or infrastructure before a bucket is given up."""


@dataclass(frozen=True, slots=True)
class Lead:
    """A measured setting of the search.

    Attributes:
        setting: resolved.
        ratios: time over the default's, by bucket (as text).
        line: hash of its trial's record.
    """

    setting: Setting
    ratios: Mapping[str, float]
    line: str


@dataclass(frozen=True, slots=True)
class Stage:
    """What a shoot-out or a confirmation came to.

    Attributes:
        decision: what the bucket comes to if it ends here; None when the setting goes on to be confirmed.
        setting: the setting it is about.
        records: the records made on the way.
    """

    decision: Decision | None
    setting: Setting
    records: tuple[Record, ...]


class Finals:
    """Takes the buckets of a campaign one by one.

    Args:
        session: the campaign.
        leads: the measured trials of this epoch.
        floor: noise floor of each point.
        evidence: the records that every certificate rests on: canaries and noise.
    """

    def __init__(self, session: Session, leads: Sequence[Lead], floor: Array, evidence: Sequence[Record]) -> None:
        self._session = session
        self._leads = leads
        self._floor = floor
        self._evidence = evidence
        self._after = session.trials
        self._default = session.space.default
        self._process, self._instance = self._numbers_used()

    def _numbers_used(self) -> tuple[int, int]:
        """The highest process and instance numbers of finals before these; a number is never used twice."""
        tape = self._session.tape
        earlier = [
            record["body"]
            for record in tape.recorded
            if record["kind"] in ("shootout", "confirmation")
            and (record["body"].get("epoch", ""), record["body"]["after"]) != (tape.epoch, self._after)
        ]
        process, instance = (max((body[name] for body in earlier), default=0) for name in ("process", "instance"))
        return process, instance

    def bucket(self, bucket: int) -> Body:
        """Decide one bucket; the body of its promotion record.

        Raises:
            Halt: stopped, or the infrastructure failed too often.
        """
        incumbent = self._incumbent(bucket)
        shot = self._unbeatable(bucket) or self._shootout(bucket, incumbent)
        decision, records = shot.decision, shot.records
        if decision is None:
            confirmed = self._confirm(bucket, Arms.of([shot.setting], self._default, incumbent))
            decision, records = confirmed.decision, (*records, *confirmed.records)
        assert decision is not None
        settled = decision
        places = self._session.bench.workload.buckets
        record = self._session.step(
            "promotion",
            (self._after, bucket),
            lambda: self._promotion(bucket, settled, records),
            done=places.index(bucket) + 1,
            total=len(places),
        )
        body: Body = record["body"]
        return body

    def _unbeatable(self, bucket: int) -> Stage | None:
        """A row in force that a recording lacks: what cannot be compared with it cannot displace it."""
        setting = self._session.options.incumbents.get(bucket)
        if setting is None or not self._session.space.unrecorded(setting):
            return None
        reason = "the recording does not hold the row in force, and nothing displaces it unbeaten"
        return Stage(Decision(promotion.NOT_PROVEN, reason, setting, {}), setting, ())

    def _incumbent(self, bucket: int) -> Setting | None:
        """The row in force, resolved, if this bench can measure it."""
        session = self._session
        setting = session.options.incumbents.get(bucket)
        if setting is None or session.space.unmeasurable(setting):
            return None
        return resolve(setting, session.bench.geometry, session.bench.device)

    def _candidates(self, bucket: int, incumbent: Setting | None) -> list[Setting]:
        """The best few settings of the search in this bucket that hold the pins, baselines left out, each once."""
        ordered = sorted(self._leads, key=lambda lead: (lead.ratios[str(bucket)], lead.setting))
        space, baselines = self._session.space, (self._default, incumbent)
        held = [lead.setting for lead in ordered if space.coordinates(lead.setting) is not None]
        unique = dict.fromkeys(setting for setting in held if setting not in baselines)
        return list(unique)[: self._session.options.candidates]

    def _shootout(self, bucket: int, incumbent: Setting | None) -> Stage:
        """Time the leads against the baselines in one fresh process; should one of them fail, each by itself."""
        leads = self._candidates(bucket, incumbent)
        fields = [leads, *([lead] for lead in leads if len(leads) > 1)]
        records: list[Record] = []
        failure = ""
        while fields and len(records) < SPARE:
            arms = Arms.of(fields[0], self._default, incumbent)
            if len(arms.settings) == 1:
                reason = "no other setting could be measured"
                return Stage(Decision(promotion.DEFAULT_IS_BEST, reason, self._default, {}), self._default, ())
            self._process += 1
            record = self._instance_step("shootout", bucket, len(records) + 1, arms, 2 * self._session.options.rounds)
            records.append(record)
            body = record["body"]
            if body["status"] == Status.MEASURED:
                return self._chosen(arms.settings[body["chosen"]], incumbent, body["why"], records)
            failure = f"shoot-out {body['status']}: {body['reason']}"
            if body["status"] not in UNTOLD:
                fields.pop(0)
        return Stage(Decision(promotion.NOT_PROVEN, failure, self._default, {}), self._default, tuple(records))

    def _chosen(self, setting: Setting, incumbent: Setting | None, why: str, records: Sequence[Record]) -> Stage:
        """A baseline that wins ends the bucket, unless it is a default that may beat the row in force."""
        decision = None
        if setting == incumbent:
            decision = Decision(promotion.NOT_PROVEN, why, setting, {})
        elif setting == self._default and incumbent is None:
            decision = Decision(promotion.DEFAULT_IS_BEST, why, setting, {})
        return Stage(decision, setting, tuple(records))

    def _confirm(self, bucket: int, arms: Arms) -> Stage:
        """Take instances until all are in favour, or one is not: then nothing can be proven any more."""
        session, options = self._session, self._session.options
        records: list[Record] = []
        good: list[Body] = []
        first, failure = self._process + 1, ""
        while len(good) < options.instances and len(records) < options.instances + SPARE and not failure:
            self._process = first + len(good) * options.processes // options.instances
            record = self._instance_step("confirmation", bucket, len(records) + 1, arms, options.rounds)
            records.append(record)
            body = record["body"]
            if body["status"] == Status.MEASURED:
                good.append(body)
                if not all(promotion.in_favour(value, options) for value in body["values"].values()):
                    break
            elif body["status"] not in UNTOLD:
                failure = f"instance {len(records)} {body['status']}: {body['reason']}"
        decision = promotion.judge(good, arms, bucket, session.bench.workload, self._floor, options)
        if failure:
            decision = replace(decision, decision=promotion.NOT_PROVEN, reason=failure)
        return Stage(decision, arms.settings[0], tuple(records))

    def _instance_step(self, kind: str, bucket: int, number: int, arms: Arms, rounds: int) -> Record:
        """One instance of a bucket, recorded whatever comes of it."""
        session = self._session
        self._instance += 1
        points = session.bench.workload.of_bucket(bucket)
        request = InstanceRequest(self._process, self._instance, points, arms.settings, rounds)
        shootout = kind == "shootout"
        places = session.bench.workload.buckets
        done, total = (places.index(bucket) + 1, len(places)) if shootout else (number, session.options.instances)
        return session.step(
            kind, (self._after, bucket, number), lambda: self._take(request, bucket, arms, shootout), done, total
        )

    def _take(self, request: InstanceRequest, bucket: int, arms: Arms, shootout: bool) -> dict[str, Any]:
        """The body of a shoot-out or confirmation record, but for what the tape adds."""
        session = self._session
        instance = session.bench.instance(request)
        session.bench.advance(RECORD_SECONDS)
        body: dict[str, Any] = {
            "process": request.process,
            "instance": request.number,
            "arms": [setting.as_dict() for setting in arms.settings],
            "default": arms.default,
            "incumbent": arms.incumbent,
            "points": list(request.points),
            "samples": [[list(arm) for arm in point] for point in instance.samples],
            "status": str(instance.status),
            "reason": instance.reason,
            "correctness": dict(instance.correctness),
            "window": dict(instance.window),
        }
        if instance.status is not Status.MEASURED:
            return body
        try:
            return {**body, **(self._ranking(body, bucket, arms) if shootout else self._values(body, bucket, arms))}
        except (ValueError, IndexError) as error:
            return {**body, "samples": [], "status": str(Status.NAN), "reason": str(error)}

    def _value(self, body: Body, bucket: int, arm: int, baseline: int) -> float:
        values = promotion.values_of(body, arm, baseline, len(self._floor))
        return self._session.weights.of_bucket(bucket, values)

    def _values(self, body: Body, bucket: int, arms: Arms) -> dict[str, Any]:
        return {"values": {name: self._value(body, bucket, 0, place) for name, place in arms.baselines(0).items()}}

    def _ranking(self, body: Body, bucket: int, arms: Arms) -> dict[str, Any]:
        values = [self._value(body, bucket, place, arms.default) for place in range(len(arms.settings))]
        order, chosen, why = promotion.rank(arms, values, self._session.weights.of_bucket(bucket, self._floor))
        return {"values": values, "ranking": order, "chosen": chosen, "why": why}

    def _promotion(self, bucket: int, decision: Decision, records: Sequence[Record]) -> dict[str, Any]:
        """The body of the promotion record, but for what the tape adds."""
        bench = self._session.bench
        key = promotion.table_key(bench, bucket)
        cited = [lead.line for lead in self._leads if lead.setting == decision.setting]
        lines = [record["hash"] for record in self._evidence] + cited + [record["hash"] for record in records]
        confirmations = [r["body"] for r in records if r["kind"] == "confirmation"]
        attempt = 1 + self._earlier_attempts(key)
        tag = str(self._evidence[0]["tag"])
        paper = promotion.certificate(decision, bench, self._floor, self._session.options, confirmations)
        ratios = {f"ratio_{name}": (decision.ratio(name) or {}).get("value") for name in ("default", "incumbent")}
        return {
            "setting": decision.setting.as_dict(),
            "decision": decision.decision,
            "reason": decision.reason,
            "key": key,
            "value": {"engine": bench.environment.get("engine", "warp"), **decision.setting.as_dict()},
            "certificate": {**paper, "tag": tag, "records": lines, "attempt": attempt},
            **ratios,
        }

    def _earlier_attempts(self, key: Mapping[str, Any]) -> int:
        """Promotion records with instances on the same key and kernel hash, before this run."""
        kernel = self._session.bench.environment.get("kernel_hash")
        bodies = [r["body"] for r in self._session.tape.recorded if r["kind"] == "promotion"]
        return sum(
            body["key"] == key and body["certificate"]["kernel_hash"] == kernel and body["certificate"]["instances"] > 0
            for body in bodies
        )
