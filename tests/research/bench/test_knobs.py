"""What a knob is worth: costs, pairs and verdicts on recordings of known truth."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mjolnir.kernel.knobs import KNOBS, Setting
from mjolnir.research.bench import knobs_markdown
from mjolnir.research.bench.knobs import EARNS, NEVER, ONE, OPEN, Cost, Grid, knobs, probe, verdict
from mjolnir.tuner import synthetic
from mjolnir.tuner.recording import Recording
from mjolnir.tuner.workload import Point, Workload, uniform

GRID = {"ctas_per_sm": (1, 2), "kv_stages": (2, 3, 4, 5), "max_splits": (0, 4), "pdl": (0, 1), "l2_prefetch": (0, 2)}
PREFETCH, SPLITS = ([knob.name for knob in KNOBS].index(name) for name in ("l2_prefetch", "max_splits"))


def truth(setting: Setting, point: Point) -> float:
    """PDL does nothing, prefetch costs 10 %, and the better number of CTAs depends on the batch by 4 %."""
    wrong = setting.ctas_per_sm != (1 if point.batch == 1 else 2)
    return 40_000.0 * (1.1 if setting.l2_prefetch else 1.0) * (1.04 if wrong else 1.0) * (1 + 0.001 * setting.kv_stages)


@pytest.fixture(scope="module")
def source() -> Recording:
    workload = Workload("two", (uniform(1, 8192), uniform(64, 8192)))
    return synthetic.make(truth, values=GRID, workload=workload, noise=0.0005)


def test_costs_and_verdicts_are_those_that_were_planted(source: Recording) -> None:
    found = knobs(source).data["knobs"]
    assert {name: facts["verdict"] for name, facts in found.items()} == {
        "ctas_per_sm": EARNS, "kv_stages": NEVER, "max_splits": NEVER, "pdl": NEVER, "l2_prefetch": ONE,
    }  # fmt: skip
    assert found["ctas_per_sm"]["held"]["cost"] == pytest.approx(0.04, abs=0.003)
    prefetch = found["l2_prefetch"]
    assert (prefetch["single"], prefetch["held"]["cost"]) == (0, 0.0)
    for cost in (prefetch["values"]["2"]["worst"], *prefetch["values"]["2"]["near"]):
        assert cost["low"] <= 0.1 <= cost["high"]
        assert cost["high"] - cost["low"] < 0.02
    assert [row["point"] for row in prefetch["values"]["2"]["near"]] == ["1x8192", "64x8192"]
    assert all(row["low"] <= 0 <= row["high"] for row in found["pdl"]["values"]["1"]["near"])


def test_pairs_that_share_a_plan_count_once_and_slow_ones_do_not(source: Recording) -> None:
    grid = Grid(source)
    limit = grid.means[:, 0].min() + np.log1p(0.03)
    near = [s for s, mean in zip(grid.settings, grid.means[:, 0], strict=True) if mean <= limit and not s.l2_prefetch]
    cells = {int(source.arrays["cell"][0, source.index[setting], 0]) for setting in near}
    assert {setting.ctas_per_sm for setting in near} == {1}
    assert len(grid.pairs(PREFETCH, 2, 0)[0]) == len(cells) <= len(near)
    cell: Callable[[Setting], int] = lambda s: int(source.arrays["cell"][0, source.index[s], 0])  # noqa: E731
    splits = {(cell(replace(s, max_splits=4)), cell(replace(s, max_splits=0))) for s in near}
    assert len(grid.pairs(SPLITS, 4, 0)[0]) == len([pair for pair in splits if pair[0] != pair[1]])


def test_what_is_chosen_is_valued_by_other_instances(source: Recording) -> None:
    arrays, count = dict(source.arrays), len(source.arrays["candidate"])
    lucky = source.arrays["cell"][0, source.index[source.default]]
    for name in ("candidate", "baseline", "empty", "cell_plan", "cell_window", "cell_chunk"):
        arrays[name] = np.concatenate([arrays[name], arrays[name][lucky]])
    arrays["candidate"][lucky] = (arrays["candidate"][lucky] * 0.7).astype(np.int32)
    again = np.array(arrays["cell"])
    again[0, source.index[source.default]] = count + np.arange(len(lucky))
    arrays["cell"] = np.concatenate([arrays["cell"], again])
    grid = Grid(replace(source, arrays=arrays))
    default = grid.settings.index(source.default)
    assert grid.halves[0][default, 0] < grid.halves[1][default, 0] - 0.2
    assert grid.instances[default].tolist() == [1, 1]
    (cost, _) = grid.held(np.arange(len(grid.settings)) != default)
    assert cost.cost < 0, "the luck of one half is not held against the others"


def test_of_values_that_tie_the_default_is_named_else_the_smallest() -> None:
    assert knobs_markdown.cheapest({16: 0.1, 2: 0.1, 4: 0.1}, 4) == 4
    assert knobs_markdown.cheapest({128: 0.1, 32: 0.1, 2: 0.2}, 0) == 32


def test_a_result_that_was_read_back_gives_the_same_table(source: Recording, tmp_path: Path) -> None:
    """The file's keys are sorted as texts: 128 before 32."""
    answer = knobs(source, tmp_path / "knobs.json")
    facts: dict[str, Any] = json.loads((tmp_path / "knobs.json").read_text())
    tied = facts["knobs"]["max_splits"]["values"]
    tied |= {"128": tied["4"], "32": tied["4"]}
    del tied["4"]
    facts["knobs"]["pdl"]["held"] = facts["knobs"]["kv_stages"]["held"]
    turned = {**facts, "knobs": dict(reversed(facts["knobs"].items()))}
    turned["knobs"]["max_splits"]["values"] = dict(reversed(tied.items()))
    assert knobs_markdown.table(facts) == knobs_markdown.table(turned)
    (line,) = [line for line in knobs_markdown.table(facts).splitlines() if line.startswith("| `max_splits`")]
    others = line.split(" | ")[4]
    assert others.startswith("32: ")
    assert "128: " not in others
    assert str(answer.view).startswith(knobs_markdown.table(json.loads((tmp_path / "knobs.json").read_text())))


