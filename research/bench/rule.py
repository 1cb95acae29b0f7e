"""`mjolnir bench rule`: the numbers of the built-in rule (`kernel.rule`), fitted on times, and what it costs and saves.

The rule is held against the fastest setting that is on record at each place: in a recording of the whole grid, in the
trials of campaigns on a GPU (a place is a bucket of a campaign), and among the dozen that `mjolnir bench kernel` tried
at each of its spots. Times of the latter are those of launches behind one another, mostly with PDL; a setting that was
tried with PDL alone is taken with it, and `Setting()` as it was tried. A split limit counts as none where the plans are
the same, and where uneven lengths would pay for it its times are left out, as no table holds it.
`held_out` is the geometric mean for a group when the numbers of the rule are chosen by the other groups alone.
`default_regret` is that of `Setting()`, which all ratios of the tuner are relative to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np

from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.rule import BUILT_IN, Rule
from mjolnir.kernel.sources import kernel_hash
from mjolnir.kernel.variant import Variant, infeasible, resolve
from mjolnir.research.answer import Answer, Failure, UsageFailure
from mjolnir.research.bench.knobs import Grid
from mjolnir.research.bench.live import load
from mjolnir.research.bench.points import parse
from mjolnir.research.bench.replay import SCHEMA, written
from mjolnir.research.bench.rows import GRAPH, HEAD_MAJOR
from mjolnir.research.summary import bodies
from mjolnir.tuner import uneven
from mjolnir.tuner.bench import Status
from mjolnir.tuner.gpu.plans import plan_digests
from mjolnir.tuner.recording import Recording
from mjolnir.tuner.workload import Workload

RULES = tuple(
    Rule(full=full, few=few, shared=shared, more=more)
    for full, few, shared, more in product((0.25, 0.5, 1.0, 2.0, 4.0), (0.0, 0.0625, 0.125, 0.25), (2, 3), (2, 3))
)
"""What is chosen among."""


RESULTS = Path(__file__).resolve().parent / "results" / "kernel-peers-h200.json"
"""What `mjolnir bench kernel --tune` measured, in the checkout that the package is installed from."""

SUMMARY = ("places", "rule", "rule_worst", "held_out", "default", "default_worst")
"""What is said of a group."""


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


def of_run(records: Sequence[Mapping[str, Any]]) -> Iterator[Place]:
    """The buckets of a campaign; times are ratios to `Setting()`, medians over the trials of a setting.

    What cannot run with the kernel as it is was measured with an earlier one, and is left out.
    """
    campaign = bodies(records, "campaign")[-1]
    geometry, workload = Geometry.from_dict(campaign["geometry"]), Workload.from_dict(campaign["workload"])
    device = Device(**campaign["device"])
    measured = [body for body in _measured(records) if not _outdated(body, geometry, device)]
    for bucket in workload.buckets:
        ratios: dict[Setting, list[float]] = {}
        for body in measured:
            setting = _unlimited(Setting.from_dict(body["resolved"]), workload, bucket, geometry, device)
            if uneven.serves(setting, bucket, geometry, device):
                ratios.setdefault(setting, []).append(body["ratios"][str(bucket)])
        times = {setting: median(values) for setting, values in ratios.items()}
        if not times:
            continue
        yield Place(f"campaign {geometry}", f"batch {bucket}", geometry, bucket, times)


def _measured(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [body for body in bodies(records, "trial") if body["status"] == Status.MEASURED]


def _outdated(trial: Mapping[str, Any], geometry: Geometry, device: Device) -> bool:
    """Whether its setting cannot run with the kernel as it is."""
    return infeasible(Setting.from_dict(trial["resolved"]), geometry, device) is not None


def _left_out(folder: Path, records: Sequence[Mapping[str, Any]], device: Device) -> Iterator[str]:
    """How many trials of a run are of settings that cannot run any more, as a sentence; nothing where all can."""
    geometry, trials = Geometry.from_dict(bodies(records, "campaign")[-1]["geometry"]), _measured(records)
    if count := sum(_outdated(body, geometry, device) for body in trials):
        epochs = bodies(records, "epoch")
        theirs = epochs[-1]["parts"]["kernel_hash"][:12] if epochs else "another one"
        yield (
            f"{folder}: {count} of {len(trials)} trials are left out: their settings cannot run with the kernel as it "
            f"is ({kernel_hash()[:12]}); that of the run was {theirs}"
        )


def _unlimited(setting: Setting, workload: Workload, bucket: int, geometry: Geometry, device: Device) -> Setting:
    """The setting without its split limit, where it has one that changes no plan of the bucket, nor the binary."""
    free = replace(setting, max_splits=0)
    plans = [plan_digests(each, workload, geometry, device) for each in (setting, free)]
    same = all(plans[0][point] == plans[1][point] for point in workload.of_bucket(bucket))
    return free if same and Variant.of(free, geometry, device) == Variant.of(setting, geometry, device) else setting


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


def rule(source: Recording, results: Mapping[str, Any], runs: Sequence[Path] = (), out: Path | None = None) -> Answer:
    """Fit the rule, hold it against the best on record and `Setting()`, and write it to `out` if given.

    Args:
        source: of the whole grid.
        results: of `mjolnir bench kernel`.
        runs: folders of exported campaigns on a GPU.
        out: the file.

    Raises:
        UsageFailure: a folder that holds no run on a GPU, or one of another device than the recording's.
    """
    device = source.device
    read = {folder: _records(folder, device) for folder in runs}
    campaigns = [place for records in read.values() for place in of_run(records)]
    places = [*of_recording(source), *campaigns, *of_results(results, device)]
    best = fitted(places, device)
    rows = [_row(best, place, device) for place in places]
    known = [row for row in rows if row["regret"] is not None and row["regret_default"] is not None]
    groups = list(dict.fromkeys(row["group"] for row in known))
    table = {group: _summary(best, group, places, rows, device) for group in groups}
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
            "runs": [folder.name for folder in runs],
            "how": " ".join((__doc__ or "").split("\n\n", 1)[1].split()),
        },
    }
    lines = [f"{name:24} {value:>8g}" for name, value in figures.items()]
    in_force = "as built in" if best == BUILT_IN else f"built in is {_words(BUILT_IN)}"
    width = max(map(len, table))
    lines += [note for folder, records in read.items() for note in _left_out(folder, records, device)]
    lines += ["", f"{'group':{width}}" + "".join(f"{name:>14}" for name in SUMMARY)]
    lines += [f"{group:{width}}" + "".join(f"{facts[name]:14g}" for name in SUMMARY) for group, facts in table.items()]
    return Answer(data, "\n".join([f"rule: {_words(best)} ({in_force})", *lines, *written(data, out, indent=1)]))


def _words(found: Rule) -> str:
    return " ".join(f"{name}={value:g}" for name, value in asdict(found).items())


def _records(folder: Path, device: Device) -> list[Mapping[str, Any]]:
    try:
        records, _ = load(folder)
    except Failure as error:
        raise UsageFailure(f"--run: {error}") from error
    if Device(**bodies(records, "campaign")[-1]["device"]) != device:
        raise UsageFailure(f"--run: {folder} is of another device than the recording, {device.name}")
    return records


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
