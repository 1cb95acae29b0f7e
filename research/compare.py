"""`autoresearch compare`: two campaigns side by side, and what of them can be compared at all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.research.answer import Answer, Failure, understood
from mjolnir.research.findings import LEGEND, bucket_cells
from mjolnir.research.naming import Names
from mjolnir.research.summary import bodies, current, summarize
from mjolnir.tuner.workload import Workload

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mjolnir.research.evidence import Evidence

Trial = Mapping[str, Any]

LEAST_SHARED = 3
"""Of fewer settings that both measured nothing is said about agreement."""


def compare(first: str, second: str, evidence: Evidence) -> Answer:
    """Two campaigns by bucket: best, proven ratio, and how well they agree on the settings that both measured.

    Raises:
        Failure: there is no such tag, or its records hold no campaign.
    """
    with understood(f"{first} or {second}"):
        return _compare(first, second, [evidence.require(tag).records for tag in (first, second)])


def _compare(first: str, second: str, records: Sequence[Sequence[Mapping[str, Any]]]) -> Answer:
    try:
        summaries = [summarize(lines) for lines in records]
    except ValueError as error:
        raise Failure(f"{first} or {second}: {error}") from error
    old, new = summaries
    limits = not_comparable(old, new)
    pairs = zip(records, summaries, strict=True)
    trials = [current(bodies(lines, "trial"), summary["epoch"]) for lines, summary in pairs]
    data = {
        "tags": [first, second],
        "not_comparable": limits,
        "environment": list(differing(old["epoch"].get("parts", {}), new["epoch"].get("parts", {}))),
        "campaigns": [_facts(summary) for summary in summaries],
        "buckets": _buckets(old, new, trials, bool(limits)),
    }
    return Answer(data, _view(data, old, new))


def not_comparable(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Why ratios of the two campaigns are not of the same thing; empty when they are."""
    found = []
    if old["device"] != new["device"]:
        found.append(f"other devices: {_device(old)} and {_device(new)}; each ratio is to its own device's default")
    if old["geometry"] != new["geometry"]:
        found.append(
            f"other geometries: {Geometry.from_dict(old['geometry'])} and {Geometry.from_dict(new['geometry'])}"
        )
    if old["placement"] != new["placement"]:
        found.append(f"other placements: {old['placement']} and {new['placement']}")
    if old["default"] != new["default"]:
        found.append("other built-in defaults: the ratios have different denominators")
    return found


def differing(old: Any, new: Any, path: str = "") -> Iterator[dict[str, Any]]:
    """Leaves of two JSON values that differ: name and both sides, None where a side has none."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in dict.fromkeys((*old, *new)):
            yield from differing(old.get(name), new.get(name), f"{path}.{name}" if path else str(name))
    elif old != new:
        yield {"name": path, "old": old, "new": new}


def _device(summary: Mapping[str, Any]) -> str:
    device = summary["device"]
    return (
        f"{device['name']} ({device['arch']}, {device['sm_count']} SMs{', ' + device['mig'] if device['mig'] else ''})"
    )


def _facts(summary: Mapping[str, Any]) -> dict[str, Any]:
    names = ("tag", "simulated", "recording", "device", "geometry", "placement", "epochs", "noise_floor", "seconds")
    return {name: summary[name] for name in names} | {"trials": summary["trials"]["total"], "epoch": summary["epoch"]}


def _buckets(
    old: Mapping[str, Any], new: Mapping[str, Any], trials: Sequence[Sequence[Trial]], apart: bool
) -> list[dict[str, Any]]:
    sides = [{entry["bucket"]: entry for entry in summary["buckets"]} for summary in (old, new)]
    found = []
    for bucket in sorted({*sides[0], *sides[1]}):
        points = [_points(summary, bucket) for summary in (old, new)]
        why = ""
        if not all(points):
            why = "only one of them has this bucket"
        elif points[0] != points[1]:
            why = "other points or weights: the ratios are of different work"
        elif apart:
            why = "see above"
        entry = {
            "bucket": bucket,
            "old": _side(sides[0].get(bucket)),
            "new": _side(sides[1].get(bucket)),
            "not_comparable": why,
            "agreement": None if why else agreement(trials[0], trials[1], bucket),
        }
        found.append(entry)
    return found


def _points(summary: Mapping[str, Any], bucket: int) -> list[tuple[str, float]]:
    """Names of a bucket's points and their shares of it."""
    points = [point for point in Workload.from_dict(summary["workload"]).points if point.bucket == bucket]
    total = sum(point.weight for point in points)
    return sorted((point.name, point.weight / total) for point in points)


