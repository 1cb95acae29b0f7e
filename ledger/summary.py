"""What there is of a tag, at a glance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Best:
    """The fastest trial in a bucket: `ratio` is its time over that of the default, below 1 is faster."""

    ratio: float
    trial: int


@dataclass(frozen=True, slots=True)
class TagSummary:
    """What there is of a tag.

    Attributes:
        tag: the tag.
        records: records of all kinds.
        trials: trials among them.
        kept: trials that were a new best in a bucket.
        statuses: trials by how they ended.
        best: the fastest measured trial of each bucket.
        first: time of the first record.
        last: time of the last record.
        writers: how many processes wrote it.
        ended: why its last run ended; None when that run has not written an `end` (it runs, or was killed).
        resumable: what that `end` said; True without one.
    """

    tag: str
    records: int
    trials: int
    kept: int
    statuses: Mapping[str, int]
    best: Mapping[int, Best]
    first: str
    last: str
    writers: int
    ended: str | None
    resumable: bool
