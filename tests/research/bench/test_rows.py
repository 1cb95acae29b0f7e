"""Rows are named, merged, written and read."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from mjolnir.kernel.geometry import Geometry
from mjolnir.research.answer import UsageFailure
from mjolnir.research.bench import rows
from mjolnir.research.bench.points import MAIN, spot, spots
from mjolnir.research.bench.rows import TOKEN_MAJOR
from tests.research.bench.made import row, whole

PLACE = spot(MAIN, 8, 8192)


def test_a_row_has_what_is_promised() -> None:
    made = rows.make("fa3", PLACE, "B2HND", [10.0, 12.0, 11.0, 13.0, 30.0], 0.1234567, way="num_splits=8")
    wanted = {
        "kernel": "fa3", "heads_q": 32, "heads_kv": 8, "head_dim": 128, "page_size": 64, "q_len": 1, "layout": "B2HND",
        "batch": 8, "context": 8192, "lengths": "8x8192", "bytes": 128 << 20, "us": 12.0, "error": 0.123457,
        "timing": "graph", "way": "num_splits=8",
    }  # fmt: skip
    assert {name: made[name] for name in wanted} == wanted
    assert made["us_p10"] < 12 < made["us_p90"]
    assert made["samples"] == [10.0, 12.0, 11.0, 13.0, 30.0]
    assert rows.make("fa3", PLACE, "B2HND", [1.0, 2.0], math.nan)["error"] is None


def test_names_are_those_of_the_spots() -> None:
    assert {rows.place_of(row("fa3", place, 1.0)) for place in spots()} == {str(place) for place in spots()}
    block = spot(Geometry(32, 8, q_len=4, causal=False), 8, 8192)
    assert rows.name_of(row("fa3", block, 1.0)) == f"fa3 {block}" == "fa3 32/8xd128,page=64,q=4,causal=no 8x8192"
    assert rows.name_of(row("mjolnir", PLACE, 1.0, layout=TOKEN_MAJOR)) == f"mjolnir {PLACE} BHN2D token-major"
    assert rows.name_of(row("mjolnir", PLACE, 1.0, timing="chain")) == f"mjolnir {PLACE} chain"


def test_a_newer_row_takes_the_place_of_the_same_one_alone() -> None:
    newer = [
        row("fa3", PLACE, 5.0, layout="B2HND"),
        row("mjolnir", PLACE, 6.0, layout=TOKEN_MAJOR),
        row("mjolnir", spot(MAIN, 1, 4096), 6.5, timing="chain"),
        row("fa3", spot(MAIN, 3, 100), 7.0),
    ]
    merged = rows.merge(whole(), newer)
    assert len(merged) == len(whole()) + 1
    assert all(one in merged for one in newer)
    assert rows.merge(newer, whole()) == rows.merge(whole(), [newer[-1]])
    assert rows.merge(list(reversed(merged))) == merged, "the order is that of the names"


def test_a_row_is_a_line_of_the_file(tmp_path: Path) -> None:
    data = {"schema": rows.SCHEMA, "figures": {"a": 1.5}, "problems": [], "rows": whole()[:3], "taken": {"parts": []}}
    path = tmp_path / "results" / "kernel-peers-h200.json"
    rows.write(path, data)
    assert rows.read(path) == json.loads(path.read_text()) == data
    assert sum('"kernel"' in line for line in path.read_text().splitlines()) == 3
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": "mjolnir.bench/1", "rows": []}', f'{{"schema": "{rows.SCHEMA}", "rows": [1]}}']
)
def test_a_file_of_another_kind_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(UsageFailure, match=r"other\.json"):
        rows.read(path)
