"""`mjolnir bench rule`: a rule for the built-in default, fitted on recorded times, and what it would cost and save.

A launch is an amount of items, one for each sequence, KV head and row block. Where there is at most one item for each
SM, every item is split, and one CTA of eight warps on each SM streams fastest; where there are more, two CTAs of four
warps hide each other's ends. Few stages suffice for the latter, one more where pages are short or the query has many
rows. Splits are left to the planner and PDL to the campaign: in the chain in which the kernel is served it gains
nothing beyond the noise at any point of the recording.

The rule is held against the fastest setting that is on record at each place: in a recording of the whole grid, and
among the dozen that `mjolnir bench kernel` tried at each of its spots. Times of the latter are those of launches behind
one another, mostly with PDL; a setting that was tried with PDL alone is taken with it, and the default as it was tried.
`held_out` is the geometric mean for a group when the numbers of the rule are chosen by the other groups alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from mjolnir.kernel.device import Device
from mjolnir.kernel.engine import engine_for
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import infeasible, resolve
from mjolnir.research.answer import Answer
from mjolnir.research.bench.knobs import Grid
from mjolnir.research.bench.points import parse
from mjolnir.research.bench.replay import SCHEMA, written
from mjolnir.research.bench.rows import GRAPH, HEAD_MAJOR
from mjolnir.tuner.recording import Recording

WIDE = 8
"""Computing warps of the only CTA of an SM."""

FEW_ROWS = 8
"""Query rows up to which a tile's work hides behind its load with two stages."""

LONG_PAGE = 64
"""Tokens of a page that holds a whole tile."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The numbers of the rule.

    Attributes:
        full: items for each SM up to which one CTA has it for itself.
        alone: stages of such a CTA.
        shared: stages of each of two.
        more: stages of each of two where pages are short or rows are many.
    """

    full: float = 1.0
    alone: int = 4
    shared: int = 2
    more: int = 3

    def setting(self, geometry: Geometry, device: Device, batch: int) -> Setting:
        """The setting for a batch; the built-in default where what the rule says does not fit."""
        items = batch * geometry.heads_kv * engine_for(geometry, device.arch, warps=WIDE).blocks
        wide = Setting(1, self.alone, WIDE)
        if items <= self.full * device.sm_count and not infeasible(wide, geometry, device):
            return resolve(wide, geometry, device)
        many = geometry.rows > FEW_ROWS or geometry.page_size < LONG_PAGE
        two = Setting(2, self.more if many else self.shared)
        return resolve(Setting() if infeasible(two, geometry, device) else two, geometry, device)

    def words(self) -> str:
        """The rule as a sentence."""
        two = f"{Setting().consumer_warps} warps and {self.shared} stages"
        return (
            f"Up to {self.full:g} x SMs items one CTA of {WIDE} warps and {self.alone} stages on each SM; beyond, two "
            f"of {two}, or {self.more} where a page is shorter than {LONG_PAGE} tokens or there are more than "
            f"{FEW_ROWS} query rows. (An item is a sequence, a KV head and a row block.)"
        )


RULES = tuple(Rule(full, 4, shared, more) for full, shared, more in product((0.25, 0.5, 1.0, 2.0, 4.0), (2, 3), (2, 3)))
"""What is chosen among."""


@dataclass(frozen=True)
class Place:
    """A geometry and lengths at which several settings were timed.

    Attributes:
        group: whose times can be compared: what was measured together, of one geometry.
        name: batch and context.
        geometry: the problem.
        batch: sequences.
        times: of each setting, resolved; any unit.
    """

    group: str
    name: str
    geometry: Geometry
    batch: int
    times: Mapping[Setting, float]

    def time(self, setting: Setting) -> float | None:
        """The time of a setting, with PDL where it was tried with it alone; None where it was not tried."""
        return self.times.get(setting, self.times.get(replace(setting, pdl=1)))

    def regret(self, setting: Setting) -> float | None:
        """Its time over that of the fastest."""
        time = self.time(setting)
        return None if time is None else time / min(self.times.values())


def of_recording(source: Recording) -> Iterator[Place]:
    """The points of a recording."""
    grid = Grid(source)
    for number, point in enumerate(source.workload.points):
        times = dict(zip(grid.settings, np.exp(grid.means[:, number]).tolist(), strict=True))
        yield Place(f"recording {source.name}", point.name, source.geometry, point.batch, times)


