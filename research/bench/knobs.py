"""`mjolnir bench knobs`: what each knob is worth, with bounds, from a recording of the whole grid.

Two questions are asked of every value of a knob. **Held:** how much slower is the best setting with this value than the
best of all, when the other knobs are free? The best are chosen by one half of the recorded instances and compared by
the other half; a cell that was recorded once stands in both. **Near the best:** what does the value do against the
default's, all other knobs equal, where the faster of the two lies within `NEAR` of the point's best? That is the median
over such pairs, with the interval of the sign test; settings that make the same plan share a cell and count once.

The interval of a comparison is that of the rebuilds: 1.96 standard deviations of the A/A rebuilds of that point, shared
by the instances on either side. It does not cover that the best are the best of many: it is an interval of the two
settings that were chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mjolnir.kernel.knobs import KNOBS, Setting
from mjolnir.research.answer import Answer
from mjolnir.research.bench import knobs_markdown
from mjolnir.research.bench.replay import SCHEMA, written
from mjolnir.tuner.bench import Status
from mjolnir.tuner.recording import Recording
from mjolnir.tuner.statistics import LEAST_FLOOR, median_interval

Array = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]

NEAR = 0.03
"""How far above the best of its point the faster setting of a pair may lie."""

LEAST_PAIRS = 6
"""Fewer give no interval of 95 %."""

MATTERS = 0.01
"""What holding a knob may cost before it counts: the margin that a promotion has to prove."""

EARNS, ONE, NEVER, OPEN = "earns its place", "one value serves", "never matters", "open"


@dataclass(frozen=True, slots=True)
class Cost:
    """A difference of two times, as a fraction, at the point where it is largest.

    Attributes:
        point: name of the point.
        cost: above 0 is slower.
        low, high: its 95 % interval.
    """

    point: str
    cost: float
    low: float
    high: float


@dataclass(frozen=True)
class Grid:
    """The recorded values of all measured settings.

    Attributes:
        source: the recording.
    """

    source: Recording

    @cached_property
    def settings(self) -> list[Setting]:
        """Those that were measured, in order."""
        places = range(len(self.source.settings))
        return [self.source.settings[place] for place in places if self.source.status(place) is Status.MEASURED]

    @cached_property
    def cells(self) -> Places:
        """Cell of each instance, shape (instances, settings, points)."""
        found: Places = self.source.arrays["cell"][:, [self.source.index[setting] for setting in self.settings]]
        return found

    @cached_property
    def logs(self) -> Array:
        """Logarithms of ratios to the default, free of the chain, shape of `cells`."""
        candidate, baseline, empty = (_medians(self.source, name) for name in ("candidate", "baseline", "empty"))
        found: Array = np.log((candidate - empty) / (baseline - empty))[self.cells]
        return found

    @cached_property
    def means(self) -> Array:
        """Mean over all instances, shape (settings, points)."""
        found: Array = self.logs.mean(axis=0)
        return found

    @cached_property
    def halves(self) -> tuple[Array, Array]:
        """Means over the instances that choose, and over those that value."""
        several = len(self.logs) > 1
        return self.logs[::2].mean(axis=0), (self.logs[1::2] if several else self.logs).mean(axis=0)

    @cached_property
    def instances(self) -> Places:
        """How many instances value a setting, shape (settings, points)."""
        again = (self.cells[1:] != self.cells[:1]).any(axis=0)
        found: Places = np.where(again, len(self.cells[1::2]), 1)
        return found

    @cached_property
    def spread(self) -> Array:
        """Standard deviation of an A/A rebuild at each point, a fraction."""
        names = ("rebuild_candidate", "rebuild_baseline", "rebuild_empty")
        candidate, baseline, empty = (np.median(self.source.arrays[name], axis=2) for name in names)
        found: Array = np.log((candidate - empty) / (baseline - empty)).std(axis=1, ddof=1)
        return found

    def levels(self, place: int) -> Places:
        """Values of the knob at `place`, by setting."""
        rows = [self.source.index[setting] for setting in self.settings]
        found: Places = self.source.arrays["setting"][rows, place].astype(np.int64)
        return found

    def held(self, allowed: npt.NDArray[np.bool_]) -> list[Cost]:
        """What it costs at each point to have only the settings `allowed`."""
        chosen, valued = self.halves
        costs = []
        for number, point in enumerate(self.source.workload.points):
            within = np.where(allowed, chosen[:, number], np.inf)
            mine, best = int(within.argmin()), int(chosen[:, number].argmin())
            if self.cells[0, mine, number] == self.cells[0, best, number]:
                costs.append(Cost(point.name, 0.0, 0.0, 0.0))
                continue
            off = float(valued[mine, number] - valued[best, number])
            either = 1 / self.instances[mine, number] + 1 / self.instances[best, number]
            wide = 1.96 * float(self.spread[number]) * float(np.sqrt(either))
            costs.append(Cost(point.name, *(round(float(np.expm1(x)), 5) for x in (off, off - wide, off + wide))))
        return costs

    def pairs(self, place: int, value: int, base: int) -> list[Array]:
        """At each point, logarithms of time with `value` over time with `base`, all other knobs equal.

        Those near the best of the point, each pair of cells once.
        """
        name = KNOBS[place].name
        twins = [(mine, self._places.get(replace(s, **{name: base}))) for s, mine in self._places.items()]
        mine, other = np.array([pair for pair in twins if pair[1] is not None], dtype=np.int64).reshape(-1, 2).T
        kept = self.levels(place)[mine] == value
        mine, other = mine[kept], other[kept]
        found = []
        for number in range(len(self.source.workload.points)):
            means, cells = self.means[:, number], self.cells[0, :, number]
            near = np.minimum(means[mine], means[other]) <= means.min() + np.log1p(NEAR)
            near &= cells[mine] != cells[other]
            _, once = np.unique(np.stack([cells[mine], cells[other]])[:, near], axis=1, return_index=True)
            found.append((means[mine] - means[other])[near][once])
        return found

    @cached_property
    def _places(self) -> Mapping[Setting, int]:
        return {setting: place for place, setting in enumerate(self.settings)}


def _medians(source: Recording, name: str) -> Array:
    found: Array = np.median(source.arrays[name], axis=1)
    return found


def knobs(source: Recording, out: Path | None = None) -> Answer:
    """Report on the knobs that vary in a recording, and write it to `out` where it is given."""
    grid = Grid(source)
    found = {item.name: report(grid, place) for place, item in enumerate(KNOBS) if len(set(grid.levels(place))) > 1}
    data = {
        "schema": SCHEMA,
        "bench": "knobs",
        "figures": {f"{name}_held_costs": facts["held"]["cost"] for name, facts in found.items()},
        "knobs": found,
        "between": [probe(source, chunk["between"]) for chunk in source.chunks if "between" in chunk],
        "taken": {
            "command": "mjolnir bench knobs",
            "recording": source.name,
            "device": source.device.name,
            "kernel_hash": str(source.environment.get("kernel_hash", ""))[:12],
            "geometry": str(source.geometry),
            "settings": len(grid.settings),
            "policy": source.environment.get("policy"),
            "how": " ".join((__doc__ or "").split("\n\n", 1)[1].split()),
        },
    }
    return Answer(data, "\n".join([knobs_markdown.table(data), *written(data, out, indent=1)]))


def report(grid: Grid, place: int) -> dict[str, Any]:
    """What is known of the knob at `place`: the best single value, every value, what it does near the best."""
    levels, base = grid.levels(place), getattr(grid.source.default, KNOBS[place].name)
    held = {int(value): grid.held(levels == value) for value in np.unique(levels)}
    worst = {value: max(costs, key=lambda cost: cost.cost) for value, costs in held.items()}
    single = knobs_markdown.cheapest({value: cost.cost for value, cost in worst.items()}, base)
    return {
        "default": base,
        "single": single,
        "held": asdict(worst[single]),
        "verdict": verdict(worst[single], [cost for costs in held.values() for cost in costs]),
        "values": {
            str(value): {
                "worst": asdict(worst[value]),
                "best": asdict(min(costs, key=lambda cost: cost.cost)),
                "near": [] if value == base else _near(grid, place, value, base),
            }
            for value, costs in held.items()
        },
    }


def verdict(single: Cost, every: Sequence[Cost]) -> str:
    """Whether a knob has to be chosen by point, has one value for all, or makes no difference with any value."""
    if single.low > LEAST_FLOOR and single.cost > MATTERS:
        return EARNS
    if all(cost.high < MATTERS for cost in every):
        return NEVER
    return ONE if single.high < MATTERS else OPEN


def _near(grid: Grid, place: int, value: int, base: int) -> list[dict[str, Any]]:
    rows = []
    for point, logs in zip(grid.source.workload.points, grid.pairs(place, value, base), strict=True):
        if len(logs) >= LEAST_PAIRS:
            interval = median_interval(logs.tolist())
            numbers = (float(np.expm1(x)) for x in (np.median(logs), interval.low, interval.high))
            change, low, high = (round(x, 5) for x in numbers)
            rows.append({"point": point.name, "change": change, "low": low, "high": high, "pairs": len(logs)})
    return rows


def probe(source: Recording, between: Mapping[str, Any]) -> dict[str, Any]:
    """What the recorder saw of prefetch distances that the grid leaves out, and where those settings lie.

    Returns:
        `settings`: how many were looked at; `points`: for each its name, the noise of a rebuild, `fastest`, the least
        time over the best's without prefetch, and for each distance the mean difference from its neighbours.
    """
    grid = Grid(source)
    plain = grid.levels([item.name for item in KNOBS].index("l2_prefetch")) == 0
    rows = []
    for place, entry in enumerate(between["points"]):
        number = int(entry["point"])
        least = min(min(row["ratios"][place]) for row in between["table"])
        best = float(np.exp(grid.means[plain, number].min()))
        off = {distance: facts["mean"] for distance, facts in entry["distances"].items()}
        name = source.workload.points[number].name
        rows.append({"point": name, "noise": entry["noise"], "fastest": round(least / best, 4), "off": off})
    return {"settings": between["settings"], "points": rows}
