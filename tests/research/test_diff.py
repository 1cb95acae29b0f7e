"""Two tables side by side: rows added, removed, changed, with what the change is worth."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mjolnir.backend.table import Table
from mjolnir.research.answer import Failure, UsageFailure
from mjolnir.research.checkout import TABLE_PATH
from mjolnir.research.diff import diff, differences
from mjolnir.research.promote import commit_rows, write_rows
from tests.research.conftest import git, make_row
from tests.research.test_checkout import opened
from tests.research.test_cli import call

pytestmark = pytest.mark.usefixtures("six_rows")


def with_ratio(row, value, incumbent=None):
    ratio = {"value": value, "low": value - 0.01, "high": value + 0.01, "coverage": 0.95}
    return replace(row, certificate={**row.certificate, "ratio_default": ratio, "ratio_incumbent": incumbent})


def test_rows_are_told_apart_by_key_setting_and_evidence():
    old = Table("old", (make_row(1), make_row(8), make_row(32), make_row(64)))
    new = Table("new", (make_row(4), make_row(8, kv_stages=5), make_row(32), with_ratio(make_row(64), 0.8)))
    found = [(entry.row.key.batch, entry.kind) for entry in differences(old, new)]
    assert found == [(1, "removed"), (4, "added"), (8, "changed"), (64, "evidence")]
    assert differences(old, old) == []


def test_two_files(tmp_path):
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    write_rows(old, [with_ratio(make_row(8), 0.9), make_row(1)])
    write_rows(new, [with_ratio(make_row(8, kv_stages=5), 0.81), make_row(32)])
    code, out, _ = call("defaults", "diff", old, new, "--json")
    data = json.loads(out)
    assert code == 0
    assert [entry["kind"] for entry in data["differences"]] == ["removed", "changed", "added"]
    changed = data["differences"][1]
    assert (changed["old"]["value"]["kv_stages"], changed["new"]["value"]["kv_stages"]) == (4, 5)
    assert (changed["old"]["ratio_default"]["value"], changed["new"]["ratio_default"]["value"]) == (0.9, 0.81)
    text = call("defaults", "diff", old, new)[1]
    assert "0.900 by their ratios" in text
    assert "-> the built-in default" in text
    assert "no difference" in call("defaults", "diff", old, old)[1]
    measured = {"value": 0.95, "low": 0.94, "high": 0.96, "coverage": 0.95}
    write_rows(new, [with_ratio(make_row(8, kv_stages=5), 0.81, measured)])
    assert "0.950 [0.940, 0.960] measured" in " ".join(call("defaults", "diff", old, new)[1].split())


def test_revisions_of_the_packaged_table(checkout, monkeypatch):
    commit_rows(opened(checkout), [make_row(8), make_row(32)])
    monkeypatch.chdir(checkout / "kernel")
    kinds = [(d["kind"], d["key"]["batch"]) for d in diff("HEAD~2", "HEAD").data["differences"]]
    assert kinds == [("added", 8), ("added", 32)]
    assert [d["kind"] for d in diff("HEAD", "HEAD~1").data["differences"]] == ["removed"]
    assert diff(None, None).data["differences"] == []
    (checkout / TABLE_PATH).write_bytes(Table("t", (make_row(8),)).render())
    found = diff(None, None)
    assert (found.data["old"], found.data["new"]) == (f"HEAD:{TABLE_PATH}", TABLE_PATH)
    assert [(d["kind"], d["key"]["batch"]) for d in found.data["differences"]] == [("removed", 32)]
    assert git(checkout, "status", "--porcelain") == f"M {TABLE_PATH}"


def test_outside_of_a_checkout_the_users_table_is_compared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MJOLNIR_DEFAULTS", str(tmp_path / "mine.json"))
    write_rows(tmp_path / "mine.json", [make_row(2)])
    found = diff(None, None)
    assert found.data["old"] == "packaged table"
    assert [d["kind"] for d in found.data["differences"]] == ["removed", "added", *["removed"] * 5]
    with pytest.raises(UsageFailure, match="outside of a Mjolnir checkout"):
        diff("HEAD", None)


def test_what_is_no_table_is_refused(checkout, tmp_path, monkeypatch):
    monkeypatch.chdir(checkout)
    with pytest.raises(UsageFailure, match="neither a file nor a git revision"):
        diff("no-such-branch", None)
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(Failure, match="nothing can be said of rows that do not parse"):
        diff(str(broken), None)
