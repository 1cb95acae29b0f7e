"""Workloads read what a person may have written, and say which part of it is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mjolnir.tuner.workload import DECODE8, MOST_SEQUENCES, SERVING27, Point, Workload


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
        (GOOD | {"wieght": 2.0}, "'wieght' is none of batch, contexts, weight"),
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


def test_the_serving_preset_has_three_lengths_in_each_of_nine_buckets_and_fits_a_card() -> None:
    assert Workload.load("serving27") is SERVING27
    assert SERVING27.buckets == (1, 2, 4, 8, 16, 32, 64, 128, 256)
    lengths = [[SERVING27.points[i].contexts[0] for i in SERVING27.of_bucket(b)] for b in SERVING27.buckets]
    usual = [[2048, 8192, 32768]] * 6
    assert lengths == [*usual, [2048, 8192, 16384], [2048, 4096, 8192], [1024, 2048, 4096]]
    tokens = [sum(point.contexts) for point in SERVING27.points]
    assert max(tokens) == 1 << 20
    assert 2 * 2048 * sum(tokens) < 40e9, "two sets of each point, 2,048 bytes a token"
