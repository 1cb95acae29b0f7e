"""What `defaults check` says of a table: stale, cannot run, without evidence, and what it spent."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mjolnir import ledger as ledgers
from mjolnir.backend.table import Table
from mjolnir.kernel.sources import kernel_hash
from tests.research.conftest import make_row, six_rows_path
from tests.research.test_cli import call

pytestmark = pytest.mark.usefixtures("six_rows")


def check(tmp_path, table=None):
    named = ("--table", table) if table else ()
    code, out, _ = call("defaults", "check", "--ledger", tmp_path / "ledger", *named, "--json")
    return code, json.loads(out)


def test_the_packaged_table_is_whole(tmp_path):
    code, data = check(tmp_path)
    assert (code, data["ok"], data["problems"]) == (0, True, [])
    assert len(data["rows"]) == 6
    assert data["alpha"]["packaged table"] == pytest.approx(6 * 2.0**-12)
    stale = kernel_hash() != Table.read(six_rows_path()).rows[0].kernel_hash
    assert data["stale"] == (6 if stale else 0)
    text = call("defaults", "check", "--ledger", tmp_path / "ledger")[1]
    assert "alpha spent by the packaged table: 0.00146" in text


def test_a_stale_row_is_listed_and_is_no_fault(tmp_path):
    row = Table.read(six_rows_path()).rows[0]
    path = tmp_path / "table.json"
    path.write_bytes(Table("t", (replace(row, certificate={**row.certificate, "kernel_hash": "0" * 64}),)).render())
    code, data = check(tmp_path, path)
    assert (code, data["stale"], data["rows"][0]["stale"]) == (0, 1, True)
    text = " ".join(call("defaults", "check", "--ledger", tmp_path / "ledger", "--table", path)[1].split())
    assert "stale (000000000000)" in text
    assert "1 rows were measured with other kernel sources" in text


def test_rows_without_evidence_are_faults(tmp_path):
    whole = make_row(8, kernel_hash())
    lost = replace(whole, certificate={**whole.certificate, "records": ["ab" * 32], "alpha": 0.25})
    lacking = make_row(32, kernel_hash())
    lacking = replace(lacking, certificate={k: v for k, v in lacking.certificate.items() if k != "alpha"})
    path = tmp_path / "table.json"
    path.write_bytes(Table("t", (lost, lacking)).render())
    code, data = check(tmp_path, path)
    assert code == 1
    assert [entry["lost_records"] for entry in data["rows"]] == [1, 0]
    assert [entry["missing"] for entry in data["rows"]] == [[], ["alpha"]]
    assert data["alpha"] == {str(path): 0.25}
    text = " ".join(call("defaults", "check", "--ledger", tmp_path / "ledger", "--table", path)[1].split())
    assert "1 of 1 records are nowhere" in text
    assert "lacks alpha" in text


def test_a_row_from_a_replay_says_that_it_was_no_attempt(tmp_path):
    words = "a replay proves nothing of a device: it is no attempt on a row, and begins as the first each time"
    row = make_row(8, kernel_hash())
    path = tmp_path / "table.json"
    path.write_bytes(Table("t", (replace(row, certificate={**row.certificate, "records": [], "attempt": 1}),)).render())
    for simulated in (False, True):
        with ledgers.open(tmp_path / "ledger", git="off") as ledger, ledger.writer("live", {}) as writer:
            writer.append("campaign", {"simulated": simulated})
        assert check(tmp_path, path)[1]["rows"][0]["replayed"] is simulated
        text = " ".join(call("defaults", "check", "--ledger", tmp_path / "ledger", "--table", path)[1].split())
        assert [words in text, "1, a replay" in text] == [simulated, simulated]


def test_rows_that_cannot_run_are_faults(tmp_path):
    path = tmp_path / "table.json"
    row = make_row(8).as_dict()
    row["value"] |= {"ctas_per_sm": 4, "kv_stages": 12}
    path.write_text(json.dumps({"schema": "mjolnir.defaults/1", "rows": [row]}))
    code, data = check(tmp_path, path)
    assert (code, data["rows"]) == (1, [])
    assert "shared memory" in data["problems"][0]
