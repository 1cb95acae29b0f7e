"""The rule for the built-in default: what it says, and how it is held against times."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mjolnir.kernel.device import H200
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import infeasible, resolve
from mjolnir.research.bench.rule import RULES, Place, Rule, fitted, of_recording, of_results, regrets, rule
from mjolnir.tuner import synthetic
from mjolnir.tuner.recording import Recording
from mjolnir.tuner.workload import Point, Workload, uniform

MAIN = Geometry(32, 8)
RESULTS = Path(__file__).parents[3] / "research" / "bench" / "results" / "kernel-peers-h200.json"


@pytest.mark.parametrize(
    ("geometry", "batch", "expected"),
    [
        (MAIN, 16, Setting(1, 4, 8)),
        (MAIN, 17, Setting(2, 2)),
        (replace(MAIN, page_size=16), 17, Setting(2, 3)),
        (replace(MAIN, q_len=4), 17, Setting(2, 3)),
        (Geometry(16, 2, head_dim=256), 66, Setting(1, 4, 8)),
        (Geometry(16, 2, head_dim=256), 67, Setting(2, 2)),
        (Geometry(64, 8, q_len=8), 1, Setting(2, 3)),
    ],
)
def test_one_cta_where_an_sm_has_at_most_one_item(geometry: Geometry, batch: int, expected: Setting) -> None:
    assert Rule().setting(geometry, H200, batch) == resolve(expected, geometry, H200)


def test_what_does_not_fit_is_left_to_the_built_in_default() -> None:
    deep = Rule(alone=12, shared=12, more=12)
    for batch in (1, 64):
        assert deep.setting(MAIN, H200, batch) == resolve(Setting(), MAIN, H200)


@pytest.mark.parametrize("heads", [(8, 1), (32, 8), (64, 8), (128, 8), (16, 16)])
@pytest.mark.parametrize("q_len", [1, 3, 8])
def test_what_the_rule_says_can_run(heads: tuple[int, int], q_len: int) -> None:
    for head_dim in (128, 256):
        geometry = Geometry(*heads, head_dim=head_dim, q_len=q_len)
        for batch in (1, 5, 64, 256):
            assert infeasible(Rule().setting(geometry, H200, batch), geometry, H200) is None


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
    answer = rule(source, results, tmp_path / "rule.json")
    data = json.loads((tmp_path / "rule.json").read_text())
    assert data == json.loads(json.dumps(answer.data))
    figures = data["figures"]
    assert figures["places"] == len(data["rows"]) == len(places) + 4
    assert 1 <= figures["rule_regret"] < figures["default_regret"]
    assert figures["rule_gain"] == pytest.approx(figures["default_regret"] / figures["rule_regret"], abs=2e-4)
    assert set(data["groups"]) == {row["group"] for row in data["rows"]}
    lines = str(answer.view).splitlines()
    assert lines[0].startswith("Up to ")
    assert "shorter than 64 tokens or there are more than 8 query rows" in lines[0]
    head = next(place for place, line in enumerate(lines) if "held_out" in line)
    for line, (group, facts) in zip(lines[head + 1 :], answer.data["groups"].items(), strict=False):
        assert line.startswith(group)
        names = lines[head].split()[-6:]
        assert dict(zip(names, map(float, line.split()[-6:]), strict=True)) == facts


def _is_main(row: dict[str, Any]) -> bool:
    names = ("heads_q", "heads_kv", "head_dim", "page_size", "q_len")
    return [row[name] for name in names] == [32, 8, 128, 64, 1] and row["layout"] == "BHN2D head-major"
