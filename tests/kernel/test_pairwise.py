"""Covering rows: every possible pair, in far fewer rows than there are combinations."""

import random

from mjolnir.kernel.pairwise import all_pairs, covering, pairs_of

AXES = {"a": range(6), "b": "xyz", "c": (True, False), "d": range(5), "e": (None, 0.5)}


def test_all_pairs_by_hand() -> None:
    pairs = all_pairs({"a": (1, 2), "b": "x", "c": (True,)})
    assert pairs == {
        (("a", 1), ("b", "x")), (("a", 2), ("b", "x")), (("a", 1), ("c", True)), (("a", 2), ("c", True)),
        (("b", "x"), ("c", True)),
    }  # fmt: skip
    assert pairs_of({"a": 1, "b": "x"}) == {(("a", 1), ("b", "x"))}


def test_every_pair_is_covered_by_few_rows() -> None:
    rows, given_up = covering(AXES, lambda row: True, random.Random(0))
    assert not given_up
    assert set().union(*map(pairs_of, rows)) == all_pairs(AXES)
    assert 30 <= len(rows) <= 40
    assert all(list(row) == list(AXES) for row in rows)


def test_what_cannot_be_is_told_and_never_made() -> None:
    rows, given_up = covering(AXES, lambda row: not (row["a"] == 3 and row["b"] == "y"), random.Random(0))
    assert given_up == {(("a", 3), ("b", "y"))}
    assert set().union(*map(pairs_of, rows)) == all_pairs(AXES) - given_up


def test_the_same_seed_gives_the_same_rows() -> None:
    one, two, other = (covering(AXES, lambda row: True, random.Random(seed))[0] for seed in (1, 1, 2))
    assert one == two
    assert one != other
