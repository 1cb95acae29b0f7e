"""Settings that need not be compiled, since one that needs no more has run out of resources already.

More CTAs on an SM leave fewer registers to each thread and less shared memory to each ring, and so do more computing
warps in a CTA; a deeper ring takes more of the latter. So where a setting does not fit, neither does one with at least
as many of all three and the same other baked knobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mjolnir.kernel.knobs import KNOBS, Setting
from mjolnir.tuner.bench import Status

COSTLY = tuple(item.name for item in KNOBS if item.costs)
"""Knobs that take resources."""

ALIKE = tuple(item.name for item in KNOBS if item.baked and not item.costs)
"""Other knobs that decide which binary runs."""

RESOURCES = ("registers", "shared memory", "spill", "out of resources")
"""Words by which a failure is known to be one of resources."""


class Skips:
    """Remembers what did not fit."""

    def __init__(self) -> None:
        self._failed: list[tuple[Setting, int, str]] = []

    def __len__(self) -> int:
        """Number of settings that did not fit."""
        return len(self._failed)

    def learn(self, body: Mapping[str, Any]) -> None:
        """Take in the body of a trial; it counts when it ran out of resources, found by building it."""
        reason = str(body["reason"])
        built = body["status"] == Status.COMPILE_FAILED or (body["status"] == Status.INFEASIBLE and body["binary"])
        if built and any(word in reason.lower() for word in RESOURCES):
            self._failed.append((Setting.from_dict(body["resolved"]), int(body["trial"]), reason))

    def reason(self, resolved: Setting) -> str | None:
        """Why a resolved setting cannot fit, as far as is known; None where it may."""
        for failed, trial, reason in self._failed:
            if _dominates(resolved, failed):
                return f"not compiled: it needs no less than trial {trial}, which did not fit ({reason})"
        return None


def _dominates(setting: Setting, failed: Setting) -> bool:
    """Whether `setting` needs at least what `failed` needs."""
    return all(getattr(setting, name) >= getattr(failed, name) for name in COSTLY) and all(
        getattr(setting, name) == getattr(failed, name) for name in ALIKE
    )
