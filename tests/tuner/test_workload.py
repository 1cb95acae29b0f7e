"""Workloads read what a person may have written, and say which part of it is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mjolnir.tuner.workload import DECODE8, MOST_SEQUENCES, Point, Workload


def written(*points: Any) -> dict[str, Any]:
    return {"schema": "mjolnir.workload/1", "name": "mine", "points": list(points)}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(written({"batch": 2, "contexts": [4096, 512]}, {"batch": 64, "contexts": 8192})))
    assert Workload.load(str(path)).points == (Point(2, (4096, 512)), Point(64, (8192,) * 64))
    assert Workload.from_dict(DECODE8.as_dict()) == DECODE8


GOOD = {"batch": 1, "contexts": 8}


@pytest.mark.parametrize(
    ("point", "words"),
    [
        (7, "this is no object"),
        ({"contexts": 8}, "batch must be a whole number"),
        (GOOD | {"batch": True}, "batch must be a whole number"),
        (GOOD | {"batch": 10**12}, f"from 1 to {MOST_SEQUENCES}"),
        ({"batch": 1}, "contexts must be"),
        (GOOD | {"contexts": "8"}, "contexts must be"),
        (GOOD | {"contexts": [8, 8]}, "needs 1 contexts, not 2"),
        (GOOD | {"contexts": -1}, "must not be negative"),
        (GOOD | {"contexts": 10**20}, "is above"),
        (GOOD | {"weight": "much"}, "weight must be a number"),
        (GOOD | {"weight": float("inf")}, "must be above zero"),
    ],
)
def test_the_point_that_is_wrong_is_named(point: Any, words: str) -> None:
    with pytest.raises(ValueError, match=rf"^points\[1\]: .*{words}"):
        Workload.from_dict(written(GOOD, point))


@pytest.mark.parametrize("points", [None, 5, [], [GOOD] * 1000])
def test_points_are_a_list_of_a_few(points: Any) -> None:
    with pytest.raises(ValueError, match="points must be a list of 1 to"):
        Workload.from_dict(written() | {"points": points})
