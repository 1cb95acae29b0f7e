"""Step counters: how often a KV group's step ran on Mjolnir, and why it did not. For tests, logs and benches."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Steps:
    """Counts since the last reset; one KV group's step counts once, steps built for graph capture not at all.

    Attributes:
        mjolnir: causal steps on Mjolnir.
        non_causal: non-causal ones.
        fallback: all others.
        missed: those of the others that had only decoding requests.
        reasons: why steps ran on the fallback.
    """

    mjolnir: int = 0
    non_causal: int = 0
    fallback: int = 0
    missed: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    _paused: bool = False

    def ran(self, *, causal: bool) -> None:
        """A step ran on Mjolnir."""
        if not self._paused:
            self.mjolnir += causal
            self.non_causal += not causal

    def fell_back(self, reason: str, *, decoding: bool) -> None:
        """A step ran on the fallback."""
        if not self._paused:
            self.fallback += 1
            self.missed += decoding
            self.reasons[reason] += 1

    @property
    def share(self) -> float:
        """The part of the decode-only steps that ran on Mjolnir; NaN before the first."""
        ran = self.mjolnir + self.non_causal
        return ran / (ran + self.missed) if ran + self.missed else math.nan

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def reset(self) -> None:
        """Back to zero."""
        self.mjolnir = self.non_causal = self.fallback = self.missed = 0
        self.reasons.clear()

    def as_dict(self) -> dict[str, Any]:
        """All counts, ready for JSON."""
        counts = {name: getattr(self, name) for name in ("mjolnir", "non_causal", "fallback", "missed")}
        return {**counts, "reasons": dict(self.reasons)}


STEPS = Steps()
"""Those of this process."""
