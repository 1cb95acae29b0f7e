"""No row is written that does not follow from the records that it cites."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mjolnir import ledger as ledgers
from mjolnir.backend.table import Table
from tests.research.test_cli import call, replay


@pytest.fixture(scope="module")
def proven(recording: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledger of a replay that proved rows."""
    folder = tmp_path_factory.mktemp("proven") / "ledger"
    assert replay(recording, folder, trials=30)[0] == 0
    return folder


@pytest.fixture
def ledger(proven: Path, tmp_path: Path) -> Path:
    """The live file of a copy of it."""
    (tmp_path / "ledger").mkdir()
    return Path(shutil.copy(proven / "ledger.jsonl", tmp_path / "ledger"))


def promoted(ledger: Path) -> tuple[int, dict[str, str], list[int]]:
    """The exit code of promoting into a scratch table, why rows were left out by bucket, and the buckets in it."""
    table = ledger.parent / "table.json"
    code, out, err = call("defaults", "promote", "a", "--defaults", table, "--ledger", ledger.parent, "--json")
    data = json.loads(out)
    assert "left_out" in data, err
    rows = Table.read(table, missing_ok=True).rows
    return (
        code,
        {str(entry["key"]["batch"]): entry["reason"] for entry in data["left_out"]},
        [r.key.batch for r in rows],
    )


def line_of(ledger: Path, kind: str, bucket: int | None = None) -> str:
    """The line of the last record of a kind (and bucket)."""
    found = [r for r in ledgers.read_file(ledger) if r.kind == kind and bucket in (None, r.body.get("bucket"))]
    return found[-1].line.decode()


def test_whole_records_are_promoted(ledger):
    code, left_out, buckets = promoted(ledger)
    assert (code, left_out) == (0, {})
    assert buckets


def test_a_changed_digit_of_the_promotion_record_keeps_rows_out(ledger):
    _, _, buckets = promoted(ledger)
    (ledger.parent / "table.json").unlink()
    first = line_of(ledger, "promotion", buckets[0])
    knob = next(text for text in ('"kv_stages":2', '"kv_stages":4', '"kv_stages":5') if text in first)
    ledger.write_text(ledger.read_text().replace(first, first.replace(knob, '"kv_stages":3')))
    for index_knows in (True, False, True):  # what was there before, nothing, and what the file holds now
        if not index_knows:
            ledger.with_name("ledger.sqlite").unlink()
        code, left_out, written = promoted(ledger)
        assert (code, written) == (4, []), "of a broken chain nothing is written"
        assert left_out.keys() == set(map(str, buckets))
        assert "it does not follow from its records: hash chain: record" in left_out[str(buckets[0])]


def test_a_row_whose_records_are_gone_is_left_out_and_others_are_written(ledger):
    _, _, buckets = promoted(ledger)
    (ledger.parent / "table.json").unlink()
    assert len(buckets) > 1
    with ledgers.open(ledger.parent, git="off") as opened, opened.writer("a", {}) as writer:
        body = next(r.body for r in opened.records("a", "promotion") if r.body["bucket"] == buckets[0])
        cited = [*body["certificate"]["records"][:-1], "0" * 64]
        writer.append("promotion", {**body, "certificate": {**body["certificate"], "records": cited}})
    code, left_out, written = promoted(ledger)
    assert (code, written) == (4, buckets[1:])
    assert left_out.keys() == {str(buckets[0])}
    assert "1 of " in left_out[str(buckets[0])]
    assert "cited records are nowhere, the first is 000000000000" in left_out[str(buckets[0])]


def test_a_run_that_promotes_says_what_does_not_follow(recording, tmp_path, monkeypatch):
    monkeypatch.setattr("mjolnir.research.derive.File.decision", lambda self: (_ for _ in ()).throw(ValueError("no")))
    table = tmp_path / "table.json"
    code, out, _ = replay(recording, tmp_path / "ledger", "--promote", "--table", table, trials=30)
    assert code == 4
    assert "not written: it does not follow from its records: decision: the records are malformed" in " ".join(
        out.split()
    )
    assert not table.exists()


def test_a_replay_without_a_table_names_a_command_that_can_be_copied(ledger):
    code, _, err = call("defaults", "promote", "a", "--ledger", ledger.parent)
    again = f"mjolnir defaults promote a --table scratch.json --ledger {ledger.parent}"
    assert (code, again in " ".join(err.split())) == (2, True)
