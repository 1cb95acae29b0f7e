"""What is tried first: near rows and trials, nearest first, and only what can run."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mjolnir import ledger as ledgers
from mjolnir.backend.lookup import Defaults
from mjolnir.backend.table import Row, Table
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.research import planning
from mjolnir.research.answer import UsageFailure
from mjolnir.research.cli.app import app
from mjolnir.research.warmstart import MOST, near_settings
from mjolnir.tuner import synthetic
from mjolnir.tuner.options import Options
from mjolnir.tuner.promotion import table_key
from mjolnir.tuner.replay import ReplayBench
from mjolnir.tuner.workload import Workload, uniform
from tests.backend.rows import row

WORKLOAD = Workload("two", (uniform(8, 4096), uniform(64, 4096)))
GRID = {"ctas_per_sm": (1, 2), "kv_stages": (2, 4, 5), "pdl": (0, 1), "max_splits": (0, 1, 4)}
BENCH = ReplayBench(synthetic.make(values=GRID, workload=WORKLOAD))
RULE = Setting(2, 2)
"""What the built-in rule says of both buckets."""

NEAR, FAR, OTHER = Setting(1, 2), Setting(1, 4), Setting(1, 5)


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    with ledgers.open(tmp_path / "ledger", git="off") as opened:
        yield opened


def tables(*rows: Row) -> Defaults:
    return Defaults((Table("user table", rows),))


def add_campaign(ledger: Any, tag: str, trials: list[tuple[Setting, float]], **changes: Any) -> None:
    body = {
        "geometry": BENCH.geometry.as_dict(),
        "device": asdict(BENCH.device),
        "simulated": True,
        "workload": WORKLOAD.as_dict(),
        **changes,
    }
    with ledger.writer(tag, {}) as writer:
        writer.append("campaign", body)
        for number, (setting, ratio) in enumerate(trials, 1):
            writer.append("trial", trial(number, setting, ratio))


def trial(number: int, setting: Setting, ratio: float) -> dict[str, Any]:
    return {
        "trial": number, "status": "measured", "resolved": setting.as_dict(), "setting": setting.as_dict(),
        "ratios": {"8": ratio, "64": 2 - ratio}, "ratio": ratio, "verdict": "keep", "changed": {},
        "epoch": "e", "clock": 0.0, "bucket": None, "reason": "", "kept_buckets": [],
    }  # fmt: skip


def test_rows_of_near_problems_come_nearest_first_and_exact_rows_not_at_all(ledger: Any) -> None:
    defaults = tables(
        row(8, Setting(2, 2)),  # in force: asked as such
        row(16, NEAR),
        row(16, FAR, arch="sm_100a", device="NVIDIA B200", sm_count=148),
        row(16, Setting(2, 4), heads_q=16),  # another GQA ratio
    )
    assert near_settings(BENCH, defaults, ledger, "mine") == (RULE, NEAR, FAR)


def test_what_cannot_run_here_is_left_out(ledger: Any) -> None:
    defaults = tables(row(16, Setting(3, 2)), row(4, Setting(1, 12)), row(32, NEAR))
    assert near_settings(BENCH, defaults, ledger, "mine") == (RULE, NEAR)


def test_the_best_trials_of_near_campaigns_follow_the_rows(ledger: Any) -> None:
    add_campaign(ledger, "near", [(Setting(2, 2), 0.9), (OTHER, 0.8), (Setting(2, 4), 0.95), (Setting(2, 6), 1.3)])
    add_campaign(ledger, "live", [(Setting(2, 4, max_splits=1), 0.5)], simulated=False)
    add_campaign(ledger, "heads", [(Setting(2, 4, max_splits=4), 0.5)], geometry=Geometry(64, 8).as_dict())
    add_campaign(ledger, "mine", [(Setting(2, 2, max_splits=4), 0.1)])
    found = near_settings(BENCH, tables(row(16, NEAR)), ledger, "mine")
    assert found == (RULE, NEAR, Setting(2, 5), OTHER, Setting(2, 4))
    many = [(setting, 0.5 + place / 100) for place, setting in enumerate(BENCH.settings())]
    for number in range(8):
        add_campaign(ledger, f"more{number}", many[4 * number : 4 * number + 4])
    assert len(near_settings(BENCH, tables(), ledger, "mine")) == MOST


def test_dry_run_says_what_would_be_done_and_appends_nothing(tmp_path: Path, recording: Path) -> None:
    place = tmp_path / "ledger"
    arguments = ["autoresearch", "run", "--device", "replay", "--recording", str(recording), "--ledger", str(place)]
    done = CliRunner().invoke(app, [*arguments, "--dry-run", "--json", "--pin", "pdl=1"])
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data["space"]["dimensions"]["pdl"] == {"knobs": ["pdl"], "values": [[1]]}
    assert data["space"]["size"] == 21
    assert data["trials"] == 21
    assert data["compiles"] == {"space": 14, "most": 14}
    assert 0.005 < data["smallest_gain"] < 0.05
    assert not (place / "ledger.jsonl").exists()


def test_a_plan_that_can_prove_nothing_is_refused_before_it_starts(tmp_path: Path, recording: Path) -> None:
    place = tmp_path / "ledger"
    arguments = ["autoresearch", "run", "--device", "replay", "--recording", str(recording), "--ledger", str(place)]
    for more in ([], ["--dry-run"]):
        done = CliRunner().invoke(app, [*arguments, "--instances", "20", *more])
        assert done.exit_code == 2, done.output
        assert "a gain needs 12 processes in favour, and --instances 20 with --group 2 are 10" in done.output
        assert "give --instances 24 at least, a smaller --group, or a larger --alpha" in done.output
    assert not (place / "ledger.jsonl").exists()
    assert CliRunner().invoke(app, [*arguments, "--instances", "24", "--dry-run"]).exit_code == 0


def test_earlier_attempts_on_the_least_tried_bucket_count_in_the_plan() -> None:
    body = {"certificate": {"kernel_hash": BENCH.environment.get("kernel_hash"), "instances": 6}}
    buckets = BENCH.workload.buckets
    papers = [{"body": {**body, "key": table_key(BENCH, bucket)}} for bucket in (*buckets, *buckets[1:])]
    assert [planning.attempt(BENCH, papers), planning.attempt(BENCH, papers[1:])] == [2, 1]
    planning.require_provable(BENCH, Options(instances=20), papers[1:])
    with pytest.raises(UsageFailure, match="in attempt 2 a gain needs 12 processes"):
        planning.require_provable(BENCH, Options(instances=20), papers)


def test_a_proposer_that_cannot_run_is_refused_before_anything_is_recorded(
    tmp_path: Path, recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cmaes", None)
    fixed = ["--device", "replay", "--recording", str(recording), "--ledger", str(tmp_path / "ledger")]
    done = CliRunner().invoke(app, ["autoresearch", "run", *fixed, "--proposer", "cmaes"])
    assert done.exit_code == 3
    assert "--proposer: the proposer cmaes needs a package: pip install cmaes" in done.output
    assert not (tmp_path / "ledger" / "ledger.jsonl").exists()


def test_a_resumed_campaign_keeps_what_it_tried_first(tmp_path: Path, recording: Path) -> None:
    def run(*more: str) -> None:
        place = tmp_path / "ledger"
        fixed = ["--device", "replay", "--recording", str(recording), "--ledger", str(place), "--proposer", "random"]
        done = CliRunner().invoke(app, ["autoresearch", "run", *fixed, "--effort", "quick", *more])
        assert done.exit_code == 0, done.output

    run("--tag", "first", "--trials", "12")
    run("--tag", "second", "--trials", "3", "--warm-start")
    run("--tag", "second", "--trials", "12", "--resume")
    with ledgers.open(tmp_path / "ledger") as opened:
        body = opened.records("second", "campaign")[-1].body
        origins = [record.body["proposal"]["origin"] for record in opened.records("second", "trial")]
        incumbents = list(body["incumbents"].values())
        cold = opened.records("first", "campaign")[-1].body["enqueued"]
    assert cold == []
    default = Setting(2, 5).as_dict()
    fresh = [setting for setting in body["enqueued"] if setting not in [*incumbents, default]]
    assert origins.count("enqueued") == len(fresh) > 0
