"""What each knob is worth as Markdown, for the README."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mjolnir.kernel.knobs import KNOBS
from mjolnir.research.bench.targets import line_of
from mjolnir.research.effects import label

FEW = 5
"""Values of a knob that a line of the table has room for."""


def cheapest(costs: Mapping[int, float], base: int) -> int:
    """The value of least cost; of several that tie the default, else the smallest."""
    return min(costs, key=lambda value: (costs[value], value != base, value))


def page(results: Mapping[str, Any]) -> str:
    """The table of a result file, and how it was taken."""
    return f"{table(results)}\n{origin(results['taken'])}\n"


def table(results: Mapping[str, Any]) -> str:
    """The report as Markdown: one line a knob, then the prefetch distances that the grid leaves out."""
    heads = [
        "knob",
        "",
        "one value for all points",
        "costs at most",
        "the others, at their worst points",
        "near the best",
    ]
    lines = [line_of(heads), line_of(["---"] * len(heads))]
    known = {knob.name: place for place, knob in enumerate(KNOBS)}
    names = sorted(results["knobs"], key=lambda name: known.get(name, len(known)))
    for name in sorted(names, key=lambda name: -float(results["knobs"][name]["held"]["cost"])):
        facts = results["knobs"][name]
        cells = [f"`{name}`", facts["verdict"], label(name, facts["single"]), _said(facts["held"])]
        lines.append(line_of([*cells, _others(name, facts), _nearby(name, facts)]))
    return "\n".join([*lines, "", *(_probed(found) for found in results["between"])])


def _said(cost: Mapping[str, Any]) -> str:
    """`+1.2% [+0.8, +1.6] at 1x4096`."""
    if not cost["high"]:
        return "nothing"
    return f"{cost['cost']:+.1%} [{100 * cost['low']:+.1f}, {100 * cost['high']:+.1f}] at {cost['point']}"


def _others(name: str, facts: Mapping[str, Any]) -> str:
    """The least and the most that another value costs where it costs most."""
    worst = {int(value): one["worst"] for value, one in facts["values"].items() if int(value) != facts["single"]}
    costs = {value: float(cost["cost"]) for value, cost in worst.items()}
    ends = (cheapest({value: sign * cost for value, cost in costs.items()}, facts["default"]) for sign in (1, -1))
    return "; ".join(f"{label(name, value)}: {_said(worst[value])}" for value in dict.fromkeys(ends))


def _nearby(name: str, facts: Mapping[str, Any]) -> str:
    """The bounds over all points of what each value does, where the values are few."""
    parts = []
    for value in sorted(facts["values"], key=int) if len(facts["values"]) <= FEW else ():
        if (one := facts["values"][value])["near"]:
            low, high = min(row["low"] for row in one["near"]), max(row["high"] for row in one["near"])
            parts.append(f"{label(name, int(value))}: {low:+.1%} to {high:+.1%}")
    return f"against {label(name, facts['default'])}: " + ", ".join(parts) if parts else ""


def origin(taken: Mapping[str, Any]) -> str:
    """How it was taken, in words."""
    return (
        f"{taken['device']}, {taken['geometry']}, {taken['settings']} settings in the chain in which they are served "
        f"(`mjolnir bench knobs`). A knob that earns its place needs other values at other points. *Costs*: the best "
        f"setting with this value over the best of all, the other knobs free; *near the best*: all other knobs equal. "
        f"In brackets 95 % intervals."
    )


def _probed(found: Mapping[str, Any]) -> str:
    """The prefetch distances in between, in words."""
    parts = []
    for row in found["points"]:
        off = ", ".join(f"{distance}: {round(value, 3) + 0.0:+.1%}" for distance, value in row["off"].items())
        parts.append(f"at {row['point']} by {off} (one rebuild's noise is {row['noise']:.1%})")
    least = min(row["fastest"] for row in found["points"]) - 1
    where = f"{least:.1%} slower than" if least > 0 else f"no slower than ({least:+.1%})"
    return (
        f"Prefetch distances that the grid leaves out differ from their neighbours in it, in the mean of the "
        f"{found['settings']} best settings, {'; '.join(parts)}. The fastest of all these is {where} "
        f"the best without prefetch.\n"
    )
