"""What each knob does, for the page: its effects as intervals, its slice through the trials, and a table by bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mjolnir.research import effects
from mjolnir.research.report import charts, series


def cards(summary: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One card for each knob that varied.

    Args:
        summary: of the campaign.
        trials: bodies of the trials of the epoch in force.
    """
    slices = series.knob_groups(trials)
    found = []
    for row in effects.page_rows(summary):
        name = row["name"]
        groups = {effects.label(name, int(value)): ratios for value, ratios in slices.get(name, {}).items()}
        drawn = charts.intervals(f"effect of {name}", spans(summary, name), same=0.0, label=_percent)
        found.append({**row, "intervals": drawn, "slice": charts.dots(f"trials by {name}", groups)})
    return found


def spans(summary: Mapping[str, Any], name: str) -> list[charts.Span]:
    """The effect of each value of a knob over all points."""
    rows = summary["effects"]["knobs"][name]["effects"].get(effects.ALL, [])
    return [charts.Span(effects.label(name, row["value"]), row["low"], row["change"], row["high"]) for row in rows]


def _percent(value: float) -> str:
    return f"{round(100 * value, 6):+g}%" if value else "0"
