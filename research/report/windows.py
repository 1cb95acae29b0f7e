"""What was seen of the device while it measured: clocks, temperature, power, throttling, strangers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

READINGS = {
    "sm_mhz": ("SM clock", "MHz"),
    "mem_mhz": ("memory clock", "MHz"),
    "celsius": ("temperature", "°C"),
    "watts": ("power", "W"),
}
"""Readings of a window: their names and units."""

MEASURED = ("noise", "trial", "shootout", "confirmation")
"""The records that hold windows."""


def windows(records: Sequence[Mapping[str, Any]], epoch: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The windows of an epoch's measurements, in order; those of a replay tell nothing and are left out."""
    return [window for record in records for window in _of(record, epoch) if "before" in window or window.get("dirty")]


def _of(record: Mapping[str, Any], epoch: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    body = record["body"]
    if record["kind"] not in MEASURED or (epoch and body.get("epoch") != epoch["epoch"]):
        return
    if body.get("window"):
        yield body["window"]
    for timing in body.get("timings") or ():
        if timing.get("window"):
            yield timing["window"]


def lines(found: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Pairs of what and how much, for a table; empty without windows."""
    if not found:
        return []
    sides = [side for window in found for side in (window.get("before"), window.get("after")) if side]
    rows = [("windows", str(len(found)))]
    for key, (name, unit) in READINGS.items():
        values = [side[key] for side in sides if side.get(key) is not None]
        if values:
            rows.append((name, f"{_span(min(values), max(values))} {unit}"))
    throttle = Counter(reason for side in sides for reason in side.get("throttle") or ())
    strangers = sum(bool(side.get("strangers") or side.get("newcomers")) for side in sides)
    dirty = Counter(window["dirty"] for window in found if window.get("dirty"))
    rows.append(("throttled", _counted(throttle)))
    rows.append(("readings that saw other processes", str(strangers) if strangers else "none"))
    rows.append(("dirty windows, their times not used", _counted(dirty)))
    return rows


def _span(low: float, high: float) -> str:
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _counted(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} ({count})" for reason, count in sorted(reasons.items())) or "none"
