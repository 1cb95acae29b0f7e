"""Records: one form in bytes, and precise refusals."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mjolnir.ledger.errors import RecordError
from mjolnir.ledger.names import check_tag, new_writer
from mjolnir.ledger.parsing import parse
from mjolnir.ledger.record import Record, draft
from mjolnir.ledger.spelling import canonical
from tests.ledger.samples import trial

WRITER = "abcdefghij"
MOMENT = datetime(2026, 1, 31, 12, 0, 0, 250, tzinfo=UTC)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def make(kind: str = "note", body: dict[str, Any] | None = None, seq: int = 0, prev: str = "") -> Record:
    prepared = draft(kind, "tag", WRITER, body or {"text": "x"}, environment={"driver": "580"}, time=MOMENT)
    return prepared.at(seq, seq + 1, prev)


def plain(kind: str = "note", body: dict[str, Any] | None = None, seq: int = 0, prev: str = "") -> Record:
    """A record of the schema before this one."""
    record = make(kind, body, seq, prev)
    return parse(canonical(record.as_dict() | {"schema": "mjolnir.record/1"}))


def altered(**values: Any) -> bytes:
    """The line of a first record with some keys other than they should be; None takes the key away."""
    merged = json.loads(make().line) | values
    return canonical({key: value for key, value in merged.items() if value is not None})


@given(st.dictionaries(TEXT, VALUES, max_size=5))
def test_what_is_recorded_is_what_is_read(body: dict[str, Any]) -> None:
    record = make(body=body or {"a": 1})
    again = parse(record.line)
    assert again == record
    assert again.body == record.body == (body or {"a": 1})
    assert list(again.body) == list(record.body)
    assert again.environment == record.environment == {"driver": "580"}
    assert again.as_dict() == {**json.loads(record.line), "body": body or {"a": 1}}
    assert b"\n" not in record.line


def test_the_bytes_of_a_record_never_change() -> None:
    record = make("trial", {"trial": 1, "status": "crashed", "ratios": {8: 0.5, 32: 1e-9}, "log": "Größe"})
    assert (
        record.line
        == (
            '{"body":{"log":"Größe","ratios":{"32":1e-09,"8":0.5},"status":"crashed","trial":1},'
            '"environment":{"driver":"580"},"kind":"trial","lamport":1,"prev":"","schema":"mjolnir.record/2","seq":0,'
            '"tag":"tag","time":"2026-01-31T12:00:00.000250Z","writer":"abcdefghij"}'
        ).encode()
    )
    assert record.sha256 == hashlib.sha256(record.line).hexdigest()
    assert record.identity == (WRITER, 0)
    assert record.order == (1, WRITER, 0)


def test_the_schema_before_this_one_is_still_read() -> None:
    line = (
        b'{"body":{"status":"hung","times":[1,2,3,4,5,6,7,8,9],"trial":7,"~":"~x"},"environment":{"driver":"580"},'
        b'"kind":"trial","lamport":1,"prev":"","schema":"mjolnir.record/1","seq":0,"tag":"tag",'
        b'"time":"2026-01-31T12:00:00.000250Z","writer":"abcdefghij"}'
    )
    record = parse(line)
    assert record.schema == "mjolnir.record/1"
    assert record.body == {"status": "hung", "times": [1, 2, 3, 4, 5, 6, 7, 8, 9], "trial": 7, "~": "~x"}
    assert record.as_dict() == json.loads(line)


def test_bodies_become_json() -> None:
    class Status(StrEnum):
        MEASURED = "measured"

    record = make("trial", {"trial": 1, "status": Status.MEASURED, "times": (1, 2), "buckets": {2: "a", 10: "b"}})
    assert record.body == {"trial": 1, "status": "measured", "times": [1, 2], "buckets": {"2": "a", "10": "b"}}
    assert list(record.body["buckets"]) == ["10", "2"]
    assert parse(record.line).body == record.body


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"a": [1.0, {"b": float("nan")}]}, r"body\.a\[1\]\.b .*nan"),
        ({"a": float("inf")}, r"body\.a .*inf"),
        ({"a": {1, 2}}, r"body\.a .*set"),
        ({"log": "\udcff"}, r"body\.log .*surrogate"),
        ({"a": {True: 1}}, r"key True"),
        ({"a": {1: 1, "1": 2}}, r"two keys"),
    ],
)
def test_what_json_does_not_have_is_refused_by_path(body: dict[str, Any], where: str) -> None:
    with pytest.raises(RecordError, match=where):
        make(body=body)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"", "not JSON"),
        (b"[1]", "list, not an object"),
        (b"\xff", "not UTF-8: byte 0"),
        (b'{"schema":NaN}', "NaN is no JSON number"),
        (b"[" * 100_000, "not usable JSON|not JSON"),
        (altered(schema=None), "schema is None"),
        (altered(schema="mjolnir.record/3"), "newer Mjolnir"),
        (altered(writer=None), "'writer' is missing"),
        (altered(writer="ABCDEFGHIJ"), "writer is 'ABCDEFGHIJ', expected ten characters"),
        (altered(kind="guess"), "kind is 'guess', expected one of campaign"),
        (altered(tag="../x"), "no tag"),
        (altered(tag=5), "no tag"),
        (altered(seq=-1), "seq is -1, expected a whole number from 0"),
        (altered(seq=True), "seq is True"),
        (altered(seq=0.0), "seq is 0.0"),
        (altered(lamport=0), "lamport is 0, expected a whole number from 1"),
        (altered(prev="0" * 64), "prev is .*, expected empty"),
        (altered(seq=1), "expected empty in the first"),
        (altered(seq=1, prev="0" * 64), "first record of a writer carries 'environment'"),
        (altered(environment=None), "first record of a writer carries 'environment'"),
        (altered(environment=[]), "environment is .*, expected an object"),
        (altered(body="x"), "body is 'x', expected an object"),
        (altered(time="2026-01-31 12:00:00"), "time is"),
        (altered(time="2026-02-30T12:00:00.000000Z"), "expected a time that exists"),
        (altered(time="1969-01-01T00:00:00.000000Z"), "from 1970 on"),
        (altered(kind="trial", body={"trial": 0, "status": "measured"}), r"body\.trial is 0"),
        (altered(kind="trial", body={"trial": 1}), r"body\.status is None"),
        (make().line.replace(b",", b", "), "canonical form"),
        (make().line.replace(b'{"body"', b'{"body":{},"body"'), "canonical form"),
    ],
)
def test_what_is_no_record_is_refused_with_the_reason(line: bytes, what: str) -> None:
    with pytest.raises(RecordError, match=what):
        parse(line)


def test_keys_that_are_not_known_are_kept() -> None:
    record = parse(altered(colour="blue"))
    assert record.as_dict()["colour"] == "blue"


@pytest.mark.parametrize("tag", ["a", "h200-decode8", "0.1_x", "a" * 63, "console", "com", "x.con"])
def test_tags(tag: str) -> None:
    assert check_tag(tag) == tag


@pytest.mark.parametrize(
    "tag",
    ["", "A", ".a", "-a", "a/b", "a..b", "a.", "a.lock", "a" * 64, "a b", "ä", "con", "nul.txt", "com1", "lpt9.x"],
)
def test_what_is_no_tag(tag: str) -> None:
    with pytest.raises(RecordError, match="is no tag: "):
        check_tag(tag)


def test_drafts_are_checked() -> None:
    with pytest.raises(RecordError, match="'guess' is no kind"):
        make("guess")
    with pytest.raises(RecordError, match="before 1970"):
        draft("note", "tag", WRITER, {}, time=datetime(1960, 1, 1, tzinfo=UTC))
    with pytest.raises(RecordError, match=r"body\.trial is None"):
        make("trial", {"status": "measured"})
    assert draft("trial", "tag", WRITER, trial(1)).at(0, 1, "").environment == {}


def test_writers_are_never_the_same() -> None:
    assert len({new_writer() for _ in range(1000)}) == 1000
    assert len(new_writer()) == 10
