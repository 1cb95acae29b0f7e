"""`mjolnir bench tuner --part search`: how soon the search finds the best, beside other searches.

The recorded rounds are split in two. Searches see draws of the even rounds (their medians with resampled A/A noise),
one draw for each setting and seed, the same for all searches. The best setting is the one that is fastest in the even
rounds; it and what a search leads with are valued by the odd ones, so that neither is flattered by its own noise. The
regret of a search is the ratio of the two values, of the setting that leads by what was drawn so far. A split limit
that uneven lengths would pay for can be no row: it leads nowhere, and rivals see it as `UNFIT`.

A campaign of ours has one budget for all buckets, cold, without the rows in force, and ends before it is spent when
nothing is left to gain (`trials_taken`); every rival has the whole budget for each bucket by itself. Trials to 1.01x
are counted until the lead's true value, over all rounds, is within 1.01x of the best. Seeds are compared by the mean
over buckets and trials of the logarithm of the regret; the interval is that of a bootstrap over seeds of the paired
differences.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mjolnir.kernel.knobs import Setting
from mjolnir.research.answer import Answer
from mjolnir.research.bench import rivals
from mjolnir.tuner import recording
from mjolnir.tuner.bench import Outcome, Race
from mjolnir.tuner.journal import MemoryJournal
from mjolnir.tuner.options import Options
from mjolnir.tuner.proposers import make
from mjolnir.tuner.recording import Recording
from mjolnir.tuner.replay import ReplayBench
from mjolnir.tuner.search import Search
from mjolnir.tuner.session import Session
from mjolnir.tuner.space import Space
from mjolnir.tuner.statistics import Weights, noise_floor, point_ratios
from mjolnir.tuner.tape import Tape
from mjolnir.tuner.uneven import serves

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]

SCHEMA = "mjolnir.bench/1"
NAME = "tuner-search.json"
SEEDS, TRIALS, CLOSE = 20, 150, 1.01
OURS, RANDOM, TPE = "mjolnir", "random", "optuna tpe as it comes"
CHECKPOINTS = (10, 15, 20, 25, 30, 35, 40, 50, 60, 80, 100, 125, 150)
BOOTSTRAPS = 10_000

UNFIT = float(np.log(10.0))
"""The value of what can be no row, ten times the default's time: a number that every rival takes."""


class TableBench(ReplayBench):
    """A replay that draws the times of a setting once: the draw depends on the setting, not on the trial."""

    def measure(self, trial: int, setting: Setting, fault: str = "none", race: Race | None = None) -> Outcome:
        """See `Bench`."""
        return super().measure(self.recording.index[self._resolve(setting)], setting, fault, race)


@dataclass(frozen=True)
class Table:
    """A recording, its even rounds to search, and what its settings are worth."""

    source: Recording

    @cached_property
    def even(self) -> Recording:
        """The recording with the even rounds alone."""
        return self._rounds(slice(0, None, 2))

    @cached_property
    def space(self) -> Space:
        """The settings."""
        return Space(self.source.geometry, self.source.device, {}, self.source.settings)

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """The settings by their place in the space."""
        return tuple(self.space.setting(self.space.member(place)) for place in range(self.space.size))

    @cached_property
    def fit(self) -> Flags:
        """Which settings may be the row of which bucket, shape (settings of the space, buckets)."""
        place, buckets = (self.space.geometry, self.space.device), self.source.workload.buckets
        return np.array([[serves(setting, bucket, *place) for bucket in buckets] for setting in self.settings])

    @cached_property
    def truth(self) -> Array:
        """Logarithms of ratios over all rounds, shape (settings of the space, buckets)."""
        return self._values(self.source)

    @cached_property
    def regrets(self) -> Array:
        """Logarithms of the regrets of all settings: chosen on the even rounds, valued on the odd ones."""
        chosen = self._values(self.even).argmin(axis=0)
        valued = self._values(self._rounds(slice(1, None, 2)))
        found: Array = valued - valued[chosen, np.arange(valued.shape[1])]
        return found

    def draws(self, seed: int) -> Array:
        """What the searches of one seed measure, shape (settings of the space, buckets)."""
        bench, weights = TableBench(self.even, seed), Weights(self.source.workload)
        rows = []
        for setting in self.settings:
            outcome = bench.measure(0, setting)
            rows.append(list(weights.means(point_ratios(outcome.timings))[0].values()))
        found: Array = np.where(self.fit, np.log(np.array(rows)), UNFIT)
        return found

    def _rounds(self, part: slice) -> Recording:
        arrays = dict(self.source.arrays)
        for name in ("candidate", "baseline"):
            arrays[name] = arrays[name][:, part]
        return replace(self.source, arrays=arrays)

    def _values(self, source: Recording) -> Array:
        weights, arrays = Weights(source.workload), source.arrays
        candidate, baseline, empty = (np.median(arrays[n], axis=1) for n in ("candidate", "baseline", "empty"))
        ratios = ((candidate - empty) / (baseline - empty))[arrays["cell"]]
        logs = np.log(ratios).mean(axis=0)
        order = [source.index[setting] for setting in self.settings]
        values = [[weights.of_bucket(b, logs[place]) for b in source.workload.buckets] for place in order]
        found: Array = np.where(self.fit, np.array(values), UNFIT)
        return found


