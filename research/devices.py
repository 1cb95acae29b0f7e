"""What a live campaign's records say of its devices: how fast the search went, how busy each was, how alike they are.

Worked out from the records of one epoch. The search lasts from the beginning of its first trial to the record of its
last one. A device is busy while its worker is in the phases gate and measure; it is idle from the answer of one request
to the arrival of the next, as the worker itself saw it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from mjolnir.tuner.workload import Workload

Body = Mapping[str, Any]
Record = Mapping[str, Any]
LONE = "device"
"""The name of a device where the records name none: there was one."""


def live(records: Sequence[Record]) -> dict[str, Any] | None:
    """Facts of the last epoch that has trials; None for a replay and where nothing was measured.

    Returns:
        "trials", "seconds" of the search, "trials_per_minute", "minutes_300" that the first 300 trials took, compiles
        included (None with fewer), "idle_ms" (median over trials; None where the worker did not tell), "busy_share"
        (mean over devices), "lost" (how often a trial was asked again because its worker was lost with it), "each_once"
        (whether the numbers of all epochs' trials leave none out and none is there twice), "processes" of the finals
        and their "process_seconds" by phase (medians, from the start of a process to the end of its first instance),
        and "devices": by name its "trials", "busy_share", "idle_ms", "default_us" by point (median chain time of the
        built-in default), "offset" by point (that time over the same on the first device, less 1), and "noise" by
        point (median A/A value of its rebuilds).
    """
    campaign = next((record["body"] for record in reversed(records) if record["kind"] == "campaign"), None)
    trials = [record["body"] for record in records if record["kind"] == "trial"]
    if campaign is None or campaign["simulated"] or campaign.get("sources") or not trials:
        return None
    each_once = sorted(body["trial"] for body in trials) == list(range(1, len(trials) + 1))
    epoch = trials[-1].get("epoch")
    trials = [body for body in trials if body.get("epoch") == epoch]
    mine = [record for record in records if record["body"].get("epoch") == epoch]
    began = trials[0]["clock"] - _taken(trials[0])
    seconds = trials[-1]["clock"] - began
    names = [point.name for point in Workload.from_dict(campaign["workload"]).points]
    devices = _devices(trials, _of_kind(mine, "noise"), seconds, names)
    return {
        "trials": len(trials),
        "seconds": round(seconds, 3),
        "trials_per_minute": round(60 * len(trials) / seconds, 2),
        "minutes_300": round((trials[299]["clock"] - began) / 60, 3) if len(trials) >= 300 else None,
        "idle_ms": _idle(trials),
        "busy_share": round(sum(device["busy_share"] for device in devices.values()) / len(devices), 4),
        "lost": sum(len(body["facts"].get("lost", ())) for body in trials),
        "each_once": each_once,
        "devices": devices,
        **_finals([*_of_kind(mine, "shootout"), *_of_kind(mine, "confirmation")]),
    }


def _of_kind(records: Iterable[Record], kind: str) -> list[Body]:
    return [record["body"] for record in records if record["kind"] == kind]


def _taken(body: Body) -> float:
    return float(sum(body["phases"][name] for name in ("compile", "gate", "measure")))


def _idle(trials: Iterable[Body]) -> float | None:
    waits = [float(body["facts"]["idle_ms"]) for body in trials if "idle_ms" in body["facts"]]
    return round(median(waits), 3) if waits else None


def _devices(
    trials: Sequence[Body], noise: Sequence[Body], seconds: float, names: Sequence[str]
) -> dict[str, dict[str, Any]]:
    by_device: dict[str, list[Body]] = defaultdict(list)
    for body in trials:
        by_device[body["facts"].get("device", LONE)].append(body)
    times = {name: _default_ns(bodies) for name, bodies in sorted(by_device.items())}
    first = next(iter(times.values()))
    return {
        name: {
            "trials": len(by_device[name]),
            "busy_share": round(
                sum(b["phases"]["gate"] + b["phases"]["measure"] for b in by_device[name]) / seconds, 4
            ),
            "idle_ms": _idle(by_device[name]),
            "default_us": {names[point]: round(ns / 1e3, 3) for point, ns in own.items()},
            "offset": {names[point]: round(ns / first[point] - 1, 5) for point, ns in own.items() if point in first},
            "noise": {names[point]: round(value, 5) for point, value in _noise(noise, name).items()},
        }
        for name, own in times.items()
    }


def _default_ns(trials: Iterable[Body]) -> dict[int, float]:
    """By point, the default's chain time freed of the chain around it: the median over trials of their medians."""
    found: dict[int, list[float]] = defaultdict(list)
    for body in trials:
        for timing in body["timings"]:
            found[timing["point"]].append(median(timing["baseline"]) - median(timing["empty"]))
    return {point: median(values) for point, values in sorted(found.items())}


def _noise(noise: Iterable[Body], device: str) -> dict[int, float]:
    """By point, the median A/A value of the rebuilds on a device."""
    found: dict[int, list[float]] = defaultdict(list)
    for body in noise:
        for timing, value in zip(body["timings"], body["values"], strict=False):
            if timing["window"].get("device", LONE) == device:
                found[timing["point"]].append(math.expm1(value))
    return {point: median(values) for point, values in sorted(found.items())}


def _finals(instances: Sequence[Body]) -> dict[str, Any]:
    """Processes of the finals, and what one takes until its first instance is there."""
    first: dict[int, Body] = {}
    for body in sorted(instances, key=lambda body: int(body["instance"])):
        first.setdefault(body["process"], body)
    phases: dict[str, list[float]] = defaultdict(list)
    for body in first.values():
        for name, seconds in body.get("phases", {}).items():
            phases[name].append(seconds)
    told = {name: round(median(values), 3) for name, values in phases.items()}
    return {"processes": len(first), "process_seconds": told}
