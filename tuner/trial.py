"""A trial as its record has it: where it came from, what the bench said, and the ratios that follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.bench import Outcome, Status
from mjolnir.tuner.statistics import Weights, point_ratios

DIGITS = 9
"""Decimals of a ratio on record: noise begins at the third, and what follows from samples is compared to the ninth."""

UNTOLD = (Status.INFRASTRUCTURE, Status.DIRTY)
"""These say nothing of the setting: the proposer is not told, and it may be asked again."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A setting to try, and how it came up.

    Attributes:
        number: the trial that it becomes.
        setting: as it was proposed.
        origin: "default", "incumbent", "enqueued" or "sampler".
        sampler: the proposer's name; "" for other origins.
        replaced: how a duplicate was replaced, "neighbour" or "random"; "again" when it became a further instance of
            its setting; "" when it was none.
        bucket: the bucket that asked, None when all did.
        seconds: what proposing took.
        note: what was wrong with the proposer's answer, which another setting replaces.
    """

    number: int
    setting: Setting
    origin: str
    sampler: str = ""
    replaced: str = ""
    bucket: int | None = None
    seconds: float = 0.0
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The `proposal` of a trial's body."""
        said = {"origin": self.origin, "sampler": self.sampler, "replaced": self.replaced, "number": self.number}
        return {**said, "note": self.note} if self.note else said

    def as_body(self) -> dict[str, Any]:
        """As much of a trial's body as `of_body` reads; JSON values."""
        return {
            "trial": self.number,
            "setting": self.setting.as_dict(),
            "bucket": self.bucket,
            "phases": {"propose": self.seconds},
            "proposal": self.as_dict(),
        }

    @classmethod
    def of_body(cls, body: Mapping[str, Any]) -> Proposal:
        """The proposal of a recorded trial."""
        said = body["proposal"]
        setting = Setting.from_dict(body["setting"])
        seconds = body["phases"]["propose"]
        known = said["origin"], said["sampler"], said["replaced"], body["bucket"], seconds, said.get("note", "")
        return cls(body["trial"], setting, *known)


@dataclass(frozen=True, slots=True)
class Score:
    """What an outcome is worth.

    Attributes:
        status: that of the outcome, or `nan` when its times make no ratios.
        reason: one line, when not measured.
        timings: as records have them.
        ratio: weighted geometric mean over all points of time over the default's; None when not measured.
        ratios: the same by bucket.
        points: the same by point.
    """

    status: Status
    reason: str
    timings: list[dict[str, Any]]
    ratio: float | None = None
    ratios: Mapping[int, float] = field(default_factory=dict)
    points: list[float] = field(default_factory=list)


def score(outcome: Outcome, weights: Weights) -> Score:
    """Ratios of a measured outcome, and of the buckets that a raced one has all points of; other timings are kept."""
    if outcome.status is Status.RACED:
        return _raced(outcome, weights)
    if outcome.status is not Status.MEASURED:
        return Score(outcome.status, outcome.reason, [timing.as_dict() for timing in outcome.timings])
    try:
        points = point_ratios(outcome.timings)
    except ValueError as error:
        return Score(Status.NAN, str(error), [])
    buckets, overall = weights.means(points)
    timings = [timing.as_dict() for timing in outcome.timings]
    ratios = {bucket: round(ratio, DIGITS) for bucket, ratio in buckets.items()}
    rounded = [round(ratio, DIGITS) for ratio in points.tolist()]
    return Score(outcome.status, outcome.reason, timings, round(overall, DIGITS), ratios, rounded)


def _raced(outcome: Outcome, weights: Weights) -> Score:
    """The score of a setting that was dropped: it has no ratio over all, and point ratios only where it has buckets."""
    timings = [timing.as_dict() for timing in outcome.timings]
    try:
        points = point_ratios(outcome.timings)
    except ValueError as error:
        return Score(Status.NAN, str(error), [])
    known = {timing.point: float(ratio) for timing, ratio in zip(outcome.timings, points, strict=True)}
    ratios = {bucket: round(ratio, DIGITS) for bucket, ratio in weights.complete(known).items()}
    return Score(outcome.status, outcome.reason, timings, None, ratios)


def trial_body(
    proposal: Proposal, resolved: Setting, outcome: Outcome, scored: Score, kept: list[int], record_seconds: float
) -> dict[str, Any]:
    """The body of a trial record, but for what the tape adds (`trial`, `epoch`, `clock`).

    Args:
        proposal: what was tried.
        resolved: its setting, with 0 stages folded.
        outcome: what the bench said.
        scored: what that is worth.
        kept: the buckets that it leads.
        record_seconds: what the append before this one took.
    """
    phases = {name: round(float(outcome.phases.get(name, 0.0)), 6) for name in ("compile", "gate", "measure")}
    return {
        "bucket": proposal.bucket,
        "setting": proposal.setting.as_dict(),
        "resolved": resolved.as_dict(),
        "changed": proposal.setting.changed(Setting()),
        "status": str(scored.status),
        "reason": scored.reason,
        "verdict": "keep" if kept else "discard",
        "kept_buckets": kept,
        "ratio": scored.ratio,
        "ratios": {str(bucket): value for bucket, value in scored.ratios.items()},
        "point_ratios": scored.points,
        "timings": scored.timings,
        "correctness": dict(outcome.correctness),
        "binary": outcome.binary,
        "plans": list(outcome.plans),
        "facts": dict(outcome.facts),
        "phases": {"propose": proposal.seconds, **phases, "record": round(record_seconds, 6)},
        "log": outcome.log,
        "proposal": proposal.as_dict(),
    }
