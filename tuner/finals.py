"""The finals of a campaign: shoot-outs, confirmations and promotion records.

The buckets are shot out and confirmed side by side: each fresh process takes a group of instances of every bucket that
is still open, since starting one costs more than the instances in it. Where several devices measure side by side, each
has a process of its own at the same time. A bucket is decided, and its promotion recorded, as soon as its evidence is
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from mjolnir.kernel.engine import engine_for
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import resolve
from mjolnir.tuner import alpha, promotion
from mjolnir.tuner.confirmation import Confirmation
from mjolnir.tuner.instances import Instances
from mjolnir.tuner.journal import Record
from mjolnir.tuner.promotion import Body, Decision
from mjolnir.tuner.proof import Court
from mjolnir.tuner.session import Session
from mjolnir.tuner.shootout import Lead, Shootout, Shot, means_of
from mjolnir.tuner.statistics import Array

__all__ = ["Finals", "Lead"]


class Finals:
    """Decides the buckets of a campaign.

    Args:
        session: the campaign.
        leads: the measured trials of this epoch.
        floor: noise floor of each point.
        evidence: the records that every certificate rests on: canaries and noise.
        elsewhere: the promotion records of other tags.
    """

    def __init__(
        self,
        session: Session,
        leads: Sequence[Lead],
        floor: Array,
        evidence: Sequence[Record],
        elsewhere: Sequence[Record],
    ) -> None:
        self._session = session
        self._leads = leads
        self._floor = floor
        self._evidence = evidence
        self._elsewhere = elsewhere
        self._after = session.trials
        self._default = session.space.default
        self._settled = self._settled_otherwise()
        self._instances = Instances(session, self._after, self._settled)

    def run(self) -> Iterator[list[Body]]:
        """Goes on from one wave of fresh processes to the next.

        Yields:
            The bodies of the promotion records that are there since the wave before.

        Raises:
            Halt: stopped, or the infrastructure failed too often.
        """
        yield [self._step(bucket, dict) for bucket in self._settled]
        buckets = [bucket for bucket in self._session.bench.workload.buckets if bucket not in self._settled]
        incumbents = {bucket: self._incumbent(bucket) for bucket in buckets}
        shots = {bucket: shot for bucket in buckets if (shot := self._unbeatable(bucket))}
        means = means_of(self._leads)
        shootouts = {
            bucket: Shootout(self._session, self._instances, means, self._floor, bucket, incumbents[bucket])
            for bucket in buckets
            if bucket not in shots
        }
        while waiting_for := [shootout for shootout in shootouts.values() if shootout.shot is None]:
            width = self._instances.fresh_wave()
            for number, shootout in enumerate(waiting_for):
                shootout.begin(number % width)
            for shootout in waiting_for:
                shootout.take()
            yield []
        shots |= {bucket: shootout.shot for bucket, shootout in shootouts.items() if shootout.shot}
        courts = {bucket: self._court(bucket) for bucket in buckets}
        waiting = {
            bucket: Confirmation(
                self._session, self._instances, courts[bucket], shots[bucket], (self._default, incumbents[bucket])
            )
            for bucket in buckets
        }
        while True:
            decided = [bucket for bucket in waiting if not waiting[bucket].open]
            yield [
                self._step(bucket, partial(self._body, courts[bucket], shots[bucket], waiting.pop(bucket)))
                for bucket in decided
            ]
            if not waiting:
                return
            for place in range(self._instances.fresh_wave()):
                for confirmation in waiting.values():
                    confirmation.begin(place)
            for confirmation in waiting.values():
                confirmation.take()

    def _settled_otherwise(self) -> list[int]:
        """The buckets that these finals have decided by another method, before the campaign was gone on with."""
        tape, buckets = self._session.tape, self._session.bench.workload.buckets
        known = {bucket: tape.body("promotion", self._after, bucket) for bucket in buckets}
        return [bucket for bucket, body in known.items() if body and body["certificate"]["method"] != promotion.METHOD]

    def _unbeatable(self, bucket: int) -> Shot | None:
        """A row in force that a recording lacks: what cannot be compared with it cannot displace it."""
        setting = self._session.options.incumbents.get(bucket)
        if setting is None or not self._session.space.unrecorded(setting):
            return None
        reason = "the recording does not hold the row in force, and nothing displaces it unbeaten"
        return Shot((), Decision(promotion.NOT_PROVEN, reason, setting), ())

    def _incumbent(self, bucket: int) -> Setting | None:
        """The row in force, resolved, if this bench can measure it."""
        session = self._session
        setting = session.options.incumbents.get(bucket)
        if setting is None or session.space.unmeasurable(setting):
            return None
        return resolve(setting, session.bench.geometry, session.bench.device)

    def _court(self, bucket: int) -> Court:
        """Who decides a bucket. Finals that go on are the attempt that they began as."""
        session = self._session
        begun = session.tape.body("confirmation", self._after, bucket, 1) or {}
        attempt = begun.get("attempt") or 1 + self._earlier_attempts(bucket)
        return Court(bucket, session.bench.workload, self._floor, session.options, attempt)

    def _earlier_attempts(self, bucket: int) -> int:
        session, tape = self._session, self._session.tape
        mine = (
            record
            for record in tape.recorded
            if (record["body"].get("epoch", ""), record["body"].get("after")) != (tape.epoch, self._after)
        )
        kernel = session.bench.environment.get("kernel_hash")
        key = promotion.table_key(session.bench, bucket)
        return alpha.attempts(mine, self._elsewhere, bucket, key, kernel)

    def _step(self, bucket: int, take: Callable[[], dict[str, Any]]) -> Body:
        """The promotion record of a bucket."""
        places = self._session.bench.workload.buckets
        place = places.index(bucket) + 1
        record = self._session.step("promotion", (self._after, bucket), take, place, len(places))
        body: Body = record["body"]
        return body

    def _body(self, court: Court, shot: Shot, confirmation: Confirmation) -> dict[str, Any]:
        """The body of the promotion record, but for what the tape adds."""
        bench, decision = self._session.bench, confirmation.decision
        engine = engine_for(bench.geometry, bench.device.arch, warps=decision.setting.consumer_warps).name
        cited = [lead.line for lead in self._leads if lead.setting == decision.setting]
        lines = [record["hash"] for record in (*shot.records, *confirmation.records)]
        paper: Mapping[str, Any] = promotion.certificate(
            decision, court.members(decision), bench, self._floor, confirmation.correctness()
        )
        evidence = [record["hash"] for record in self._evidence]
        ratios = {f"ratio_{name}": (decision.ratio(name) or {}).get("value") for name in ("default", "incumbent")}
        return {
            "setting": decision.setting.as_dict(),
            "decision": decision.decision,
            "reason": decision.reason,
            "price": shot.prices.get(decision.setting),
            "key": promotion.table_key(bench, court.bucket),
            "value": {"engine": engine, **decision.setting.as_dict()},
            "certificate": {**paper, "tag": str(self._evidence[0]["tag"]), "records": [*evidence, *cited, *lines]},
            **ratios,
        }
