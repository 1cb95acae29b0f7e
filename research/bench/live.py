"""`mjolnir bench live`: how busy a live campaign kept its device, and what a second device gained.

From exported runs alone (`ledger.jsonl`): trials a minute, share of the search in which the device's worker was in the
phases gate and measure, and the median time that it waited between two trials. Two runs of one problem on different
numbers of devices are compared: trials a minute, and of each bucket the setting that was decided on and the fastest
that the search saw. Two winners are the same within the noise when the intervals of their ratio to the default, each
widened by the bucket's noise floor, overlap; one setting that was not measured again is the same as itself. And the
ratios of the fastest, widened so, have to overlap too, since two searches that found nothing would both leave what is
in force. Of several runs the rates are means over their seconds, and their rows are taken together (`live_rows`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from mjolnir import ledger as ledgers
from mjolnir.ledger.unpacking import unpack
from mjolnir.research import devices
from mjolnir.research.answer import Answer, Failure, UsageFailure, understood
from mjolnir.research.bench import live_rows
from mjolnir.research.bench.replay import SCHEMA, written
from mjolnir.research.naming import counted
from mjolnir.research.summary import bodies, summarize
from mjolnir.tuner.statistics import Weights
from mjolnir.tuner.workload import Workload

Facts = dict[str, Any]


def live(folders: Sequence[Path], against: Path | None, out: Path | None = None) -> Answer:
    """Take the figures of exported runs, and write them to `out` where it is given.

    Args:
        folders: the runs, one at least.
        against: the same campaign as the only run, on fewer devices, for the speed-up.
        out: the file; figures of other commands in it are kept.

    Raises:
        UsageFailure: several runs are to be held against one, or one against a run on as many devices.
        Failure: no such run, one of a replay, or two of different problems.
    """
    if against is not None and len(folders) > 1:
        raise UsageFailure("--against goes with one run")
    loaded = {folder.name: load(folder) for folder in folders}
    figures = _rates([found for _, found in loaded.values()])
    with understood(", ".join(loaded)):
        rows = [row for records, _ in loaded.values() for row in live_rows.rows(records)]
    data: Facts = {"schema": SCHEMA, "bench": "live", "runs": {name: found for name, (_, found) in loaded.items()}}
    if any(row["decision"] != live_rows.UNDECIDED for row in rows):  # else it was a search, and says nothing of rows
        figures |= live_rows.figures(rows)
        data["rows"] = rows
    if against is not None:
        (records, found), (before, other) = loaded[folders[0].name], load(against)
        _require_alike(records, before, folders[0], against)
        if len(other["devices"]) >= len(found["devices"]):
            raise UsageFailure(
                f"--against {against}: {counted(len(other['devices']), 'device')}, and {folders[0]} had "
                f"{len(found['devices'])}; it goes with a run on fewer"
            )
        with understood(f"{folders[0].name}, {against.name}"):
            winners = compare(before, records)
        figures["speed_up"] = round(found["trials_per_minute"] / other["trials_per_minute"], 3)
        figures["same_winners"] = sum(entry["same"] for entry in winners.values())
        figures["buckets"] = len(winners)
        data["runs"][against.name] = other
        data["winners"] = winners
    data |= {"figures": figures, "taken": {"how": " ".join((__doc__ or "").split("\n\n", 1)[1].split())}}
    lines = [f"{name:26} {'-' if value is None else format(value, 'g'):>10}" for name, value in figures.items()]
    return Answer(data, "\n".join([*lines, *written(_merged(data, out), out, indent=2)]))


def _rates(found: Sequence[Facts]) -> Facts:
    """How fast the searches went and how busy their devices were; means over the seconds, the median wait of all."""
    seconds = sum(run["seconds"] for run in found)
    idle = [run["idle_ms"] for run in found if run["idle_ms"] is not None]
    minutes = [run["minutes_300"] for run in found if run["minutes_300"] is not None]
    figures = {
        "device_idle_ms": round(median(idle), 3) if idle else None,
        "device_busy_share": round(sum(run["busy_share"] * run["seconds"] for run in found) / seconds, 4),
        "trials_per_minute": round(60 * sum(run["trials"] for run in found) / seconds, 2),
    }
    return {**figures, "live_minutes_300": max(minutes)} if minutes else figures


def compare(one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> dict[str, Facts]:
    """Of each bucket the winners and the leads of two runs, and whether both are the same within the noise."""
    summaries = [summarize(records) for records in (one, other)]
    workload = Workload.from_dict(summaries[0]["workload"])
    found: dict[str, Facts] = {}
    for first, second in zip(*(summary["buckets"] for summary in summaries), strict=True):
        floors = [_floor(workload, summary["noise_floor"], first["bucket"]) for summary in summaries]
        winners = [_winner(bucket) for bucket in (first, second)]
        leads = [_lead(bucket) for bucket in (first, second)]
        same = _alike(winners, max(floors)) and _alike(leads, max(floors))
        found[str(first["bucket"])] = {"winners": winners, "leads": leads, "same": same, "floor": max(floors)}
    return found


def load(folder: Path) -> tuple[list[Mapping[str, Any]], Facts]:
    """The records of an exported run on a GPU, as the tuner wrote them, and what they say of the device.

    Raises:
        Failure: there is none, one of a replay, or one that nothing of this version wrote.
    """
    try:
        lines = (folder / "ledger.jsonl").read_text(encoding="utf-8").splitlines()
        records = [_record(json.loads(line)) for line in lines]
    except (OSError, ValueError) as error:
        raise Failure(f"{folder} holds no exported run: {error}") from error
    with understood(folder.name):
        found = devices.live(records)
    if found is None:
        raise Failure(f"{folder} is no live run: a replay says nothing of a device, nor does a run without trials")
    if found["seconds"] <= 0:
        raise Failure(
            f"{folder}: its last trial is older than its first; the records are not in the order of their making"
        )
    return records, found


def _record(values: Any) -> Mapping[str, Any]:
    """A line of an export as the tuner wrote it: the ledger packs the bodies of its own schema.

    Raises:
        ValueError: it is no record.
    """
    if not isinstance(values, dict):
        raise ValueError(f"a line is a JSON {type(values).__name__}, expected an object")
    if values.get("schema") != ledgers.SCHEMA:
        return values
    return {**values, "body": unpack(values["body"])}


def _require_alike(one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]], *folders: Path) -> None:
    first, second = (bodies(records, "campaign")[-1] for records in (one, other))
    for name in ("geometry", "placement", "workload", "device"):
        if first[name] != second[name]:
            raise Failure(f"{folders[0]} and {folders[1]} differ in their {name}, so they cannot be compared")


def _floor(workload: Workload, floor: Sequence[float], bucket: int) -> float:
    import numpy as np

    return Weights(workload).of_bucket(bucket, np.array(floor))


def _winner(bucket: Mapping[str, Any]) -> Facts | None:
    """What a bucket came to: its setting, its ratio to the default if it was measured again, and as the search found
    it; before the decision the lead of the search.
    """
    promotion = bucket["promotion"]
    if promotion is None:
        return _lead(bucket)
    found = bucket["found"]
    return {
        "setting": promotion["setting"], "decision": promotion["decision"],
        "ratio": promotion["certificate"]["ratio_default"], "found": found and {"value": found},
    }  # fmt: skip


def _lead(bucket: Mapping[str, Any]) -> Facts | None:
    """The fastest that the search saw in a bucket."""
    best = bucket["best"]
    return best and {"setting": best["setting"], "decision": None, "ratio": {"value": best["ratio"]}, "found": None}


def _alike(entries: Sequence[Facts | None], floor: float) -> bool:
    """Whether two are one setting, or have ratios, widened by the floor, with a value in common."""
    first, second = entries
    if first is None or second is None:
        return first is second
    if first["setting"] == second["setting"] and not (first["ratio"] and second["ratio"]):
        return True
    ratios = [entry["ratio"] or entry["found"] for entry in (first, second)]
    if not all(ratios):
        return False
    spans = [_span(ratio, floor) for ratio in ratios]
    return spans[0][0] <= spans[1][1] and spans[1][0] <= spans[0][1]


def _span(ratio: Mapping[str, float], floor: float) -> tuple[float, float]:
    return ratio.get("low", ratio["value"]) * (1 - floor), ratio.get("high", ratio["value"]) * (1 + floor)


def _merged(data: Facts, out: Path | None) -> Facts:
    """With the figures and runs that other commands left in the file."""
    if out is None or not out.exists():
        return data
    try:
        before = json.loads(out.read_text(encoding="utf-8"))
        runs = {**before.get("runs", {}), **data["runs"]}
        return {**before, **data, "runs": runs, "figures": {**before["figures"], **data["figures"]}}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Failure(f"--out: {out} holds no figures to add to: {error}") from error
