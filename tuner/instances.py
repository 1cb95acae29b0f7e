"""Instances of the finals: asked of the bench, valued, and recorded whatever comes of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from mjolnir.tuner.bench import InstanceRequest, Status
from mjolnir.tuner.journal import Record
from mjolnir.tuner.promotion import Arms, Body
from mjolnir.tuner.session import RECORD_SECONDS, Session

Valuation = Callable[[Body], dict[str, Any]]
"""The members of a measured body that follow from its samples; ValueError or IndexError where they make no values."""


class Instances:
    """Numbers processes and instances, none of them twice in a tag, and takes what it is asked for.

    Attributes:
        process: the process at hand; 0 before the first.

    Args:
        session: the campaign.
        after: trials before these finals.
        settled: buckets whose records of these finals are not read again.
    """

    def __init__(self, session: Session, after: int, settled: Collection[int] = ()) -> None:
        self._session = session
        self._after = after
        tape = session.tape
        earlier = [
            record["body"]
            for record in tape.recorded
            if record["kind"] in ("shootout", "confirmation")
            and (
                (record["body"].get("epoch", ""), record["body"]["after"]) != (tape.epoch, after)
                or record["body"]["bucket"] in settled
            )
        ]
        self.process, self._number = (
            max((body[name] for body in earlier), default=0) for name in ("process", "instance")
        )

    def fresh_process(self) -> None:
        """Take what follows in a process of its own."""
        self.process += 1

    def take(
        self,
        kind: str,
        key: tuple[int, int],
        arms: Arms,
        rounds: int,
        value: Valuation,
        progress: tuple[int, int],
        **facts: Any,
    ) -> Record:
        """One instance in the process at hand.

        Args:
            kind: "shootout" or "confirmation".
            key: bucket, and number in it.
            arms: the settings.
            rounds: rounds at each point.
            value: what is added to the body when it was measured.
            progress: steps done and steps in all, for the observer.
            facts: what else the body says.

        Raises:
            Halt: stopped, or the infrastructure failed too often.
        """
        bucket, number = key
        points = self._session.bench.workload.of_bucket(bucket)
        request = InstanceRequest(self.process, self._number + 1, points, arms.settings, rounds)
        record = self._session.step(
            kind, (self._after, bucket, number), lambda: {**self._body(request, arms, value), **facts}, *progress
        )
        body: Mapping[str, Any] = record["body"]
        self.process, self._number = max(self.process, body["process"]), max(self._number, body["instance"])
        return record

    def _body(self, request: InstanceRequest, arms: Arms, value: Valuation) -> dict[str, Any]:
        """The body of its record, but for what the tape adds."""
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
            return {**body, **value(body)}
        except (ValueError, IndexError) as error:
            return {**body, "samples": [], "status": str(Status.NAN), "reason": str(error)}
