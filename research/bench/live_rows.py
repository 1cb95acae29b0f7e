"""The rows that live campaigns came to, of all their buckets: what was proven, what it gains, and why the rest was not.

A bucket without a proven row goes on with what is in force (a row, the built-in rule, else every knob's default), and
counts as no gain. The gain of the table is the geometric mean, over all buckets, of the time of what was in force over
the row's; its interval is that of the ends of the rows' intervals, which is wider than that of the mean has to be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from mjolnir.research.summary import bodies
from mjolnir.tuner.promotion import PROMOTE
from mjolnir.tuner.workload import Workload

Facts = dict[str, Any]

UNDECIDED = "undecided"
"""The decision of a bucket whose finals were cut off."""

NOTHING = {"value": 1.0, "low": 1.0, "high": 1.0}


def rows(records: Sequence[Mapping[str, Any]]) -> list[Facts]:
    """One for each bucket of a run: "tag", "bucket", "in_force", "decision", "reason", "setting" and "gain".

    The gain has "value", "low" and "high"; None where nothing was compared. It is that over what was in force, if
    "in_force", else that over every knob's default.
    """
    campaign = bodies(records, "campaign")[-1]
    incumbents = campaign.get("incumbents") or {}
    decided = {body["bucket"]: body for body in bodies(records, "promotion")}
    cut = {"decision": UNDECIDED, "reason": "the run ended before its decision", "setting": None}
    found = []
    for bucket in Workload.from_dict(campaign["workload"]).buckets:
        body = decided.get(bucket, cut)
        facts = {name: body[name] for name in ("decision", "reason", "setting")}
        place = {"tag": records[0]["tag"], "bucket": bucket, "in_force": str(bucket) in incumbents}
        found.append({**place, **facts, "gain": _gain(body)})
    return found


def _gain(body: Mapping[str, Any]) -> Facts | None:
    paper = body.get("certificate", {})
    ratio = paper.get("ratio_incumbent") or paper.get("ratio_default")
    if not ratio:
        return None
    ends = {"value": ratio["value"], "low": ratio["high"], "high": ratio["low"]}
    return {name: round(1 / value, 5) for name, value in ends.items()}


def figures(found: Iterable[Facts]) -> Facts:
    """The figures of all rows: how many there are and are proven, and the gain of the table with its interval."""
    listed = list(found)
    proven = [row for row in listed if row["decision"] == PROMOTE]
    gains = [row["gain"] or NOTHING if row in proven else NOTHING for row in listed]
    means = {name: round(geometric_mean([gain[name] for gain in gains]), 5) for name in NOTHING}
    return {
        "rows": len(listed),
        "rows_promoted": len(proven),
        "table_gain": means["value"],
        "table_gain_low": means["low"],
        "table_gain_high": means["high"],
    }
