"""`mjolnir bench replay`: how fast a replayed campaign goes, and what the framework itself costs a trial.

A figure is taken over the search of one campaign. The durable one writes a ledger inside a fresh git repository, with
its last flush; the one in memory keeps nothing. What a trial costs beside the bench is the time between two records,
less the time inside the bench; an equal append with fsync is timed on the same disk between the trials, and its median
is taken off. With the random proposer the campaign is run three times and the fastest counts, since other processes of
the machine only slow it down; with tpe it is run once.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from platform import machine, python_version, system
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from mjolnir import ledger as ledgers
from mjolnir.research.answer import Answer
from mjolnir.research.bodies import campaign_body, environment, epoch_body
from mjolnir.research.journal import LedgerJournal
from mjolnir.research.request import Request
from mjolnir.tuner import coordinator, recording, synthetic
from mjolnir.tuner.journal import Journal, MemoryJournal
from mjolnir.tuner.options import Options
from mjolnir.tuner.replay import ReplayBench

if TYPE_CHECKING:
    from mjolnir.kernel.knobs import Setting
    from mjolnir.tuner.bench import Outcome, Race
    from mjolnir.tuner.coordinator import Progress
    from mjolnir.tuner.recording import Recording

SCHEMA = "mjolnir.bench/1"
PROBE_EVERY = 5
"""Trials between two timed appends with fsync."""

RUNS = 3
"""Runs of which the fastest counts."""

LAST_SHARE = 0.2
"""The cost of a trial is taken over this last part of the search, where every list is at its longest."""


def replay(trials: int, out: Path | None = None) -> Answer:
    """Take the figures, and write them to `out` where it is given."""
    source = _recording(trials)
    memory = _fastest(lambda: _in_memory(source, trials))
    durable = _fastest(lambda: _durable(source, trials, "random"))
    durable_tpe = _durable(source, trials, "tpe")
    figures = {
        "replay_per_s_durable": round(durable.per_second, 1),
        "replay_per_s_durable_tpe": round(durable_tpe.per_second, 1),
        "replay_per_s_memory": round(memory.per_second, 1),
        "own_ms_over_fsync": round(durable.own_ms - durable.fsync_ms, 3),
        "own_ms": round(durable.own_ms, 3),
        "fsync_ms": round(durable.fsync_ms, 3),
    }
    data = {"schema": SCHEMA, "bench": "replay", "figures": figures, "taken": _taken(source, trials)}
    lines = [f"{name:26} {value:>10}" for name, value in figures.items()]
    return Answer(data, "\n".join([*lines, *written(data, out, indent=2)]))


def written(data: Mapping[str, Any], out: Path | None, indent: int) -> list[str]:
    """Write the figures of a bench to `out` where it is given; returns the line that says so."""
    if out is None:
        return []
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(data, indent=indent, sort_keys=True) + "\n", encoding="utf-8")
    return [f"written to {out}"]


def _taken(source: Recording, trials: int) -> dict[str, Any]:
    return {
        "trials": trials,
        "recording": source.name,
        "settings": len(source.settings),
        "proposer": "random, and tpe where the name says so",
        "machine": {"cpus": os.cpu_count(), "python": python_version(), "system": system(), "arch": machine()},
        "how": " ".join((__doc__ or "").split("\n\n", 1)[1].split()),
    }


def _recording(trials: int) -> Recording:
    """The packaged recording with the most settings, or a synthetic one where it has too few."""
    packaged = [recording.packaged(name) for name in recording.packaged_names()]
    largest = max(packaged, key=lambda entry: len(entry.settings), default=None)
    return largest if largest and len(largest.settings) >= trials else synthetic.make()


@dataclass(slots=True)
class Stopwatch:
    """Watches the search of a campaign: when each trial was recorded, and what an append with fsync takes meanwhile."""

    bench: TimedBench
    probe: Path | None = None
    own: list[float] = field(default_factory=list)
    fsyncs: list[float] = field(default_factory=list)
    trials: int = 0
    began: float = 0.0
    ended: float = 0.0
    aside: float = 0.0
    _last: float = 0.0
    _inside: float = 0.0

    def update(self, progress: Progress) -> None:
        """Take a record's time; a probe's own time counts for nothing."""
        now = perf_counter()
        if progress.phase != "search":
            if not self.trials:
                self.began = self._last = now
                self._inside = self.bench.inside
            return
        self.own.append(now - self._last - (self.bench.inside - self._inside))
        self.trials = progress.trials
        if self.probe and self.trials % PROBE_EVERY == 0:
            self.fsyncs.append(_timed_append(self.probe, progress.record))
        self.ended = now
        self._last, self._inside = perf_counter(), self.bench.inside
        self.aside += self._last - now

    @property
    def per_second(self) -> float:
        """Trials a second, probes left out."""
        return self.trials / (self.ended - self.began - self.aside)

    @property
    def own_ms(self) -> float:
        """Median cost of one of the last trials beside the bench, in ms."""
        return 1e3 * median(self.own[-max(1, int(len(self.own) * LAST_SHARE)) :])

    @property
    def fsync_ms(self) -> float:
        """Median time of an equal append with fsync, in ms."""
        return 1e3 * median(self.fsyncs)


class TimedBench(ReplayBench):
    """A replay that knows how long it was busy itself."""

    inside = 0.0

    def submit(self, setting: Setting) -> None:
        """See `Bench`."""
        begin = perf_counter()
        super().submit(setting)
        self.inside += perf_counter() - begin

    def measure(self, trial: int, setting: Setting, fault: str = "none", race: Race | None = None) -> Outcome:
        """See `Bench`."""
        before, begin = self.inside, perf_counter()
        outcome = super().measure(trial, setting, fault, race)
        self.inside = before + perf_counter() - begin  # `submit` is called in there and counted itself
        return outcome


def _timed_append(path: Path, record: Mapping[str, Any]) -> float:
    """Seconds to append a line as long as the record's, with fsync."""
    line = json.dumps(record).encode() + b"\n"
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        begin = perf_counter()
        os.write(handle, line)
        os.fsync(handle)
        return perf_counter() - begin
    finally:
        os.close(handle)


def _fastest(run: Callable[[], Stopwatch]) -> Stopwatch:
    return max((run() for _ in range(RUNS)), key=lambda watch: watch.per_second)


def _in_memory(source: Recording, trials: int) -> Stopwatch:
    watch = Stopwatch(TimedBench(source))
    _search(watch, MemoryJournal(), trials, "random")
    return watch


def _durable(source: Recording, trials: int, proposer: str) -> Stopwatch:
    with tempfile.TemporaryDirectory(prefix="mjolnir-bench-") as name:
        folder = Path(name)
        subprocess.run(["git", "init", "--quiet", name], check=True, timeout=60)
        watch = Stopwatch(TimedBench(source), folder / "probe")
        with ledgers.open(folder / "ledger") as ledger:
            with ledger.writer("bench", environment(watch.bench)) as writer:
                _search(watch, LedgerJournal(ledger, writer, "bench"), trials, proposer)
                begin = perf_counter()
            watch.ended += perf_counter() - begin
    return watch


def _search(watch: Stopwatch, journal: Journal, trials: int, proposer: str) -> None:
    """Run one campaign until its search has ended; what comes after it is no part of the figures."""
    options = Options(trials=trials, minutes=1e6, proposer=proposer, noise=1)
    journal.append("campaign", campaign_body(Request(), watch.bench, options))
    journal.append("epoch", epoch_body(watch.bench))
    coordinator.run(watch.bench, journal, options, watch, stop=lambda: watch.trials >= trials)
