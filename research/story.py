"""A story: titled parts of sentences, the same for a person and for a program; and the sentences that stories share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mjolnir.research.naming import Names
from mjolnir.research.rows import checks_in

SAME = 5e-4
"""Log ratios below it round to nothing."""


class NoStory(LookupError):
    """There is nothing of that name to tell of; the message says what there is."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a story.

    Attributes:
        title: what it is about.
        lines: its sentences.
    """

    title: str
    lines: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {"title": self.title, "lines": list(self.lines)}


def text(parts: Sequence[Part]) -> str:
    """The story as text."""
    return "\n\n".join("\n".join([part.title, *(f"  {line}" for line in part.lines)]) for part in parts if part.lines)


def gain(log_ratio: float) -> str:
    """A log ratio in words: `5.4% faster`."""
    if abs(log_ratio) < SAME:
        return "the same"
    return f"{math.expm1(-log_ratio):.1%} faster" if log_ratio < 0 else f"{math.expm1(log_ratio):.1%} slower"


def against(log_ratio: float, name: str) -> str:
    """A log ratio and what it is against: `5.4% faster than the default`."""
    return f"as fast as the {name}" if abs(log_ratio) < SAME else f"{gain(log_ratio)} than the {name}"


def window(facts: Mapping[str, Any]) -> str:
    """What was seen of the device around a measurement; `nothing recorded` in a replay."""
    after = facts.get("after") or {}
    parts = []
    for name, unit in (("sm_mhz", "MHz"), ("celsius", "C"), ("watts", "W")):
        if after.get(name) is not None:
            parts.append(f"{after[name]} {unit}")
    if after:
        throttle = ", ".join(str(reason) for reason in after.get("throttle") or ())
        parts.append(f"throttled by {throttle}" if throttle else "not throttled")
    if "dirty" in facts:
        parts.append(f"dirty: {facts['dirty']}" if facts["dirty"] else "clean window")
    return ", ".join(parts) or "nothing recorded of the device"


def gate(evidence: Any) -> str:
    """What the gate found: number of kinds of checks, and the one nearest to its bound."""
    checks = list(checks_in(evidence))
    if not checks:
        return "no check is on record: nothing was run here, or a replay's recording holds none"
    nearest = max(checks, key=lambda check: float(check["excess"]))
    return (
        f"nearest to its bound: {nearest['name']} (seed {nearest['seed']}), error {nearest['error']:.3g} at "
        f"{nearest['excess']:.0%} of the {nearest['bound']:.3g} allowed"
    )


def arms(body: Mapping[str, Any], names: Names) -> list[str]:
    """The settings of an instance in words."""
    return [names(arm) for arm in body["arms"]]


def shootout(body: Mapping[str, Any], names: Names) -> list[str]:
    """A shoot-out: what each arm took, and who was chosen."""
    if body["status"] != "measured":
        return [f"shoot-out {body['number']} ended {body['status']}: {body['reason']}"]
    named = arms(body, names)
    lines = [f"shoot-out {body['number']} in process {body['process']}, {window(body['window'])}:"]
    for place in body["ranking"]:
        mark = " <- chosen" if place == body["chosen"] else ""
        lines.append(f"  {named[place]}: {against(body['values'][place], 'default')}{mark}")
    return [*lines, f"chosen because it {_verb(body['why'])}"]


def _verb(why: str) -> str:
    return why if why.startswith("takes") else f"is {why}" if why.startswith("the fastest") else f"wins: {why}"


def instance(body: Mapping[str, Any]) -> str:
    """One confirmation instance in a line."""
    head = f"instance {body['number']}, process {body['process']}: "
    if body["status"] != "measured":
        return f"{head}{body['status']}: {body['reason']}"
    said = " and ".join(against(value, name) for name, value in body["values"].items())
    return f"{head}{said}; {window(body['window'])}"