@pytest.mark.parametrize(
    ("single", "others", "expected"),
    [
        (Cost("a", 0.02, 0.015, 0.025), [], EARNS),
        (Cost("a", 0.02, 0.001, 0.039), [], OPEN),
        (Cost("a", 0.0, 0.0, 0.0), [Cost("a", 0.1, 0.09, 0.11)], ONE),
        (Cost("a", 0.0, 0.0, 0.0), [Cost("a", 0.002, -0.002, 0.006)], NEVER),
        (Cost("a", 0.004, -0.01, 0.018), [Cost("a", 0.004, -0.01, 0.018)], OPEN),
    ],
)
def test_verdict(single: Cost, others: Sequence[Cost], expected: str) -> None:
    assert verdict(single, [single, *others]) == expected


def test_the_probe_is_told_where_it_lies(source: Recording) -> None:
    best = float(np.exp(Grid(source).means[:, 1].min()))
    between = {
        "settings": 2,
        "points": [{"point": 1, "noise": 0.002, "distances": {"3": {"mean": -0.01, "beyond": 2, "differs": True}}}],
        "table": [{"ratios": [[1.3 * best, 1.2 * best]]}, {"ratios": [[1.15 * best, 1.4 * best]]}],
    }
    found = probe(source, between)
    assert found == {
        "settings": 2, "points": [{"point": "64x8192", "noise": 0.002, "fastest": 1.15, "off": {"3": -0.01}}],
    }  # fmt: skip
    chunks = ({"between": between}, *source.chunks[1:])
    shown = str(knobs(replace(source, chunks=chunks)).view)
    assert "at 64x8192 by 3: -1.0% (one rebuild's noise is 0.2%)" in shown
    assert "15.0% slower than the best without prefetch" in shown


def test_the_report_is_written_and_read_as_a_table(source: Recording, tmp_path: Path) -> None:
    answer = knobs(source, tmp_path / "knobs.json")
    data: dict[str, Any] = json.loads((tmp_path / "knobs.json").read_text())
    assert data == json.loads(json.dumps(answer.data))
    assert set(data["figures"]) == {f"{name}_held_costs" for name in data["knobs"]}
    lines = knobs_markdown.page(data).splitlines()
    assert lines[2].startswith("| `ctas_per_sm` | earns its place |")
    assert len([line for line in lines if line.startswith("| `")]) == 5
    (line,) = [line for line in lines if line.startswith("| `l2_prefetch`")]
    assert line.split(" | ")[1:4] == ["one value serves", "0", "nothing"]
