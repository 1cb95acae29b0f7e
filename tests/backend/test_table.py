from __future__ import annotations

import difflib
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mjolnir.backend import table as module
from mjolnir.backend.table import SCHEMA, Row, Table, packaged_path, user_path
from mjolnir.kernel.knobs import KNOBS, Setting

from .rows import certificate, key, row

SETTINGS = st.builds(
    Setting,
    **{knob.name: st.sampled_from(knob.values) for knob in KNOBS if knob.name not in ("ctas_per_sm", "kv_stages")},
    ctas_per_sm=st.just(1),
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def encoded(*rows: object, schema: object = SCHEMA) -> bytes:
    return json.dumps({"schema": schema, "rows": list(rows)}).encode()


def hunks(old: Table, new: Table) -> int:
    before, after = (table.render().decode().splitlines() for table in (old, new))
    return sum(line.startswith("@@") for line in difflib.unified_diff(before, after, lineterm="", n=3))


@given(
    st.dictionaries(
        st.sampled_from([1, 2, 4, 8, 16]), st.tuples(SETTINGS, st.dictionaries(st.text(), PLAIN, max_size=4))
    )
)
def test_rendered_table_reads_back(values: dict[int, tuple[Setting, dict[str, Any]]]) -> None:
    rows = [
        Row(key(batch), "warp", setting, {name: entry for name, entry in evidence.items() if name != "kernel_hash"})
        for batch, (setting, evidence) in values.items()
    ]
    table = Table("test", tuple(rows))
    read = Table.parse(table.render(), "test")
    assert read == table
    assert [entry.key.batch for entry in read.rows] == sorted(values)
    assert read.render() == table.render()


def test_bytes_do_not_depend_on_the_order_of_members() -> None:
    evidence = certificate(versions={"torch": "1", "driver": "2"})
    backwards = {name: evidence[name] for name in reversed(evidence)} | {"versions": {"driver": "2", "torch": "1"}}
    first, second = (Table("t", (Row(key(), "warp", Setting(), e),)) for e in (evidence, backwards))
    assert first.render() == second.render()


def test_empty_table_renders_as_the_packaged_file_starts() -> None:
    assert Table("t").render() == b'{\n  "schema": "mjolnir.defaults/1",\n  "rows": []\n}\n'


def test_packaged_table_is_whole_and_rendered() -> None:
    table = Table.read(packaged_path())
    assert table.problems == ()
    assert table.render() == packaged_path().read_bytes()
    assert {missing for entry in table.rows for missing in entry.missing_evidence()} == set()


@pytest.mark.parametrize("batch", [1, 4, 64])
def test_one_row_is_one_hunk(batch: int) -> None:
    table = Table("t", tuple(row(b) for b in (2, 8, 16)))
    added = table.with_row(row(batch, Setting(pdl=1)))
    assert hunks(table, added) == 1
    assert hunks(added, added.without(key(batch))) == 1
    proven_again = Row(
        key(batch),
        "warp",
        Setting(pdl=1, max_splits=4),
        {
            name: f"{value} again" if name not in ("method", "policy", "versions") else value
            for name, value in certificate().items()
        },
    )
    assert hunks(added, added.with_row(proven_again)) == 1


def test_a_row_is_replaced_by_key() -> None:
    table = Table("t", (row(8), row(4)))
    assert [entry.key.batch for entry in table.rows] == [4, 8]
    changed = table.with_row(row(8, Setting(pdl=1)))
    assert [entry.setting.pdl for entry in changed.rows] == [0, 1]
    assert changed.get(key(4)) == row(4)
    assert changed.get(key(16)) is None


def test_removing_needs_the_row() -> None:
    with pytest.raises(KeyError, match="no row for NVIDIA H200"):
        Table("t").without(key())


def test_two_rows_of_one_key_are_refused() -> None:
    with pytest.raises(ValueError, match="the same key"):
        Table("t", (row(8), row(8)))


def changed(**parts: Any) -> dict[str, Any]:
    values = row().as_dict()
    for name, change in parts.items():
        values[name] = values[name] | change if isinstance(change, dict) else change
    return values


BAD_ROWS = {
    "no object": (7, "7 is not an object"),
    "null": (None, "None is not an object"),
    "nothing in it": ({}, "key is missing"),
    "more than a row": (row().as_dict() | {"note": 1}, "'note' is unknown"),
    "value of a wrong type": (changed(value=[1]), "not an object that names an engine"),
    "no engine": (row().as_dict() | {"value": {"pdl": 1}}, "not an object that names an engine"),
    "unknown engine": (changed(value={"engine": "magic"}), "engine = 'magic' is unknown"),
    "engine of a wrong type": (changed(value={"engine": ["warp"]}), "is unknown; there are warp"),
    "unknown knob": (changed(value={"speed": 11}), "unknown knob 'speed'"),
    "knob out of domain": (changed(value={"ctas_per_sm": 9}), "ctas_per_sm = 9 is not allowed: 1 to 4"),
    "knob of a wrong type": (changed(value={"pdl": "1"}), "pdl = '1' is not allowed"),
    "fault": (changed(value={"fault": "none"}), "fault is for canaries"),
    "what cannot fit": (changed(value={"kv_stages": 12}), "cannot run: shared memory"),
    "bucket": (changed(key={"batch": 3}), "batch = 3 is not a bucket"),
    "certificate of a wrong type": (changed(certificate=None), "certificate: not an object"),
    "kernel hash of a wrong type": (changed(certificate={"kernel_hash": 1}), "kernel_hash is not a string"),
    "not a number": (changed(certificate={"alpha": float("nan")}), "certificate: not plain JSON"),
    "half a character": (changed(certificate={"tag": "\ud800"}), "certificate: not plain JSON"),
    "the key of another": (row(4).as_dict(), "another row has the same one"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_row_is_skipped_with_one_warning_and_the_rest_serves(name: str, caplog: pytest.LogCaptureFixture) -> None:
    bad, message = BAD_ROWS[name]
    table = Table.parse(encoded(row(4).as_dict(), bad, row(16).as_dict()), "user table")
    assert [entry.key.batch for entry in table.rows] == [4, 16]
    assert len(table.problems) == 1
    assert table.problems[0].startswith("row 1 is skipped: ")
    assert message in table.problems[0]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "2 rows serve" in caplog.text


def test_knobs_that_a_row_leaves_out_have_their_default() -> None:
    values = row().as_dict() | {"value": {"engine": "warp", "pdl": True}}
    assert Table.parse(encoded(values), "t").rows[0].setting == Setting(pdl=1)


def test_many_bad_rows_give_one_short_warning(caplog: pytest.LogCaptureFixture) -> None:
    table = Table.parse(encoded(*["x" * 1_000] * 2_000), "t")
    assert len(table.problems) == 2_000
    assert len(caplog.records) == 1
    assert "and 1997 more" in caplog.text
    assert len(caplog.text) < 1_000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\x00\xff\xfe",
        b"null",
        b"[]",
        b'"rows"',
        b"{}",
        b"[" * 100_000,
        b"9" * 10_000,
        b'{"schema": 1}',
        b'{"rows": []}',
        b'{"schema": "mjolnir.defaults/2", "rows": []}',
        b'{"schema": "mjolnir.defaults/1", "rows": {}}',
        b'{"schema": "mjolnir.defaults/1"}',
    ],
)
def test_what_is_no_table_costs_one_warning(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    table = Table.parse(data, "user table")
    assert table.rows == ()
    assert len(caplog.records) == 1
    assert table.problems[0].startswith("not a table: ")


@given(st.binary(max_size=200) | PLAIN.map(lambda value: json.dumps(value).encode()) | PLAIN.map(encoded))
def test_parse_never_raises(data: bytes) -> None:
    assert Table.parse(data, "t").rows == ()


@given(st.sampled_from(["key", "value", "certificate"]), st.text(), PLAIN)
def test_a_row_with_anything_in_it_never_raises(part: str, name: str, value: object) -> None:
    assert Table.parse(encoded(changed(**{part: {name: value}}), row(4).as_dict()), "t").get(key(4)) == row(4)


def loop(folder: Path) -> Path:
    (folder / "a").symlink_to(folder / "b")
    (folder / "b").symlink_to(folder / "a")
    return folder / "a"


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def huge(folder: Path) -> Path:
    with (folder / "huge").open("wb") as file:
        file.truncate(1 << 40)
    return folder / "huge"


def below_a_file(folder: Path) -> Path:
    (folder / "file").touch()
    return folder / "file" / "defaults.json"


@pytest.mark.parametrize("make", [Path, loop, pipe, huge, below_a_file, lambda folder: folder / ("n" * 300)])
@pytest.mark.timeout(10)
def test_hostile_file_costs_one_warning(make: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = make(tmp_path)
    table = Table.read(path, "user table")
    assert table.rows == ()
    assert len(caplog.records) == 1
    assert table.problems[0].startswith(f"{path}: cannot be read: ")


@pytest.mark.parametrize(("missing_ok", "warnings"), [(True, 0), (False, 1)])
def test_missing_file(missing_ok: bool, warnings: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert Table.read(tmp_path / "none.json", missing_ok=missing_ok).rows == ()
    assert len(caplog.records) == warnings


def test_more_rows_than_anyone_has_are_no_table() -> None:
    table = Table.parse(b'{"schema": "mjolnir.defaults/1", "rows": [%s1]}' % (b"1," * 10_000), "t")
    assert table.problems == ("not a table: 10001 rows, above the limit of 10000",)


def test_file_that_grows_past_the_limit_is_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 10)
    assert "more than 10 bytes" in Table.parse(encoded(), "t").problems[0]


def test_table_with_problems_is_not_changed() -> None:
    table = Table.parse(encoded(row(4).as_dict(), {"from": "a later version"}), "user table")
    with pytest.raises(ValueError, match="user table is not changed before it is repaired: row 1 is skipped"):
        table.with_row(row(8))
    with pytest.raises(ValueError, match="is not changed"):
        table.without(key(4))


def test_missing_evidence_is_told() -> None:
    entry = Row(key(), "warp", Setting(), {"tag": "t", "kernel_hash": None})
    assert "records" in entry.missing_evidence()
    assert "tag" not in entry.missing_evidence()
    assert entry.kernel_hash == ""
    assert row().missing_evidence() == ()


def test_user_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert user_path({"MJOLNIR_DEFAULTS": "~/mine.json"}) == tmp_path / "home" / "mine.json"
    assert user_path({}).name == "defaults.json"
    assert user_path({}).parent.name == "mjolnir"
