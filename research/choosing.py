"""Which trials a command is about: its filters, as they are typed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from mjolnir.research.answer import UsageFailure

if TYPE_CHECKING:
    from mjolnir.ledger import Ledger, Wanted

_AGE = re.compile(r"(\d{1,6})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_KNOB = re.compile(r"([a-z][a-z0-9_]{0,62})=(-?\d{1,18})")


class TagOrder(StrEnum):
    """What tags are sorted by."""

    LAST = "last"
    TAG = "tag"
    TRIALS = "trials"
    BEST = "best"


class TrialOrder(StrEnum):
    """What trials are sorted by."""

    TRIAL = "trial"
    RATIO = "ratio"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of `list` and `show`, as they are typed; see `options`."""

    status: str | None = None
    knobs: tuple[str, ...] = ()
    bucket: int | None = None
    since: str | None = None

    def wanted(self, ledger: Ledger, tag: str | None) -> Wanted:
        """What they choose.

        Raises:
            UsageFailure: one of them means nothing, or names a knob that no trial of the tag has.
        """
        from mjolnir.ledger import Wanted

        if self.status is not None:
            _require_status(self.status)
        knobs = dict(_knob(text) for text in self.knobs)
        known = ledger.knobs(tag) if knobs else frozenset()
        if unknown := sorted(set(knobs) - known):
            names = f"; they have {', '.join(sorted(known))}" if known else ""
            raise UsageFailure(f"--knob {unknown[0]}: no trial {'here' if tag is None else f'of {tag}'} has it{names}")
        return Wanted(self.status, None, self.bucket, knobs, since_time(self.since, datetime.now(UTC)))


ALL = Filters()
"""No filter."""


def since_time(text: str | None, now: datetime) -> str | None:
    """`90m`, `12h`, `3d` or `2w` before `now`, or an ISO date or time (UTC unless it says so), as records have times.

    Raises:
        UsageFailure: it is none of these.
    """
    if text is None:
        return None
    try:
        if age := _AGE.fullmatch(text):
            moment = now - timedelta(**{_UNITS[age[2]]: int(age[1])})
        else:
            moment = datetime.fromisoformat(text)
            moment = moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
        return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError):
        raise UsageFailure(
            f"--since {text!r} is neither an age (90m, 12h, 3d, 2w) nor a time (2026-01-31, 2026-01-31T12:00)"
        ) from None


def statuses(counts: Iterable[tuple[str, int]]) -> str:
    """How trials ended, in words: `160 measured, 5 crashed`."""
    return ", ".join(f"{count} {status}" for status, count in counts) or "none"


def _require_status(text: str) -> None:
    from mjolnir.tuner.bench import Status

    if text not in list(Status):
        raise UsageFailure(f"--status {text!r} is no end of a trial; there are {', '.join(Status)}")


def _knob(text: str) -> tuple[str, int]:
    found = _KNOB.fullmatch(text.replace(" ", ""))
    if not found:
        raise UsageFailure(f"--knob {text!r} is not of the form NAME=NUMBER, such as kv_stages=4")
    return found[1], int(found[2])
