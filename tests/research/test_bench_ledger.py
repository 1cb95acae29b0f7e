"""The ledger's bench: its trials are like real ones, and its figures are what it says they are."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from statistics import mean

import pytest

from mjolnir import ledger as ledgers
from mjolnir.ledger.parsing import parse
from mjolnir.ledger.spelling import canonical
from mjolnir.research.answer import Failure
from mjolnir.research.bench import ledger as bench
from mjolnir.research.bench.ledger_trials import SAMPLES, Trials, fill, lines
from mjolnir.research.journal import as_mapping
from mjolnir.research.summary import summarize

RUN = Path(__file__).parents[2] / "research" / "runs" / "h200-decode8" / "ledger.jsonl"


def sizes(bodies):
    """Mean bytes of bodies, plain and deflated."""
    texts = [canonical(body) for body in bodies]
    return mean(map(len, texts)), mean(len(zlib.compress(text, 9)) for text in texts)


def shortened(value, key=""):
    """A body as it would be recorded today, with fewer digits than that run has."""
    if isinstance(value, dict):
        return {name: shortened(item, "correctness" if key == "correctness" else name) for name, item in value.items()}
    if isinstance(value, list):
        return [shortened(item, key) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if key == "correctness" else round(value, 6 if len(str(value)) > 18 else 9)
    return value


@pytest.mark.skipif(not RUN.is_file(), reason="the exported run is not beside these tests")
def test_synthetic_trials_are_as_large_and_as_hard_to_compress_as_real_ones():
    lines = map(parse, RUN.read_bytes().splitlines())
    real = [shortened(record.body) for record in lines if record.kind == "trial"]
    made = [body for body in map(Trials().body, range(1, 200)) if body["status"] == "measured"]
    assert [len(body["timings"]) for body in made[:3]] == [8, 8, 8]
    timing = made[0]["timings"][0]
    assert len(timing["baseline"]) + len(timing["difference"]) + len(timing["empty"]) == SAMPLES // 8
    for own, other in zip(sizes(made), sizes(real), strict=True):
        assert own == pytest.approx(other, rel=0.05)


def test_a_filled_ledger_is_whole_and_can_be_told(tmp_path):
    fill(tmp_path / "ledger", "bench", 30)
    with ledgers.open(tmp_path / "ledger", git="off") as opened:
        assert opened.verify().ok
        summary = summarize([as_mapping(record) for record in opened.records("bench")])
    assert summary["trials"]["total"] == 30
    assert all(bucket["best"]["ratio"] < 1.05 for bucket in summary["buckets"])


def test_the_same_seed_gives_the_same_trials():
    first, second, other = ([record.body for record in lines("a", 5, Trials(seed))] for seed in (1, 1, 2))
    assert first == second
    assert first[2:] != other[2:]


def test_figures_are_written_with_their_targets_and_the_load(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "REPEATS", 1)
    monkeypatch.setattr(bench, "APPENDS", 20)
    monkeypatch.setattr(bench, "BATCH", 4)
    out = tmp_path / "ledger-cpu.json"
    answer = bench.ledger(out, scale=0.001)
    data = json.loads(out.read_text())
    assert data == answer.data
    figures, beside = data["figures"], data["beside"]
    assert figures.keys() == data["targets"].keys() == bench.TARGETS.keys()
    over = beside["append_ms"] - bench.SLACK * beside["fsync_ms"]
    assert figures["append_ms_over_fsync"] == pytest.approx(over, abs=2e-4)
    assert 0 < beside["list_s_1k"] <= figures["show_s_1k"]
    assert beside["show_first_s_1k"] > 0
    assert 500 < figures["bytes_per_trial"] < 6000
    assert figures["append_growth_100k"] > 0
    assert figures["help_s"] > 0
    assert all(line.split()[-1] for line in str(answer.view).splitlines())
    assert len(data["taken"]["load"]["before"]) == 3


def test_a_command_that_fails_gives_no_figure():
    with pytest.raises(Failure, match="show nothing"):
        bench._command("autoresearch", "show", "nothing", "--ledger", "/nonexistent", repeats=1)