def search(out: Path, seeds: int = SEEDS, trials: int = TRIALS) -> Answer:
    """Take the figures and write `tuner-search.json` in the folder `out`.

    Args:
        out: the folder.
        seeds: campaigns of each search.
        trials: budget of each.

    Raises:
        MissingFailure: Kernel Tuner is not installed.
    """
    table = Table(recording.packaged(recording.packaged_names()[0]))
    ours = [campaign(table, seed, trials) for seed in range(seeds)]
    leads = {OURS: np.array([found for found, _ in ours])}
    draws = [table.draws(seed) for seed in range(seeds)]
    others: dict[str, rivals.Rival] = {RANDOM: rivals.at_random, TPE: rivals.plain_tpe}
    leads.update({name: _theirs(table, draws, trials, rival) for name, rival in others.items()})
    tried = {name: _theirs(table, draws, trials, rivals.kernel_tuner(name)) for name in rivals.STRATEGIES}
    best = min(tried, key=lambda name: float(_areas(table, tried[name]).mean()))
    leads[f"kernel_tuner {best}"] = tried[best]
    data = _data(table, leads, {name: float(_areas(table, found).mean()) for name, found in tried.items()}, trials)
    data["trials_taken"] = sorted(count for _, count in ours)
    path = out / NAME
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    lines = [f"{name:32} {value:>8g}" for name, value in data["figures"].items()]
    return Answer(data, "\n".join([*lines, f"written to {path}"]))


def campaign(table: Table, seed: int, trials: int, **options: Any) -> tuple[Places, int]:
    """The lead of each bucket after each trial of one search, shape (trials, buckets), and how many trials it took.

    Leads are places in the space; a search that ended early keeps its leads.
    """
    bench, journal = TableBench(table.even, seed), MemoryJournal()
    rules = Options(trials=trials, minutes=1e6, seed=seed, **options)
    session = Session(bench, Tape(journal, bench), rules, None, lambda: False)
    floor = noise_floor(np.log(np.array([point_ratios(bench.noise(number)) for number in range(1, rules.noise + 1)])))
    floors = {bucket: session.weights.of_bucket(bucket, floor) for bucket in bench.workload.buckets}
    Search(session, make(rules.proposer, session.space, seed, workload=bench.workload)).run(floors)
    places = {setting: place for place, setting in enumerate(table.settings)}
    bodies = [record["body"] for record in journal.records if record["kind"] == "trial"]
    order = [places[Setting.from_dict(body["resolved"])] for body in bodies]
    draws = np.full((table.space.size, len(bench.workload.buckets)), np.inf)
    for place, body in zip(order, bodies, strict=True):
        for column, bucket in enumerate(bench.workload.buckets):
            draws[place, column] = np.log(body["ratios"].get(str(bucket), np.inf))
    draws[~table.fit] = UNFIT
    leads = np.array([_lead(order, draws[:, column], trials) for column in range(draws.shape[1])]).T
    return leads, len(order)


def _theirs(table: Table, draws: list[Array], trials: int, rival: rivals.Rival) -> Places:
    """The same for a rival, which searches each bucket by itself."""
    buckets = range(len(table.source.workload.buckets))
    return np.array(
        [
            np.array([_lead(rival(table.space, y[:, b], seed, trials), y[:, b], trials) for b in buckets]).T
            for seed, y in enumerate(draws)
        ]
    )


