"""Demoting takes one row out, by one commit or from a file, and leaves a record of why."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mjolnir import ledger as ledgers
from mjolnir.backend.table import Table
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.research.answer import UsageFailure
from mjolnir.research.checkout import TABLE_PATH
from mjolnir.research.pick import pick
from mjolnir.research.promote import commit_rows, write_rows
from tests.research.conftest import git, make_row
from tests.research.test_checkout import opened
from tests.research.test_cli import call
from tests.research.test_promote import campaign, promotion

pytestmark = pytest.mark.usefixtures("on_their_word")


@pytest.fixture
def proven(tmp_path: Path) -> Path:
    """A ledger whose campaign proved two rows."""
    with ledgers.open(tmp_path / "ledger", git="off") as ledger, ledger.writer("live", {}) as writer:
        writer.append("campaign", campaign())
        writer.append("promotion", promotion(8))
        writer.append("promotion", promotion(32))
    return tmp_path / "ledger"


def test_a_checkout_loses_the_row_by_one_commit(proven, checkout, monkeypatch):
    commit_rows(opened(checkout), [make_row(8), make_row(32)])
    before = git(checkout, "rev-parse", "HEAD")
    (checkout / "README.md").write_text("mine\n")
    monkeypatch.chdir(checkout)
    code, out, _ = call("defaults", "demote", "8", "-m", "slower since driver 600", "--ledger", proven, "--json")
    data = json.loads(out)
    assert code == 0
    assert git(checkout, "rev-list", f"{before}..HEAD").split() == data["commits"]
    assert git(checkout, "diff-tree", "--no-commit-id", "--name-only", "-r", "HEAD") == TABLE_PATH
    assert [row.key.batch for row in Table.read(checkout / TABLE_PATH).rows] == [32]
    assert git(checkout, "status", "--porcelain") == "M README.md"
    subject, body = git(checkout, "log", "-1", "--format=%s"), git(checkout, "log", "-1", "--format=%b")
    assert subject == "defaults: demote NVIDIA H200 32/8xd128 batch 8: kv_stages=4"
    assert "slower since driver 600." in body
    assert "Tag: live" in body
    with ledgers.open(proven, git="off") as ledger:
        (record,) = ledger.records("live", "demotion")
    assert record.sha256 == data["record"]
    assert record.body["key"] == make_row(8).key.as_dict()
    assert record.body["reason"] == "slower since driver 600"
    assert record.body["table"] == TABLE_PATH, "a record may be shared, and holds no folder of this machine"


def test_a_demotion_makes_no_campaign(proven, tmp_path):
    table, elsewhere = tmp_path / "table.json", tmp_path / "elsewhere"
    assert call("defaults", "promote", "live", "--table", table, "--ledger", proven)[0] == 0
    for batch, ledger in ((8, elsewhere), (32, proven)):
        assert call("defaults", "demote", batch, "--table", table, "--ledger", ledger)[0] == 0
    with ledgers.open(elsewhere, git="off") as opened_:
        (record,) = opened_.records()
    assert (record.tag, record.kind, record.body["table"]) == ("live", "demotion", "table.json")
    assert json.loads(call("autoresearch", "list", "--ledger", elsewhere, "--json")[1])["tags"] == []
    assert "no campaigns yet" in call("autoresearch", "list", "--ledger", elsewhere)[1]
    listed = json.loads(call("autoresearch", "list", "--ledger", proven, "--json")[1])["tags"]
    assert [tag["tag"] for tag in listed] == ["live"], "its campaign is there"


def test_what_was_demoted_is_not_promoted_again(proven, tmp_path):
    table = tmp_path / "table.json"
    assert call("defaults", "promote", "live", "--table", table, "--ledger", proven)[0] == 0
    assert call("defaults", "demote", "8", "--table", table, "--ledger", proven)[0] == 0
    assert [row.key.batch for row in Table.read(table).rows] == [32]
    code, out, _ = call("defaults", "promote", "live", "--table", table, "--ledger", proven)
    assert code == 4
    assert "0 of 2 proven rows " in out
    said = "batch up to 8: not written: demoted \\S+Z in table.json \\(no reason given\\), which holds"
    assert re.search(said, out)
    elsewhere = json.loads(
        call("defaults", "promote", "live", "--table", tmp_path / "b", "--ledger", proven, "--json")[1]
    )
    assert (elsewhere["changed"], [out["key"]["batch"] for out in elsewhere["left_out"]]) == (1, [8])
    assert " in table.json " in elsewhere["left_out"][0]["reason"], "the table in which it was demoted"
    with ledgers.open(proven, git="off") as ledger, ledger.writer("live", {}) as writer:
        writer.append("promotion", promotion(8, kv_stages=5))
    assert call("defaults", "promote", "live", "--table", table, "--ledger", proven)[0] == 0
    assert [row.setting for row in Table.read(table).rows] == [Setting(kv_stages=5), Setting(kv_stages=4)]


def test_elsewhere_the_users_table_loses_it(proven, tmp_path, monkeypatch):
    table = tmp_path / "config" / "defaults.json"
    monkeypatch.setenv("MJOLNIR_DEFAULTS", str(table))
    monkeypatch.chdir(tmp_path)
    write_rows(table, [make_row(8)])
    code, out, _ = call("defaults", "demote", "batch=8", "--ledger", proven)
    assert code == 0
    assert "no reason given" in out
    assert Table.read(table).rows == ()


def test_a_refusal_leaves_row_and_ledger_as_they_are(proven, checkout, monkeypatch):
    commit_rows(opened(checkout), [make_row(8)])
    monkeypatch.chdir(checkout)
    table = (checkout / TABLE_PATH).read_bytes()
    git(checkout, "checkout", "--quiet", "--detach")
    code, _, err = call("defaults", "demote", "8", "--ledger", proven)
    assert (code, "detached" in err) == (4, True)
    git(checkout, "checkout", "--quiet", "main")
    (checkout / ".git/MERGE_HEAD").write_text(git(checkout, "rev-parse", "HEAD"))
    code, _, err = call("defaults", "demote", "8", "--ledger", proven)
    assert (code, "a merge is under way" in err) == (4, True)
    (checkout / ".git/MERGE_HEAD").unlink()
    (checkout / TABLE_PATH).write_bytes(table + b"\n")
    code, _, err = call("defaults", "demote", "8", "--ledger", proven)
    assert (code, "changes of yours" in err) == (4, True)
    assert (checkout / TABLE_PATH).read_bytes() == table + b"\n"
    with ledgers.open(proven, git="off") as ledger:
        assert ledger.records("live", "demotion") == ()


def test_a_broken_table_is_left_as_it_is(proven, tmp_path):
    table = tmp_path / "table.json"
    write_rows(table, [make_row(8)])
    spoiled = json.loads(table.read_text())
    spoiled["rows"].append({})
    table.write_text(json.dumps(spoiled))
    before = table.read_bytes()
    code, _, err = call("defaults", "demote", "8", "--table", table, "--ledger", proven)
    assert (code, "not changed before it is repaired" in err) == (4, True)
    assert table.read_bytes() == before


def test_a_stale_row_can_be_demoted(proven, checkout, monkeypatch):
    commit_rows(opened(checkout), [make_row(8)])
    (checkout / "kernel/plan.py").write_text("# changed\n")
    git(checkout, "commit", "--quiet", "-am", "kernel")
    monkeypatch.chdir(checkout)
    assert call("defaults", "demote", "8", "--ledger", proven)[0] == 0


def test_a_row_is_picked_by_what_tells_it_apart():
    small, other = make_row(8), make_row(32)
    tables = [Table("one", (small, other)), Table("two", (make_row(8, kv_stages=5),))]
    for text in ("8", "5", "batch=8", "batch=8,device=nvidia h200", json.dumps(small.key.as_dict())):
        table, row = pick(tables, text)
        assert (table.name, row) == ("one", small), "the table that is asked first serves"
    assert pick(tables, "heads_q=32,batch=32", "h200")[1] == other
    for text, device, words in (
        ("heads_q=32", None, "2 rows fit heads_q=32"),
        ("64", None, "no row fits 64; there are"),
        ("8", "thor", "no row fits 8 on thor"),
        ("batches=8", None, "names no row"),
        ("batch=", None, "names no row"),
        ("{batch", None, "is no key"),
    ):
        with pytest.raises(UsageFailure, match=words):
            pick(tables, text, device)
    with pytest.raises(UsageFailure, match="there are no rows"):
        pick([], "8")
    assert Geometry(32, 8) == small.key.geometry