def of_results(results: Mapping[str, Any], device: Device) -> Iterator[Place]:
    """The spots of `mjolnir bench kernel`, with what was tried there."""
    names = ("heads_q", "heads_kv", "head_dim", "page_size", "q_len", "causal", "q_format")
    for row in results["rows"]:
        if (row["kernel"], row["timing"], row["layout"]) != ("mjolnir", GRAPH, HEAD_MAJOR) or "tried" not in row:
            continue
        geometry = Geometry(**{name: row[name] for name in names})
        tried = {way.removeprefix(HEAD_MAJOR).strip(): us for way, us in row["tried"].items() if isinstance(us, float)}
        times = {resolve(_setting(way), geometry, device): us for way, us in tried.items()}
        yield Place(f"kernel {geometry}", row["lengths"], geometry, len(parse(row["lengths"])), times)


def _setting(way: str) -> Setting:
    """The inverse of how the bench names a setting."""
    parts = () if way == "default" else (part.split("=") for part in way.split())
    return Setting.from_dict({name: int(value) for name, value in parts})


def regrets(rule: Rule, places: Sequence[Place], device: Device) -> list[float | None]:
    """Regret of the rule at each place, None where what it says was not timed."""
    return [place.regret(rule.setting(place.geometry, device, place.batch)) for place in places]


def fitted(places: Sequence[Place], device: Device) -> Rule:
    """The rule of least regret in the geometric mean over the places at which all of `RULES` were timed."""
    table = np.array([regrets(rule, places, device) for rule in RULES], dtype=np.float64)
    known = table[:, np.isfinite(table).all(axis=0)]
    return RULES[int(np.log(known).mean(axis=1).argmin())]


def rule(source: Recording, results: Mapping[str, Any], out: Path | None = None) -> Answer:
    """Fit the rule, hold it against the best on record and the built-in default, and write it to `out` if given."""
    device = source.device
    places = [*of_recording(source), *of_results(results, device)]
    best = fitted(places, device)
    rows = [_row(best, place, device) for place in places]
    groups = list(dict.fromkeys(place.group for place in places))
    table = {group: _summary(best, group, places, rows, device) for group in groups}
    known = [row for row in rows if row["regret"] is not None and row["regret_default"] is not None]
    figures = {
        "rule_regret": round(geometric_mean(row["regret"] for row in known), 4),
        "rule_regret_worst": max(row["regret"] for row in known),
        "default_regret": round(geometric_mean(row["regret_default"] for row in known), 4),
        "default_regret_worst": max(row["regret_default"] for row in known),
        "rule_gain": round(geometric_mean(row["regret_default"] / row["regret"] for row in known), 4),
        "places": len(known),
    }
    data = {
        "schema": SCHEMA,
        "bench": "rule",
        "figures": figures,
        "rule": asdict(best),
        "groups": table,
        "rows": rows,
        "taken": {
            "command": "mjolnir bench rule",
            "recording": source.name,
            "how": " ".join((__doc__ or "").split("\n\n", 1)[1].split()),
        },
    }
    lines = [best.words(), "", *(f"{name:24} {value:>8g}" for name, value in figures.items()), "", *_lines(table)]
    return Answer(data, "\n".join([*lines, *written(data, out, indent=1)]))


def _lines(table: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A line for each group, with a head."""
    wide = max(map(len, table))
    columns = ("places", "rule", "rule_worst", "held_out", "default", "default_worst")
    head = f"{'time over the fastest on record':{wide}} " + " ".join(f"{name:>13}" for name in columns)
    return [
        head,
        *(f"{group:{wide}} " + " ".join(f"{facts[name]:>13g}" for name in columns) for group, facts in table.items()),
    ]


def _row(best: Rule, place: Place, device: Device) -> dict[str, Any]:
    said = best.setting(place.geometry, device, place.batch)
    default = place.regret(resolve(Setting(), place.geometry, device))
    regret = place.regret(said)
    return {
        "group": place.group,
        "place": place.name,
        "setting": said.as_dict(),
        "regret": None if regret is None else round(regret, 4),
        "regret_default": None if default is None else round(default, 4),
        "with_pdl": said not in place.times and regret is not None,
        "fastest": min(place.times, key=lambda setting: place.times[setting]).as_dict(),
    }


def _summary(
    best: Rule, group: str, places: Sequence[Place], rows: Sequence[Mapping[str, Any]], device: Device
) -> dict[str, float]:
    """Of one group: regrets of rule and default, and of the rule that the other groups choose."""
    mine = [row for row in rows if row["group"] == group and row["regret"] is not None and row["regret_default"]]
    own = [place for place in places if place.group == group]
    others = [place for place in places if place.group != group]
    held_out = fitted(others, device) if others else best
    apart = [value for value in regrets(held_out, own, device) if value is not None]
    return {
        "places": len(mine),
        "rule": round(geometric_mean(row["regret"] for row in mine), 4),
        "rule_worst": max(row["regret"] for row in mine),
        "held_out": round(geometric_mean(apart), 4),
        "default": round(geometric_mean(row["regret_default"] for row in mine), 4),
        "default_worst": max(row["regret_default"] for row in mine),
    }
