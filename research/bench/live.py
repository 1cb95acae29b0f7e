"""`mjolnir bench live`: how busy a live campaign kept its device, and what a second device gained.

From exported runs alone (`ledger.jsonl`): trials a minute, share of the search in which the device's worker was in the
phases gate and measure, and the median time that it waited between two trials. Two runs of one problem on different
numbers of devices are compared: trials a minute, and of each bucket the setting that was decided on. Two winners are
the same within the noise when they are one setting, or when the intervals of their ratio to the default, each widened
by the bucket's noise floor, overlap.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mjolnir.research import devices
from mjolnir.research.answer import Answer, Failure
from mjolnir.research.bench.replay import SCHEMA, written
from mjolnir.research.summary import bodies, summarize
from mjolnir.tuner.statistics import Weights
from mjolnir.tuner.workload import Workload

Facts = dict[str, Any]


def live(folder: Path, against: Path | None, out: Path | None = None) -> Answer:
    """Take the figures of an exported run, and write them to `out` where it is given.

    Args:
        folder: the run.
        against: the same campaign on fewer devices, for the speed-up.
        out: the file; figures of other commands in it are kept.

    Raises:
        Failure: no such run, one of a replay, or two of different problems.
    """
    records, found = _load(folder)
    figures = {
        "device_idle_ms": found["idle_ms"],
        "device_busy_share": found["busy_share"],
        "trials_per_minute": found["trials_per_minute"],
    }
    if found["minutes_300"] is not None:
        figures["live_minutes_300"] = found["minutes_300"]
    data: Facts = {"schema": SCHEMA, "bench": "live", "runs": {folder.name: found}}
    if against is not None:
        before, other = _load(against)
        _require_alike(records, before, folder, against)
        winners = compare(before, records)
        figures["speed_up"] = round(found["trials_per_minute"] / other["trials_per_minute"], 3)
        figures["same_winners"] = sum(entry["same"] for entry in winners.values())
        figures["buckets"] = len(winners)
        data["runs"][against.name] = other
        data["winners"] = winners
    data |= {"figures": figures, "taken": {"how": " ".join((__doc__ or "").split("\n\n", 1)[1].split())}}
    lines = [f"{name:26} {'-' if value is None else format(value, 'g'):>10}" for name, value in figures.items()]
    return Answer(data, "\n".join([*lines, *written(_merged(data, out), out, indent=2)]))


def compare(one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> dict[str, Facts]:
    """Of each bucket the winners of two runs, and whether they are the same within the noise."""
    summaries = [summarize(records) for records in (one, other)]
    workload = Workload.from_dict(summaries[0]["workload"])
    found: dict[str, Facts] = {}
    for first, second in zip(*(summary["buckets"] for summary in summaries), strict=True):
        floors = [_floor(workload, summary["noise_floor"], first["bucket"]) for summary in summaries]
        winners = [_winner(bucket) for bucket in (first, second)]
        found[str(first["bucket"])] = {"winners": winners, "same": _same(winners, max(floors)), "floor": max(floors)}
    return found


def _load(folder: Path) -> tuple[list[Mapping[str, Any]], Facts]:
    try:
        lines = (folder / "ledger.jsonl").read_text(encoding="utf-8").splitlines()
        records: list[Mapping[str, Any]] = [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise Failure(f"{folder} holds no exported run: {error}") from error
    found = devices.live(records)
    if found is None:
        raise Failure(f"{folder} is no live run: a replay says nothing of a device, nor does a run without trials")
    return records, found


def _require_alike(one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]], *folders: Path) -> None:
    first, second = (bodies(records, "campaign")[-1] for records in (one, other))
    for name in ("geometry", "placement", "workload", "device"):
        if first[name] != second[name]:
            raise Failure(f"{folders[0]} and {folders[1]} differ in their {name}, so they cannot be compared")


def _floor(workload: Workload, floor: Sequence[float], bucket: int) -> float:
    import numpy as np

    return Weights(workload).of_bucket(bucket, np.array(floor))


def _winner(bucket: Mapping[str, Any]) -> Facts | None:
    """What a bucket came to; before its decision the lead of the search, which has no interval."""
    promotion, best = bucket["promotion"], bucket["best"]
    if promotion is not None:
        ratio = promotion["certificate"]["ratio_default"]
        return {"setting": promotion["setting"], "decision": promotion["decision"], "ratio": ratio}
    return best and {"setting": best["setting"], "decision": None, "ratio": {"value": best["ratio"]}}


def _same(winners: Sequence[Facts | None], floor: float) -> bool:
    first, second = winners
    if first is None or second is None:
        return first is second
    if first["setting"] == second["setting"]:
        return True
    spans = [_span(winner, floor) for winner in (first, second)]
    return spans[0][0] <= spans[1][1] and spans[1][0] <= spans[0][1]


def _span(winner: Facts, floor: float) -> tuple[float, float]:
    ratio = winner["ratio"] or {"value": 1.0}  # the default, which was compared with nothing
    return ratio.get("low", ratio["value"]) * (1 - floor), ratio.get("high", ratio["value"]) * (1 + floor)


def _merged(data: Facts, out: Path | None) -> Facts:
    """With the figures that other commands left in the file."""
    if out is None or not out.exists():
        return data
    try:
        before = json.loads(out.read_text(encoding="utf-8"))
        return {**before, **data, "figures": {**before["figures"], **data["figures"]}}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Failure(f"--out: {out} holds no figures to add to: {error}") from error
