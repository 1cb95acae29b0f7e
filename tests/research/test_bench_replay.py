"""The replay bench writes what it measured, and counts what it says it counts."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from mjolnir.research.bench import replay
from mjolnir.tuner import synthetic


def test_figures_are_written_with_how_they_were_taken(tmp_path):
    out = tmp_path / "results" / "replay-cpu.json"
    answer = replay.replay(40, out)
    data = json.loads(out.read_text())
    assert data == answer.data
    figures = data["figures"]
    assert figures["replay_per_s_memory"] > figures["replay_per_s_durable"] > 0
    assert figures["own_ms"] > figures["fsync_ms"] > 0
    assert figures["own_ms_over_fsync"] == pytest.approx(figures["own_ms"] - figures["fsync_ms"], abs=0.0021)
    assert data["taken"]["trials"] == 40


def test_time_inside_the_bench_and_of_probes_is_left_out(monkeypatch, tmp_path):
    now = [0.0]
    monkeypatch.setattr(replay, "perf_counter", lambda: now[0])
    bench: Any = SimpleNamespace(inside=0.0)
    watch = replay.Stopwatch(bench)
    noise: Any = SimpleNamespace(phase="noise")
    watch.update(noise)
    for number in range(1, 5):
        now[0] += 1.0
        bench.inside += 0.75
        news: Any = SimpleNamespace(phase="search", trials=number, record={})
        watch.update(news)
    assert watch.own == [0.25] * 4
    assert watch.own_ms == 250
    assert watch.per_second == 1.0


def test_a_timed_bench_counts_its_own_time_once(monkeypatch):
    ticks = iter(range(100))
    bench = replay.TimedBench(synthetic.make(values={"pdl": (0, 1)}))
    monkeypatch.setattr(replay, "perf_counter", lambda: next(ticks))
    bench.measure(1, bench.recording.default)
    assert bench.inside == 3, "from the first tick to the last, the two of `submit` between them"


def test_without_a_file_the_figures_are_printed_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    answer = replay.replay(40)
    assert "replay_per_s_memory" in str(answer.view)
    assert "written to" not in str(answer.view)
    assert sorted(tmp_path.rglob("*")) == before
