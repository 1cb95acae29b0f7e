"""Packing is a spelling: what is read is what was given, and what was not packed so is refused in bounded memory."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mjolnir.ledger import numbers
from mjolnir.ledger.packing import pack
from mjolnir.ledger.spelling import canonical
from mjolnir.ledger.unpacking import Body, check, unpack

WHOLE = st.integers(-(2**53) + 1, 2**53 - 1)
ROWS = st.integers(1, 6).flatmap(
    lambda length: st.lists(st.lists(WHOLE, min_size=length, max_size=length), min_size=1, max_size=5)
)
MARKS = st.sampled_from(["~", "~i", "~m", "~h", "~c", "~r", "~~", "i", ""])
LEAVES = st.none() | st.booleans() | WHOLE | st.floats(allow_nan=False, allow_infinity=False) | MARKS
SAMPLES = st.lists(st.integers(-50, 50), min_size=10, max_size=14)
HEX = st.lists(st.text("0123456789abcdef", min_size=8, max_size=8), max_size=3)
BODIES = st.dictionaries(
    MARKS | st.sampled_from("ab"),
    st.recursive(
        LEAVES | SAMPLES | HEX,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(MARKS | st.sampled_from("ab"), inner, max_size=3)
            | inner.map(lambda item: [{"a": item, "~c": 1}] * 3)
        ),
        max_leaves=10,
    ),
    max_size=4,
)


@given(BODIES)
def test_what_is_packed_is_unpacked(body: dict[str, Any]) -> None:
    read = json.loads(canonical(pack(body)))
    assert check(read) > 0
    assert canonical(dict(Body(read))) == canonical(body)  # which tells 1 from True and from 1.0
    assert pack(dict(Body(read))) == read


@given(ROWS)
def test_rows_of_numbers(rows: list[list[int]]) -> None:
    text = numbers.to_text(rows)
    assert numbers.size(text) == (len(rows), len(rows[0]))
    assert numbers.from_text(text) == rows


def test_the_spelling_never_changes() -> None:
    samples = [14335, 14301, 14281, 14290, 14199, 14280, 14193, 14248, 14193, 14193]
    body = {
        "ticks": [samples, [16 * n for n in samples]],
        "few": [1, 2, 3],
        "row": [7] * 10,
        "plans": ["0123456789abcdef", "fedcba9876543210"],
        "timings": [{"point": n, "window": {"mhz": 1980.5}} for n in range(3)],
        "same": [{"a": True}] * 2,
        "not the same": [{"a": 1}, {"a": True}],
        "~": "~said",
    }
    packed = {
        "ticks": "~m10,14193,227088,1,16,8,8/jmxYYQZXADcAAI5sWGEGVwA3AAA",
        "few": [1, 2, 3],
        "row": "~i10,7,1,0/",
        "plans": "~h16,2/ASNFZ4mrze/+3LqYdlQyEA",
        "timings": {"~c": {"point": [0, 1, 2], "window": {"~r": [3, {"mhz": 1980.5}]}}},
        "same": {"~r": [2, {"a": True}]},
        "not the same": {"~c": {"a": [1, True]}},
        "~~": "~~said",
    }
    assert pack(body) == packed
    assert unpack(packed) == body


def test_numbers_far_apart_are_left_as_they_are() -> None:
    seeds = [911660925566874, 4874334718678053, *range(8)]
    assert pack({"seeds": seeds, "close": list(range(1000, 1010))}) == {
        "seeds": seeds, "close": "~i10,1000,1,4/EDJUdpg",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({"a": "~"}, "not spelled"),
        ({"a": "~x"}, "not spelled"),
        ({"a": "~i"}, "cut off"),
        ({"a": "~i8,1,1,0"}, "cut off"),
        ({"a": "~ia/"}, "invalid literal"),
        ({"a": "~i8,1,1,1/"}, "no base64 of 1 bytes"),
        ({"a": "~i8,1,1,1/!!"}, "no base64"),
        ({"a": "~i8,1,1,1/AAA"}, "no base64"),
        ({"a": "~i8,1,2,1,1,0,0/"}, "2 rows"),
        ({"a": "~i8,1,1,0,2/"}, "rows of 8 numbers"),
        ({"a": "~i8/"}, "0 rows"),
        ({"a": "~i4097,1,1,0/"}, "numbers; 1 to 4096"),
        ({"a": "~i-8,1,1,0/"}, "1 to 4096"),
        ({"a": "~i8,9007199254740992,1,0/"}, "too large"),
        ({"a": "~i8,1,0,0/"}, "steps from 0"),
        ({"a": "~i8,1,1,55/"}, "55 bits"),
        ({"a": "~i8,1,1,-1/"}, "bits"),
        ({"a": "~h8/####"}, "hex is not packed"),
        ({"a": "~h8,1/AAA"}, "no base64 of 4 bytes"),
        ({"a": "~h7,2/AAAAAAAAAA"}, "do not fit"),
        ({"a": "~h8,9999999/AAAA"}, "do not fit"),
        ({"a": {"~r": [10**9, 0]}}, "equal items"),
        ({"a": {"~r": [True, 0]}}, "equal items"),
        ({"a": {"~r": [2]}}, "equal items"),
        ({"a": {"~r": [65536, {"~r": [65536, 0]}]}}, "4194304 are allowed"),
        ({"a": {"~c": []}}, "columns are not"),
        ({"a": {"~c": {"~r": [2, {"a": 1}]}}}, "the key"),
        ({"a": {"~c": {"a": [1], "b": [1, 2]}}}, "different lengths"),
        ({"a": {"~c": {"a": "text"}}}, "different lengths"),
        ({"a": {"~c": {"a": {"b": 1}}}}, "different lengths"),
        ({"a": {"~d": 1}}, "key '~d'"),
        ({"~c": {"a": [1, 2]}}, "key '~c'"),
        ({"~r": [2, 1]}, "key '~r'"),
    ],
)
def test_what_is_not_packed_so_is_refused(body: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        check(body)


@given(st.recursive(
    LEAVES | st.text("~imhcrAB/8=", max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(MARKS, inner, max_size=2),
    max_leaves=6,
).map(lambda value: {"a": value}))  # fmt: skip
def test_what_is_checked_can_be_unpacked(body: dict[str, Any]) -> None:
    try:
        check(body)
    except ValueError:
        return
    dict(Body(body))


def test_members_are_unpacked_when_they_are_asked_for() -> None:
    body = Body(pack({"trial": 1, "times": list(range(20)), "~": 2}))
    assert body["trial"] == 1
    assert body.get("none") is None
    assert (len(body), list(body)) == (3, ["times", "trial", "~"])
    assert body == {"times": list(range(20)), "trial": 1, "~": 2}
    assert body["times"] is body["times"]
