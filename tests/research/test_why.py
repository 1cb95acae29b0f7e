"""The story of a trial, a bucket and a row, as the committed run has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mjolnir import ledger as ledgers
from mjolnir.backend.table import Table
from mjolnir.research.journal import as_mapping
from mjolnir.research.rows import unevenness_of
from mjolnir.research.story import against, gain, window
from tests.research.conftest import six_rows_path
from tests.research.test_cli import call

pytestmark = pytest.mark.usefixtures("six_rows")

RUN = Path(__file__).parents[2] / "research" / "runs" / "h200-decode8" / "ledger.jsonl"
TAG = "h200-decode8"
RECORDS = [as_mapping(record) for record in ledgers.read_file(RUN)]


def told(tmp_path: Path, *arguments: object) -> dict[str, str]:
    """Title and text of each part, from a ledger that is empty: the records lie in the committed run."""
    code, out, err = call("autoresearch", "why", *arguments, "--ledger", tmp_path / "none", "--json")
    assert code == 0, err
    return {part["title"]: "\n".join(part["lines"]) for part in json.loads(out)["story"]}


def body(kind: str, **wanted: Any) -> dict[str, Any]:
    return next(
        r["body"] for r in RECORDS if r["kind"] == kind and all(r["body"].get(k) == v for k, v in wanted.items())
    )


def test_a_trial_that_won(tmp_path):
    trial = body("trial", trial=47)
    story = told(tmp_path, TAG, 47)
    head = "Trial 47 of h200-decode8: measured, keep"
    assert "setting kv_stages=2 pdl=1" in story[head]
    assert (
        f"asked by the tpe sampler for batch {trial['bucket']}, which had been told of the first 42 trials"
        in story[head]
    )
    worst = max(part["worst"]["excess"] for part in (trial["correctness"]["cases"], trial["correctness"]["points"]))
    assert f"at {worst:.0%} of the" in story["Gate"]
    times = story["Times, against the built-in default in the same windows"].splitlines()
    assert len(times) == 9
    assert times[0].startswith(f"1x4096: {trial['point_ratios'][0]:.4f} (")
    assert "12 rounds); 1980 MHz" in times[0]
    assert "clean window" in times[0]
    standing = story["Where it stood"].splitlines()
    assert [line.split(":")[0] for line in standing] == [f"batch {b}" for b in (1, 4, 8, 32, 64, 128)]
    assert "rank 1 of 47 when it was measured, 1 of 165 in the end" in standing[0]
    assert "chosen: takes the fewest resources of 2" in story["Finals"]
    assert story["Finals"].count("batch 1: instance ") == 12
    assert "batch 4: proven faster" in story["Finals"]
    assert "batch 1: nothing, it is proven" in story["What would have to change"]
    assert "batch 128: it would have to be" in story["What would have to change"]
    assert str(RUN) in story["Record"]


def test_the_default_and_a_trial_that_lost(tmp_path):
    default = told(tmp_path, TAG, 1)
    assert "the campaign itself: the built-in default" in "".join(default.values())
    slow = max((r["body"] for r in RECORDS if r["kind"] == "trial"), key=lambda trial: float(trial["ratio"]))
    story = told(tmp_path, TAG, slow["trial"])
    assert story["Finals"] == "it was among the candidates of no bucket"
    lines = story["What would have to change"].splitlines()
    uneven = [bucket for bucket in (1, 4, 8, 32, 64, 128) if unevenness_of(slow, bucket, body("campaign"))]
    assert [line.split(":")[0] for line in lines if "it can be no row here: max_splits=" in line] == [
        f"batch {bucket}" for bucket in uneven
    ]
    assert sum("it would have to be" in line for line in lines) == 6 - len(uneven) > 0


def test_a_bucket(tmp_path):
    promotion, shot = body("promotion", bucket=8), body("shootout", bucket=8)
    story = told(tmp_path, TAG, "bucket=8")
    assert story["Confirmation"].count("instance ") == promotion["certificate"]["instances"]
    assert story["Shoot-out"].count("than the default") == len(shot["arms"]) - 1
    assert "the built-in default: as fast as the default" in story["Shoot-out"]
    assert promotion["reason"] in story["Decision"]
    assert "0.917 [0.912, 0.926]" in story["Decision"]
    assert "27 of 27 cited records are there" in story["Records"]
    assert "3 canary, 10 noise, 1 trial, 1 shootout, 12 confirmation" in story["Records"]
    assert "0 of 12 short of the margin of 1.0%" in story["What would have to change"]


def test_a_row_by_batch_and_by_key(tmp_path):
    by_batch = told(tmp_path, "--batch", 8, "--device", "NVIDIA H200")
    assert "in the packaged table: kv_stages=4 max_splits=4 pdl=1" in by_batch["Row"]
    assert "the certificate follows from its records (10 checks" in by_batch["Derived again"]
    assert "mjolnir defaults demote 8" in by_batch["What would demote it"]
    row = next(row for row in Table.read(six_rows_path()).rows if row.key.batch == 8)
    assert told(tmp_path, "--key", json.dumps(row.key.as_dict())) == by_batch


def test_a_row_that_does_not_follow_or_was_demoted(tmp_path):
    data = six_rows_path().read_bytes().replace(b'"value": 0.9172', b'"value": 0.9173')
    table = tmp_path / "table.json"
    table.write_bytes(data)
    story = told(tmp_path, "--batch", 8, "--table", table)
    assert story["Derived again"].startswith("promotion record: certificate:")
    with ledgers.open(tmp_path / "none", git="off") as ledger:
        ledger.import_file(RUN)
        with ledger.writer(TAG, {}) as writer:
            writer.append("demotion", {"key": body("promotion", bucket=8)["key"], "reason": "too hot"})
    assert "too hot" in told(tmp_path, TAG, "bucket=8")["Since then"]


def test_a_row_whose_records_are_nowhere(tmp_path, monkeypatch):
    monkeypatch.setattr("mjolnir.research.evidence.__file__", str(tmp_path / "evidence.py"))
    asked = ("autoresearch", "why", "--batch", 8, "--ledger", tmp_path / "none")
    for _ in range(2):  # without any record of the tag, then with that of a demotion alone
        code, out, _ = call(*asked)
        assert (code, f"27 of 27 cited records of {TAG} are nowhere" in out) == (1, True), out
        with ledgers.open(tmp_path / "none", git="off") as ledger, ledger.writer(TAG, {}) as writer:
            writer.append("demotion", {"key": body("promotion", bucket=8)["key"], "reason": "too hot"})


def test_nonsense_is_refused(tmp_path):
    for arguments, code, words in (
        ((TAG, "900"), 1, "there is no trial 900; the last one is 165"),
        ((TAG, "bucket=2"), 1, "there is no bucket 2; there are 1, 4, 8, 32, 64, 128"),
        ((TAG, "yes"), 2, "neither a trial's number nor bucket"),
        ((TAG,), 2, "name a trial"),
        ((), 2, "name a trial"),
        ((TAG, "1", "--batch", 8), 2, "name a trial"),
        (("none", "1"), 1, "there is no tag none"),
        (("--batch", 8, "--device", "thor"), 2, "no row fits 8 on thor"),
        (("--batch", 5, "--device", "thor"), 2, "told by: mjolnir defaults explain --batch 5 --device thor\n"),
        (("--key", "batch=2"), 2, "told by: mjolnir defaults explain --batch 2\n"),
    ):
        got, _, err = call("autoresearch", "why", *arguments, "--ledger", tmp_path / "none")
        assert (got, words in err) == (code, True), err


def test_ratios_and_windows_in_words():
    assert gain(-0.05) == "5.1% faster"
    assert gain(0.05) == "5.1% slower"
    assert against(1e-5, "default") == "as fast as the default"
    assert window({}) == "nothing recorded of the device"
    hot = {"after": {"sm_mhz": 1200, "throttle": ["power"]}, "dirty": "clock"}
    assert window(hot) == "1200 MHz, throttled by power, dirty: clock"