def _side(entry: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What one campaign says of a bucket; the proven ratio with its interval where there is one."""
    if entry is None:
        return None
    promotion = entry["promotion"] or {}
    return {
        "best": entry["best"],
        "setting": promotion.get("setting") or (entry["best"] or {}).get("setting"),
        "found": entry["found"] or (entry["best"] or {}).get("ratio"),
        "decision": promotion.get("decision"),
        "ratio_default": (promotion.get("certificate") or {}).get("ratio_default"),
    }


def agreement(old: Sequence[Trial], new: Sequence[Trial], bucket: int) -> dict[str, Any] | None:
    """How two campaigns agree on the settings that both measured; None where they share fewer than `LEAST_SHARED`.

    Returns:
        `settings` shared; `median` of the second's ratio over the first's, and `low` and `high`, its interval;
        `within`, the share of settings whose ratios differ by less than 1 %; `rank`, Spearman's correlation (None
        where one side has a single value); `worst`, the setting that they differ most about, and its ratio.
    """
    from scipy.stats import spearmanr

    from mjolnir.tuner.statistics import median_interval

    sides = [_logs(trials, bucket) for trials in (old, new)]
    shared = [setting for setting in sides[0] if setting in sides[1]]
    if len(shared) < LEAST_SHARED:
        return None
    moves = [sides[1][setting] - sides[0][setting] for setting in shared]
    interval = median_interval([math.exp(move) for move in moves])
    ordered = sorted(math.exp(move) for move in moves)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    columns = [[side[setting] for setting in shared] for side in sides]
    varied = all(len(set(column)) > 1 for column in columns)
    worst = max(range(len(moves)), key=lambda place: abs(moves[place]))
    return {
        "settings": len(shared),
        **interval.as_dict(median),
        "within": sum(abs(move) < math.log(1.01) for move in moves) / len(moves),
        "rank": float(spearmanr(*columns).statistic) if varied else None,
        "worst": {
            "setting": shared[worst].as_dict(),
            "ratio": math.exp(moves[worst]),
        },
    }


def _logs(trials: Sequence[Trial], bucket: int) -> dict[Setting, float]:
    """Mean log ratio of each resolved setting in a bucket."""
    logs: dict[Setting, list[float]] = {}
    for trial in trials:
        ratio = (trial.get("ratios") or {}).get(str(bucket))
        if ratio is not None:
            logs.setdefault(Setting.from_dict(trial["resolved"]), []).append(math.log(ratio))
    return {setting: sum(values) / len(values) for setting, values in logs.items()}


def _view(data: Mapping[str, Any], old: Mapping[str, Any], new: Mapping[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("batch", "campaign", "setting decided on", "found", "measured again [interval]", "outcome"):
        table.add_column(title, overflow="fold")
    said = []
    for entry in data["buckets"]:
        for summary in (old, new):
            bucket = next((b for b in summary["buckets"] if b["bucket"] == entry["bucket"]), None)
            if bucket:
                batch, *cells = bucket_cells(bucket, Names.of(summary))
                table.add_row(batch, summary["tag"], *cells)
        said.append(f"Batch {entry['bucket']}: {_agreement_text(entry, Names.of(old))}")
    head = [f"{old['tag']} and {new['tag']}: {_kind(old)} and {_kind(new)}."]
    head += [f"Cannot be compared: {reason}." for reason in data["not_comparable"]]
    parts = [f"{part['name']} {part['old']} and {part['new']}" for part in data["environment"]]
    head.append("Environments differ in: " + "; ".join(parts) if parts else "Their epochs have the same environment.")
    return Group(*head, "", table, "", LEGEND, "", *said)


def _kind(summary: Mapping[str, Any]) -> str:
    return f"a replay of {summary['recording']}" if summary["simulated"] else f"measured on {summary['device']['name']}"


def _agreement_text(entry: Mapping[str, Any], names: Names) -> str:
    if entry["not_comparable"]:
        return f"not compared: {entry['not_comparable']}"
    found = entry["agreement"]
    if found is None:
        return f"fewer than {LEAST_SHARED} settings were measured by both: nothing can be said of agreement"
    rank = "" if found["rank"] is None else f", rank correlation {found['rank']:.2f}"
    worst = f"most about {names(found['worst']['setting'])} ({found['worst']['ratio']:.3f})"
    return (
        f"{found['settings']} settings measured by both; second over first {found['value']:.3f} "
        f"[{found['low']:.3f}, {found['high']:.3f}], {found['within']:.0%} within 1 %{rank}; they differ {worst}"
    )
