"""Instances of the finals: announced to the bench, taken, valued, and recorded whatever comes of them.

They go in waves of as many fresh processes as devices measure side by side. What a wave takes is announced before the
first of it is waited for, so that all devices are at work; it is recorded in the order in which it was announced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from mjolnir.tuner.bench import InstanceRequest, Status
from mjolnir.tuner.journal import Record
from mjolnir.tuner.promotion import Arms, Body
from mjolnir.tuner.session import RECORD_SECONDS, Session

Valuation = Callable[[Body], dict[str, Any]]
"""The members of a measured body that follow from its samples; ValueError or IndexError where they make no values."""


@dataclass(frozen=True, slots=True)
class Begun:
    """An instance that was announced.

    Attributes:
        kind: "shootout" or "confirmation".
        key: bucket, and number in it.
        place: of its process in the wave.
        arms: the settings.
        request: what the bench is asked for.
    """

    kind: str
    key: tuple[int, int]
    place: int
    arms: Arms
    request: InstanceRequest


class Instances:
    """Numbers processes and instances, none of them twice in a tag, and takes what it is asked for.

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
        self._process, self._number = (
            max((body[name] for body in earlier), default=0) for name in ("process", "instance")
        )
        self._wave: list[int] = []

    def fresh_wave(self) -> int:
        """Take what follows in fresh processes.

        Returns:
            How many there are, side by side.
        """
        width = self._session.bench.width
        self._wave = [self._process + place for place in range(1, width + 1)]
        return width

    def begin(self, kind: str, key: tuple[int, int], place: int, arms: Arms, rounds: int) -> Begun:
        """Announce an instance, unless it is on record.

        Args:
            kind: "shootout" or "confirmation".
            key: bucket, and number in it.
            place: of its process in the wave, from 0.
            arms: the settings.
            rounds: rounds at each point.
        """
        session = self._session
        known = session.tape.body(kind, self._after, *key)
        if known is not None:
            self._wave[place] = known["process"]
        process, number = self._wave[place], self._number + 1 if known is None else known["instance"]
        self._process, self._number = max(self._process, process), max(self._number, number)
        points = session.bench.workload.of_bucket(key[0])
        request = InstanceRequest(process, number, points, arms.settings, rounds)
        if known is None:
            session.bench.begin_instance(request)
        return Begun(kind, key, place, arms, request)

    def take(self, begun: Begun, value: Valuation, progress: tuple[int, int], **facts: Any) -> Record:
        """Take an instance that was announced.

        Args:
            begun: which.
            value: what is added to the body when it was measured.
            progress: steps done and steps in all, for the observer.
            facts: what else the body says.

        Raises:
            Halt: stopped, or the infrastructure failed too often.
        """
        return self._session.step(
            begun.kind,
            (self._after, *begun.key),
            lambda: {**self._body(begun.request, begun.arms, value), **facts},
            *progress,
        )

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
            "phases": dict(instance.phases),
        }
        if instance.status is not Status.MEASURED:
            return body
        try:
            return {**body, **value(body)}
        except (ValueError, IndexError) as error:
            return {**body, "samples": [], "status": str(Status.NAN), "reason": str(error)}
