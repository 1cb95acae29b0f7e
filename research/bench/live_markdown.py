"""What live campaigns proved, as Markdown, for the README."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mjolnir.research.bench.targets import line_of
from mjolnir.tuner.promotion import DEFAULT_IS_BEST, PROMOTE

Row = Mapping[str, Any]

REASONS = {
    "gain less than the margin": ("the margin is", "by the margin of"),
    "are slower at a point": ("slower than",),
    "have what is in force as fast as the fastest": ("in force",),
}
"""Why a bucket was not proven, and the words by which its reason is known."""


def page(results: Mapping[str, Any]) -> str:
    """A line for each campaign that proved a row, of each bucket the time saved, and why the rest was not proven."""
    rows: Sequence[Row] = results.get("rows", ())
    if not rows:
        return ""
    buckets = sorted({row["bucket"] for row in rows})
    lines = [line_of(["campaign", *(f"<= {bucket}" for bucket in buckets)]), line_of(["---"] * (1 + len(buckets)))]
    for tag in dict.fromkeys(row["tag"] for row in rows if row["decision"] == PROMOTE):
        cells = {row["bucket"]: _cell(row) for row in rows if row["tag"] == tag}
        lines.append(line_of([tag, *(cells.get(bucket, "") for bucket in buckets)]))
    return "\n".join([*lines, "", _sum(results["figures"], rows), ""])


def _cell(row: Row) -> str:
    """The gain of a proven row with its interval, in percent; the decision where there is none."""
    if row["decision"] != PROMOTE:
        return "default" if row["decision"] == DEFAULT_IS_BEST else "-"
    gain = row["gain"]
    return f"{gain['value'] - 1:.1%} [{100 * (gain['low'] - 1):.1f}, {100 * (gain['high'] - 1):.1f}]"


def _sum(figures: Mapping[str, Any], rows: Sequence[Row]) -> str:
    rest = Counter(_why(row) for row in rows if row["decision"] != PROMOTE)
    because = "; ".join(f"{count} {why}" for why, count in rest.most_common())
    ends = [100 * (figures[name] - 1) for name in ("table_gain_low", "table_gain_high")]
    against = "what the built-in rule says" if any(row.get("in_force") for row in rows) else "every knob's default"
    campaigns = len({row["tag"] for row in rows})
    return (
        f"How much faster than {against} each proven row is, with its interval: {figures['rows_promoted']} of "
        f"{figures['rows']} buckets of {campaigns} campaigns, in the geometric mean over all of them "
        f"{figures['table_gain'] - 1:.1%} [{ends[0]:.1f}, {ends[1]:.1f}]. Of the rest: {because or 'nothing'}."
    )


def _why(row: Row) -> str:
    if row["decision"] == DEFAULT_IS_BEST:
        return "have the default as the best"
    known = (why for why, words in REASONS.items() if any(word in row["reason"] for word in words))
    return next(known, "have another reason")
