"""What each knob does to time, for summaries and readers: also when nothing was gained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting, knob
from mjolnir.kernel.variant import resolve
from mjolnir.tuner.workload import Workload

if TYPE_CHECKING:
    from rich.table import Table

ALL = "all"
"""The response over the whole workload; the others are buckets, as text."""

LEGEND = (
    "Knobs: time with a value, less that with the default's value, all other knobs equal; below 0 is faster, intervals "
    "of 95 %; the fastest value has the lowest upper bound. 'pairs' are settings that differ in this knob alone; "
    "'model' is an additive fit with a bootstrap. 'share' is what a fit without the knob loses of the spread of ratios."
)


def of_campaign(
    campaign: Mapping[str, Any], trials: Sequence[Mapping[str, Any]], floor: Sequence[float]
) -> dict[str, Any]:
    """The effects in a campaign, as `tuner.effects` gives them.

    Args:
        campaign: body of the campaign record.
        trials: trial bodies of the epoch in force.
        floor: noise floor of each point, fractions.
    """
    # Here because SciPy takes half a second to import, and a reader of a summary that is there needs none of it.
    from mjolnir.tuner import effects

    geometry, device = Geometry.from_dict(campaign["geometry"]), Device(**campaign["device"])
    default = resolve(Setting.from_dict(campaign["default"]), geometry, device)
    for trial in trials:
        if trial.get("proposal", {}).get("origin") == "default":  # an earlier kernel may have had room for another ring
            default = Setting.from_dict(trial["resolved"])
    return effects.effects(trials, default.as_dict(), _floors(Workload.from_dict(campaign["workload"]), floor))


def _floors(workload: Workload, floor: Sequence[float]) -> dict[str, float]:
    """The noise of each response: the weighted mean of its points', which is no less than that of their mean."""
    from mjolnir.tuner.statistics import LEAST_FLOOR

    every = range(len(workload.points))
    groups = {ALL: tuple(every), **{str(bucket): workload.of_bucket(bucket) for bucket in workload.buckets}}
    floors = {}
    for name, points in groups.items():
        weight = sum(workload.points[point].weight for point in points)
        mean = sum(workload.points[point].weight * floor[point] for point in points) / weight
        floors[name] = max(LEAST_FLOOR, mean)
    return floors


def between(effect: Mapping[str, Any]) -> str:
    """An effect in words: `between -0.3 % and +0.4 %`."""
    return f"between {effect['low']:+.1%} and {effect['high']:+.1%}"


def verdict(name: str, facts: Mapping[str, Any]) -> str:
    """What is wrong with a knob; empty when it does something."""
    if facts["dead"]:
        return f"dead: no change of binary, plans or times in {facts['pairs']} pairs"
    if knob(name).baked and facts["binary_changed"] is False:
        return f"the binary is the same in {facts['pairs']} pairs: not wired, or a stale cache"
    return ""


def label(name: str, value: int) -> str:
    """A knob's value as text."""
    return ("off", "on")[value] if knob(name).is_switch else str(value)


def table(summary: Mapping[str, Any]) -> Table | str:
    """One line a knob: its best and its worst value over all points; "" where no knob varied."""
    from rich.table import Table as View

    knobs = summary["effects"]["knobs"]
    if not knobs:
        return ""
    view = View(box=None, pad_edge=False)
    for title in ("knob", "against", "fastest other value", "slowest", "share, most in batch", "from"):
        view.add_column(title, overflow="fold")
    for name, facts in knobs.items():
        view.add_row(*_cells(name, facts))
    return view


def _cells(name: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
    rows = facts["effects"].get(ALL, [])
    against = label(name, facts["default"])
    if said := verdict(name, facts):
        return name, against, said, "", _shares(facts), ""
    if not rows:
        return name, against, "not enough settings to tell", "", _shares(facts), ""
    best = min(rows, key=lambda effect: float(effect["high"]))
    worst = max(rows, key=lambda effect: float(effect["low"]))
    shown = [best] if best == worst else [best, worst]
    origin = ", ".join(f"{e['pairs']} pairs" if e["method"] == "pairs" else "model" for e in shown)
    return name, against, _said(name, best), _said(name, worst) if len(shown) > 1 else "", _shares(facts), origin


def _shares(facts: Mapping[str, Any]) -> str:
    """The share over all points, and the bucket in which it is largest."""
    shares = dict(facts["importance"])
    every = shares.pop(ALL, None)
    if every is None:
        return "-"
    most = max(shares, key=lambda name: float(shares[name]), default=None)
    return f"{every:.1%}" + (f", {shares[most]:.1%} in {most}" if most else "")


def _said(name: str, effect: Mapping[str, Any]) -> str:
    return f"{label(name, effect['value'])}: {between(effect)}"


def page_rows(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For the page: of each knob what the table says, its shares, and of each value a cell for each response."""
    found = []
    responses = [ALL, *(str(bucket["bucket"]) for bucket in summary["buckets"])]
    for name, facts in summary["effects"]["knobs"].items():
        values = sorted({effect["value"] for row in facts["effects"].values() for effect in row})
        lines = [(label(name, value), [_cell(facts, response, value) for response in responses]) for value in values]
        shares = [facts["importance"].get(response) for response in responses]
        shown = ["-" if share is None else f"{share:.1%}" for share in shares]
        found.append(
            {
                "name": name,
                "against": label(name, facts["default"]),
                "said": [cell for cell in _cells(name, facts)[2:4] if cell],
                "shares": shown,
                "values": lines,
            }
        )
    return found


def _cell(facts: Mapping[str, Any], response: str, value: int) -> dict[str, Any]:
    effect = next((effect for effect in facts["effects"].get(response, []) if effect["value"] == value), None)
    if effect is None:
        return {"text": "-", "origin": "", "tone": ""}
    origin = f"{effect['pairs']} pairs" if effect["method"] == "pairs" else "model"
    tone = "faster" if effect["high"] < 0 else "slower" if effect["low"] > 0 else ""
    return {"text": f"{effect['low']:+.1%} to {effect['high']:+.1%}", "origin": origin, "tone": tone}
