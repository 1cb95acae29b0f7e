"""Which trials are asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

_TIME = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d+)?)?Z?)?")

Sort = Literal["trial", "ratio", "time"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A choice of trials; what is None, or empty, chooses all.

    Attributes:
        status: only those that ended so.
        verdict: only "keep" or "discard".
        bucket: only those that this bucket's search asked for.
        knobs: only those with these values in their setting.
        since: only those appended at this time or later, RFC 3339 in UTC as records have it.
    """

    status: str | None = None
    verdict: str | None = None
    bucket: int | None = None
    knobs: Mapping[str, int] = field(default_factory=dict)
    since: str | None = None

    def __post_init__(self) -> None:
        if self.since is not None and not _TIME.fullmatch(self.since):
            raise ValueError(f"since={self.since!r} is no time such as 2026-01-31, or 2026-01-31T12:00:00Z")

    def __bool__(self) -> bool:
        """False when it chooses all."""
        return bool(self.knobs) or any(
            value is not None for value in (self.status, self.verdict, self.bucket, self.since)
        )
