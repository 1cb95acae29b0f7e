"""The committed rows follow from their records, and from nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mjolnir import ledger as ledgers
from mjolnir.backend.table import Row, Table
from mjolnir.ledger.errors import RecordError
from mjolnir.ledger.record import draft
from mjolnir.research.derive import derive, differences
from mjolnir.research.evidence import Found, unite
from mjolnir.research.rows import row_of
from mjolnir.tuner.promotion import METHOD
from tests.research.conftest import six_rows_path
from tests.research.test_cli import call, replay

pytestmark = pytest.mark.usefixtures("six_rows")

ROOT = Path(__file__).parents[2]
RUN = ROOT / "research" / "runs" / "h200-decode8" / "ledger.jsonl"
TAG = "h200-decode8"
CHECKS = (
    "records", "hash chain", "promotion record", "evidence", "environment",
    "noise floor", "trials", "instances", "correctness", "decision",
)  # fmt: skip


@cache
def rows() -> tuple[Row, ...]:
    return Table.read(six_rows_path()).rows


@cache
def lines() -> tuple[ledgers.Record, ...]:
    return ledgers.read_file(RUN)


@cache
def found() -> Found:
    return unite(TAG, [("run", lines())])


def problem(row: Row, records: Found | None = None) -> str:
    """The first check that fails, and why; empty when the row follows."""
    checks = derive(row, records or found())
    return next((f"{check.name}: {check.problem}" for check in checks if check.problem), "")


def changed(text: str, place: int) -> str:
    """`text` with the digit at `place` raised by one, 9 becoming 0."""
    return text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :]


def digits(text: str) -> list[int]:
    return [place for place, letter in enumerate(text) if letter.isdigit() and letter.isascii()]


def test_the_six_committed_rows_follow_from_the_committed_run(tmp_path):
    assert [row.key.batch for row in rows()] == [1, 4, 8, 32, 64, 128]
    for row in rows():
        checks = derive(row, found())
        assert [check.name for check in checks] == list(CHECKS)
        assert not any(check.problem for check in checks)
    code, out, _ = call("defaults", "verify", "--ledger", tmp_path, "--json")
    data = json.loads(out)
    assert (code, data["ok"], len(data["rows"])) == (0, True, 6)
    assert {Path(place).resolve() for row in data["rows"] for place in row["places"]} == {RUN}
    code, out, _ = call("defaults", "verify", "--ledger", tmp_path)
    assert code == 0
    assert "6 of 6 rows follow from their records" in out


def test_a_changed_digit_anywhere_in_a_row_is_found():
    """Every digit outside the hashes, and one of every hash."""
    row = rows()[2]
    text = json.dumps(row.as_dict())
    hashes = [text.index(sha256) for sha256 in row.certificate["records"]]
    inside = {place + offset for place in hashes for offset in range(64)}
    places = [place for place in digits(text) if place not in inside]
    places += [next(p for p in digits(text) if start <= p < start + 64) for start in hashes]
    assert len(places) > 450
    tried = 0
    for place in places:
        try:
            spoiled = Row.from_dict(json.loads(changed(text, place)))
        except ValueError:
            continue  # the reader skips such a row, and verify says so: see below
        if spoiled != row:  # the last of 17 digits may leave the number as it was
            tried += 1
            assert problem(spoiled), text[place - 40 : place + 1]
    assert tried > 400


def test_a_row_that_does_not_parse_fails(tmp_path):
    table = tmp_path / "table.json"
    table.write_bytes(six_rows_path().read_bytes().replace(b'"batch": 128', b'"batch": 129'))
    code, out, _ = call("defaults", "verify", "--table", table, "--ledger", tmp_path)
    assert code == 1
    assert "5 of 5 rows follow" in out
    assert "not a bucket" in out


@pytest.mark.parametrize("number", [*range(0, len(lines()) - 1, 12), *range(180, 194)])
def test_a_changed_digit_in_a_record_is_found(number):
    """All of them but the last one of the chain, which no certificate rests on."""
    line = lines()[number].line.decode()
    body = digits(line)[len(digits(line)) * (number % 7) // 7]
    try:
        spoiled = ledgers.parse(changed(line, body).encode())
    except RecordError:
        return  # no record any more: the file is refused
    records = unite(TAG, [("run", [*lines()[:number], spoiled, *lines()[number + 1 :]])])
    for row in rows():
        if number < 194 or row.key.batch == 128:
            assert problem(row, records), (number, row.key.batch)


def test_a_spoiled_file_makes_the_command_fail(tmp_path):
    whole = RUN.read_bytes()
    place = whole.index(b'"samples":[[[') + len(b'"samples":[[[')
    for data, words in (
        (changed(whole.decode(), place).encode(), "cited records are nowhere"),
        (whole.replace(b'"trial":165', b'"trial":0165'), "line "),
    ):
        assert data != whole
        folder = tmp_path / words.strip().replace(" ", "-")
        (folder / "runs" / TAG).mkdir(parents=True)
        (folder / "runs" / TAG / "ledger.jsonl").write_bytes(data)
        code, out, _ = call(
            "defaults", "verify", "--ledger", folder, "--records", folder / "runs" / TAG / "ledger.jsonl"
        )
        # The committed run is found as well: two contents of one identity, or a file that cannot be read.
        assert "follow from their records" in out
        if words == "cited records are nowhere":
            assert code == 1
            assert "two contents" in out


def test_records_are_found_in_a_ledger_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("mjolnir.research.evidence.__file__", str(tmp_path / "evidence.py"))
    code, out, _ = call("defaults", "verify", "--ledger", tmp_path / "ledger")
    assert code == 1
    assert "27 of 27 cited records are nowhere" in " ".join(out.split())
    assert call("ledger", "import", RUN, "--ledger", tmp_path / "ledger")[0] == 0
    assert call("defaults", "verify", "--ledger", tmp_path / "ledger")[0] == 0
    elsewhere = tmp_path / "elsewhere" / "a"
    elsewhere.mkdir(parents=True)
    shutil.copy(RUN, elsewhere)
    assert call("defaults", "verify", "--ledger", tmp_path / "empty", "--records", elsewhere.parent)[0] == 0


def forged(change: Callable[[str, dict[str, Any]], None]) -> str:
    """What is said of batch 8 when bodies were changed and every hash after them was made anew."""
    renamed: dict[str, str] = {}
    made: list[ledgers.Record] = []
    for old in lines():
        body = json.loads(json.dumps(old.body))
        change(old.kind, body)
        if old.kind == "promotion":
            body["certificate"]["records"] = [renamed[sha256] for sha256 in body["certificate"]["records"]]
        written = datetime.fromisoformat(old.time)
        drafted = draft(old.kind, old.tag, old.writer, body, environment=old.environment, time=written)
        made.append(drafted.at(old.seq, old.lamport, made[-1].sha256 if made else ""))
        renamed[old.sha256] = made[-1].sha256
    promotion = next(record.body for record in made if record.kind == "promotion" and record.body["bucket"] == 8)
    return problem(row_of(promotion), unite(TAG, [("run", made)]))


def set_at(kind: str, path: Sequence[str | int], value: Any, **wanted: Any) -> Callable[[str, dict[str, Any]], None]:
    """Changes one place in the bodies of a kind that have the `wanted` members."""

    def change(found_kind: str, body: dict[str, Any]) -> None:
        if found_kind == kind and all(body.get(name) == entry for name, entry in wanted.items()):
            inner: Any = body
            for step in path[:-1]:
                inner = inner[step]
            inner[path[-1]] = value

    return change


CHECKED = ("correctness", "arms", 0, "points", "worst", "excess")
PAPER = ("certificate",)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda kind, body: None, ""),
        (set_at("noise", ("timings", 4, "difference", 0), 9000, number=3), "noise floor: noise instance 3"),
        (set_at("noise", ("epoch",), "0bab8e3238dda839", number=3), "evidence: the noise record"),
        (set_at("canary", ("status",), "measured", fault="skip"), "evidence: the canary skip was not rejected"),
        (set_at("epoch", ("parts", "kernel_hash"), "0" * 64), "environment: kernel_hash of the epoch"),
        (set_at("campaign", ("geometry", "page_size"), 16), "environment: the key names another geometry"),
        (set_at("campaign", ("device", "sm_count"), 78), "environment: the key names another device"),
        (set_at("campaign", ("placement", "kv"), "apart"), "environment: the key names another placement"),
        (set_at("campaign", ("options", "margin"), 0.08), "decision: judged again it is not-proven"),
        (set_at("trial", ("ratios", "8"), 0.9, trial=137), "trials: ratios of trial 137"),
        (set_at("trial", ("timings", 4, "baseline"), [50000] * 12, trial=137), "trials: point ratios of trial 137"),
        (set_at("trial", ("resolved", "pdl"), 0, trial=137), "trials: trial 137 is of another setting"),
        (
            set_at("confirmation", ("samples", 0, 0), [40000] * 10, bucket=8, number=3),
            "instances: the value of instance 3",
        ),
        (set_at("confirmation", ("points",), [3], bucket=8, number=3), "instances: instance 3 looked at other points"),
        (set_at("confirmation", ("arms", 0, "kv_stages"), 5, bucket=8), "instances: no measured instance"),
        (set_at("confirmation", CHECKED, 0.5, bucket=8, number=3), "correctness: the certificate holds other checks"),
        (set_at("promotion", (*PAPER, "alpha"), 0.0001), "decision: alpha does not follow"),
        (set_at("promotion", (*PAPER, "ratio_default", "low"), 0.9), "decision: ratio_default (low) does not follow"),
        (set_at("promotion", (*PAPER, "attempt"), 2), "decision: attempt does not follow"),
        (set_at("promotion", (*PAPER, "charm"), 1), "decision: nothing says where charm comes from"),
        (set_at("promotion", (*PAPER, "method"), "a feeling"), "decision: the records are malformed: ValueError"),
        (set_at("promotion", (*PAPER, "tag"), "other"), "decision: the certificate names the tag other"),
        (set_at("promotion", (*PAPER, "noise_floor", "8x8192"), 0.005), "noise floor: the noise floor (8x8192)"),
        (set_at("promotion", ("setting", "pdl"), 0), "promotion record: the promotion record's value"),
        (set_at("promotion", ("ratio_default",), 0.9), "decision: ratio_default does not follow"),
        (set_at("promotion", ("decision",), "not-proven"), "promotion record: the decision on these records"),
    ],
)
def test_a_forged_record_in_a_whole_chain_is_found(change, words):
    said = forged(change)
    assert said.startswith(words) if words else said == ""


def test_the_rows_of_a_replay_follow_too(recording, tmp_path):
    table = tmp_path / "table.json"
    common = ("--promote", "--defaults", table)
    assert replay(recording, tmp_path / "ledger", *common, trials=30)[0] == 0
    code, out, _ = call("defaults", "verify", "--table", table, "--ledger", tmp_path / "ledger", "--json")
    data = json.loads(out)
    assert data["rows"]
    assert (code, [row["problem"] for row in data["rows"]]) == (0, [""] * len(data["rows"]))
    assert {row["method"] for row in data["rows"]} == {METHOD}
    for bucket in (1, 4, 8, 32, 64, 128):
        assert call("autoresearch", "why", "a", f"bucket={bucket}", "--ledger", tmp_path / "ledger")[0] == 0
    for trial in (1, 10, 20):
        assert call("autoresearch", "why", "a", trial, "--ledger", tmp_path / "ledger")[0] == 0


def test_evidence_that_was_picked_is_found():
    """A promotion that leaves out an instance of its own bucket, or a noise record."""
    row = rows()[0]
    promotion = next(record for record in found().records if record["kind"] == "promotion")
    for kind in ("confirmation", "noise", "canary"):
        hidden = next(
            r["hash"] for r in found().records if r["kind"] == kind and r["hash"] in row.certificate["records"]
        )
        cited = [sha256 for sha256 in row.certificate["records"] if sha256 != hidden]
        paper = {**row.certificate, "records": cited}
        body = {**promotion["body"], "certificate": {**promotion["body"]["certificate"], "records": cited}}
        others = tuple({**r, "body": body} if r is promotion else r for r in found().records)
        records = Found(TAG, others, found().places, (), found().chains)
        said = problem(Row(row.key, row.engine, row.setting, paper), records)
        assert said.startswith(f"evidence: the {kind} record {hidden[:12]} of the same epoch is not cited")


def test_differences_pass_over_rounding_alone():
    assert list(differences({"a": [1.0, "x"]}, {"a": [1.0 + 1e-12, "x"]})) == []
    assert list(differences({"a": [1.0, {"b": 2}]}, {"a": [1.0, {"b": 2.001}]})) == ["a[1].b"]
    assert list(differences({"a": 1}, {"b": 1})) == [""]
    assert list(differences([1], [1, 2])) == [""]
    assert list(differences(True, 1)) == []
    assert list(differences(None, 0.0)) == [""]