def _lead(order: list[int], draws: Array, trials: int) -> list[int]:
    """Who leads after each trial; a search that ended earlier keeps its lead."""
    leads: list[int] = []
    for place in order[:trials]:
        leads.append(place if not leads or draws[place] < draws[leads[-1]] else leads[-1])
    return leads + [leads[-1]] * (trials - len(leads))


def _regrets(table: Table, leads: Places) -> Array:
    """Logarithms of regrets, of the shape of `leads`."""
    found: Array = table.regrets[leads, np.arange(leads.shape[2])]
    return found


def _areas(table: Table, leads: Places) -> Array:
    """Mean over buckets and trials of the logarithm of the regret, by seed."""
    found: Array = _regrets(table, leads).mean(axis=(1, 2))
    return found


def trials_to(table: Table, leads: Places, close: float = CLOSE) -> Array:
    """Median over seeds, by bucket, of the trials until the lead is within `close` of the best; inf if it never is."""
    true = table.truth[leads, np.arange(leads.shape[2])] - table.truth.min(axis=0)
    reached = true <= np.log(close)
    first = np.where(reached.any(axis=1), reached.argmax(axis=1) + 1.0, np.inf)
    found: Array = np.median(first, axis=0)
    return found


def _interval(ours: Array, theirs: Array) -> tuple[float, float]:
    """95 % bootstrap interval over seeds of the mean of ours less theirs."""
    rng = np.random.default_rng(0)
    differences = ours - theirs
    means = differences[rng.integers(len(differences), size=(BOOTSTRAPS, len(differences)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975]).tolist()
    return low, high


def _data(table: Table, leads: Mapping[str, Places], strategies: Mapping[str, float], trials: int) -> dict[str, Any]:
    areas = {name: _areas(table, found) for name, found in leads.items()}
    intervals = {name: _interval(areas[OURS], area) for name, area in areas.items() if name != OURS}
    to_close = {name: trials_to(table, found) for name, found in leads.items()}
    worst = np.exp(_regrets(table, leads[OURS])[:, -1].max())
    names = [str(bucket) for bucket in table.source.workload.buckets]
    figures = {
        "trials_to_101": _finite(to_close[OURS].max(), trials),
        "trials_to_101_random": _finite(to_close[RANDOM].max(), trials),
        "regret_worst_150": round(float(worst), 4),
        "less_regret_than_all": int(all(high < 0 for _, high in intervals.values())),
    }
    return {
        "schema": SCHEMA,
        "bench": "tuner-search",
        "figures": figures,
        "trials_to_101_by_bucket": {
            name: {bucket: _finite(value, trials) for bucket, value in zip(names, found.tolist(), strict=True)}
            for name, found in to_close.items()
        },
        "regret_less_than": {name: {"low": low, "high": high} for name, (low, high) in intervals.items()},
        "curves": {name: _curve(_regrets(table, found)) for name, found in leads.items()},
        "kernel_tuner_strategies": {name: round(float(np.exp(area)), 5) for name, area in strategies.items()},
        "taken": _taken(table, len(leads[OURS]), trials),
    }


def _finite(value: float, trials: int) -> float:
    """JSON has no infinity: what was never reached counts as one more than the budget."""
    return float(value) if np.isfinite(value) else float(trials + 1)


def _curve(regrets: Array) -> dict[str, Any]:
    """Regret after some numbers of trials: geometric mean over seeds and buckets, and the worst."""
    checkpoints = [n for n in CHECKPOINTS if n <= regrets.shape[1]]
    mean: Callable[[int], float] = lambda n: float(np.exp(regrets[:, n - 1].mean()))  # noqa: E731
    return {
        "trials": checkpoints,
        "mean": [round(mean(n), 5) for n in checkpoints],
        "worst": [round(float(np.exp(regrets[:, n - 1].max())), 5) for n in checkpoints],
    }


def _taken(table: Table, seeds: int, trials: int) -> dict[str, Any]:
    packages = {name: metadata.version(name) for name in ("optuna", "kernel_tuner", "numpy", "scipy")}
    return {
        "command": "mjolnir bench tuner --part search",
        "recording": table.source.name,
        "settings": table.space.size,
        "seeds": seeds,
        "trials": trials,
        "options": Options().as_dict(),
        "worst_bucket": "figures over buckets are those of the bucket in which the search does worst",
        "never_reached": f"{trials + 1} trials stand for more than the budget",
        "packages": packages,
        "how": " ".join((__doc__ or "").split("\n\n", 1)[1].split()),
        "rivals": " ".join((rivals.__doc__ or "").split()),
    }
