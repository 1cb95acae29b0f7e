"""The rule for the built-in default: what it says, and how it is held against times."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from mjolnir.kernel.device import H200
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.rule import Rule
from mjolnir.kernel.variant import resolve
from mjolnir.research.bench.rule import RULES, Place, fitted, of_recording, of_results, of_run, regrets, rule
from mjolnir.tuner import synthetic
from mjolnir.tuner.recording import Recording
from mjolnir.tuner.workload import Point, Workload, uniform
from tests.research.test_cli import call

MAIN = Geometry(32, 8)
RESULTS = Path(__file__).parents[3] / "research" / "bench" / "results" / "kernel-peers-h200.json"


def test_regret_is_against_the_fastest_and_pdl_stands_in() -> None:
    wide, two = (resolve(setting, MAIN, H200) for setting in (Setting(1, 4, 8), Setting(2, 2)))
    one = Place("g", "1x4096", MAIN, 1, {wide: 11.0, two: 10.0})
    only_pdl = Place("g", "1x4096", MAIN, 1, {replace(wide, pdl=1): 12.0, two: 10.0})
    neither = Place("g", "1x4096", MAIN, 1, {two: 10.0})
    assert regrets(Rule(), [one, only_pdl, neither], H200) == [1.1, 1.2, None]


def truth(setting: Setting, point: Point) -> float:
    """The fastest is one wide CTA up to 66 items, and two CTAs of three stages beyond."""
    few = 8 * point.batch <= 66
    best = (1, 4, 8) if few else (2, 3, 4)
    return 50_000.0 if (setting.ctas_per_sm, setting.kv_stages, setting.consumer_warps) == best else 60_000.0


@pytest.fixture(scope="module")
def source() -> Recording:
    values = {"ctas_per_sm": (1, 2), "kv_stages": (2, 3, 4, 5), "consumer_warps": (4, 8)}
    workload = Workload("four", tuple(uniform(batch, 4096) for batch in (1, 6, 12, 64)))
    return synthetic.make(truth, values=values, workload=workload, noise=0.001)


def test_the_numbers_are_those_of_the_least_regret(source: Recording) -> None:
    places = list(of_recording(source))
    found = fitted(places, H200)
    assert (found.full, found.shared) == (0.5, 3)
    assert regrets(found, places, H200) == pytest.approx([1.0] * 4, abs=0.01)
    assert found in RULES


def test_results_are_read_as_they_are_written(source: Recording, tmp_path: Path) -> None:
    results: dict[str, Any] = json.loads(RESULTS.read_text())
    rows = [row for row in results["rows"] if row["kernel"] == "mjolnir"]
    places = list(of_results(results, H200))
    (place,) = [p for p in places if p.name == "1x4096" and p.geometry == MAIN]
    (row,) = [row for row in rows if row["lengths"] == "1x4096" and "tried" in row and _is_main(row)]
    assert len(place.times) == len([us for us in row["tried"].values() if isinstance(us, float)])
    assert place.times[resolve(Setting(), MAIN, H200)] == row["tried"]["BHN2D head-major default"]
    assert min(place.times, key=lambda s: place.times[s]) == Setting.from_dict(row["setting"])
    answer = rule(source, results, out=tmp_path / "rule.json")
    data = json.loads((tmp_path / "rule.json").read_text())
    assert data == json.loads(json.dumps(answer.data))
    figures = data["figures"]
    assert figures["places"] == len(data["rows"]) == len(places) + 4
    assert 1 <= figures["rule_regret"] < figures["default_regret"]
    assert figures["rule_gain"] == pytest.approx(figures["default_regret"] / figures["rule_regret"], abs=2e-4)
    assert set(data["groups"]) == {row["group"] for row in data["rows"]}
    lines = str(answer.view).splitlines()
    assert lines[0].startswith("rule: full=0.5 few=0 ")
    assert lines[0].endswith("(built in is full=1 few=0.125 wide=4 narrow=3 shared=2 more=3)")
    assert [line.split()[0] for line in lines if line.endswith("default_worst")] == ["group"]
    for group, facts in answer.data["groups"].items():  # their order in the file is another
        (line,) = (line for line in lines if line.startswith(group))
        assert [float(cell) for cell in line.removeprefix(group).split()] == pytest.approx(
            list(facts.values()), rel=1e-4
        )


def test_a_campaigns_buckets_are_places_and_limits_count_as_what_they_do() -> None:
    def trial(setting: Setting, few: float, many: float) -> dict[str, Any]:
        resolved = resolve(setting, MAIN, H200).as_dict()
        return {"kind": "trial", "body": {"status": "measured", "resolved": resolved, "ratios": {"1": few, "64": many}}}

    wide, two, outdated = Setting(1, 4, 8), Setting(2, 3), Setting(2, 6)
    workload = Workload("two", (uniform(1, 4096), uniform(64, 4096)))
    campaign = {"geometry": MAIN.as_dict(), "device": asdict(H200), "workload": workload.as_dict()}
    wrong = {"status": "incorrect", "resolved": two.as_dict(), "ratios": {}}
    few, many = of_run([
        {"kind": "campaign", "body": campaign},
        trial(wide, 0.8, 1.3),
        trial(wide, 0.9, 1.3),
        trial(wide, 0.7, 1.3),
        trial(replace(two, max_splits=512), 1.0, 0.9),
        trial(replace(two, max_splits=1), 3.0, 0.5),
        {"kind": "trial", "body": wrong},
        {"kind": "trial", "body": {"status": "measured", "resolved": outdated.as_dict(), "ratios": {"1": 0.1}}},
    ])  # fmt: skip
    assert outdated not in few.times, "it cannot run with the kernel as it is"
    assert [place.name for place in (few, many)] == ["batch 1", "batch 64"]
    assert (few.times[wide], few.time(two), few.time(replace(two, max_splits=1))) == (0.8, 1.0, 3.0)
    assert (many.times[two], many.time(replace(two, max_splits=1))) == (0.9, None)  # one long sequence would pay for it
    assert many.regret(wide) == pytest.approx(1.3 / 0.9)


def test_runs_of_an_earlier_kernel_are_taken_from_any_folder_and_a_wrong_one_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = RESULTS.parents[2] / "runs" / "h200-decode8"
    code, out, _ = call("bench", "rule", "--run", run)
    said = " ".join(out.split())
    left_out = f"{run}: 21 of 165 trials are left out: their settings cannot run with the kernel as it is"
    assert (code, left_out in said, "that of the run was " in said) == (0, True, True), said
    assert f"campaign {MAIN}" in said
    code, _, err = call("bench", "rule", "--run", tmp_path / "none")
    assert (code, f"--run: {tmp_path / 'none'} holds no exported run" in " ".join(err.split())) == (2, True)
    monkeypatch.setattr("mjolnir.research.bench.rule.RESULTS", tmp_path / "gone.json")
    code, _, err = call("bench", "rule")
    assert (code, "gone.json is not there: name what" in " ".join(err.split())) == (2, True)


def _is_main(row: dict[str, Any]) -> bool:
    names = ("heads_q", "heads_kv", "head_dim", "page_size", "q_len")
    return [row[name] for name in names] == [32, 8, 128, 64, 1] and row["layout"] == "BHN2D head-major"
