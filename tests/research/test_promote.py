"""Proven rows of a live campaign go into the checkout, or into the user's table where there is none."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mjolnir import ledger as ledgers
from mjolnir.backend.table import Table
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.research.answer import Failure, NotWrittenFailure
from mjolnir.research.findings import _applied_lines
from mjolnir.research.promote import write_rows
from mjolnir.research.rows import proven, row_of
from tests.research.conftest import git, make_row, six_rows_path
from tests.research.test_cli import call

pytestmark = pytest.mark.usefixtures("six_rows", "on_their_word")


def promotion(batch: int = 8, decision: str = "promote", **knobs: int) -> dict[str, Any]:
    row = make_row(batch, None, **knobs)
    values = row.as_dict()
    return {"bucket": batch, "setting": row.setting.as_dict(), "decision": decision, "reason": "", **values}


def campaign(simulated: bool = False) -> dict[str, Any]:
    """The body of a campaign that was compared with the packaged rows."""
    rows = Table.read(six_rows_path()).rows
    incumbents = {str(row.key.batch): row.setting.as_dict() for row in rows if row.key.geometry == Geometry(32, 8)}
    return {"simulated": simulated, "incumbents": incumbents}


@pytest.fixture
def live(tmp_path: Path) -> Callable[..., Path]:
    """Makes a ledger with a campaign on a GPU and the given promotions."""

    def make(*promotions: dict[str, Any], simulated: bool = False) -> Path:
        folder = tmp_path / "ledger"
        with ledgers.open(folder, git="off") as ledger, ledger.writer("live", {}) as writer:
            writer.append("campaign", campaign(simulated))
            for body in promotions:
                writer.append("promotion", body)
        return folder

    return make


def test_a_checkout_gets_one_commit_a_row(live, checkout, monkeypatch):
    folder = live(promotion(8), promotion(32), promotion(64, "not-proven"))
    monkeypatch.chdir(checkout / "kernel")
    code, out, _ = call("defaults", "promote", "live", "--ledger", folder, "--json")
    assert code == 0
    data = json.loads(out)
    assert data["commits"] == git(checkout, "log", "--reverse", "--format=%H", "HEAD~2..").split()
    assert [row["key"]["batch"] for row in data["rows"]] == [8, 32]
    code, out, _ = call("defaults", "promote", "live", "--ledger", folder)
    assert code == 0
    assert "0 of 2 proven rows" in out
    assert "in force already" in out


def test_a_row_keeps_the_check_that_came_nearest_to_its_bound():
    def check(excess: float) -> dict[str, Any]:
        return {"checked": 8, "worst": {"excess": excess, "error": excess / 10, "bound": 0.1, "name": f"case {excess}"}}

    body = promotion(8)
    arms = [{"arms": [{"cases": check(low), "points": check(low + 0.1)}], "kv_seed": 1} for low in (0.2, 0.6, 0.3)]
    body["certificate"] = {**body["certificate"], "instances": 3, "correctness": arms}
    kept = row_of(body).certificate["correctness"]
    assert kept == {"instances": 3, "nearest": check(0.7)["worst"]}


def test_a_refusal_leaves_code_4(live, checkout, monkeypatch):
    folder = live(promotion(8))
    git(checkout, "checkout", "--quiet", "--detach")
    monkeypatch.chdir(checkout)
    code, out, err = call("defaults", "promote", "live", "--ledger", folder, "--json")
    assert code == 4
    assert "detached" in err
    assert json.loads(out)["exit_code"] == 4


def test_elsewhere_the_users_table_gets_the_rows(live, tmp_path, monkeypatch):
    table = tmp_path / "config" / "defaults.json"
    monkeypatch.setenv("MJOLNIR_DEFAULTS", str(table))
    monkeypatch.chdir(tmp_path)
    code, out, _ = call("defaults", "promote", "live", "--ledger", live(promotion(8)))
    assert code == 0
    assert str(table) in out
    assert Table.read(table).rows == (make_row(8),)
    code, out, _ = call("defaults", "show")
    assert "user table" in out
    assert "0.873 [0.861, 0.885]" in out


def test_a_tag_that_proved_nothing_writes_nothing(live, checkout, monkeypatch):
    monkeypatch.chdir(checkout)
    code, out, _ = call("defaults", "promote", "live", "--ledger", live(promotion(8, "not-proven")))
    assert code == 0
    assert "proved no row" in out
    assert git(checkout, "rev-list", "--count", "HEAD") == "1"


def test_a_row_that_the_campaign_was_not_compared_with_stays_unless_it_is_said(live, tmp_path):
    table = tmp_path / "table.json"
    write_rows(table, [make_row(8, kv_stages=3)])
    folder = live(promotion(8), promotion(32))
    wanted = ("defaults", "promote", "live", "--table", table, "--ledger", folder)
    code, out, _ = call(*wanted, "--json")
    data = json.loads(out)
    assert (code, data["changed"], [out["key"]["batch"] for out in data["left_out"]]) == (4, 1, [8])
    told = [str(line) for line in _applied_lines(data)]
    assert told[0] == f"1 of 2 proven rows written to {table}"
    assert told[1].startswith("batch up to 8: not written: live was not compared"), "`run --promote` says it too"
    assert [row.setting.kv_stages for row in Table.read(table).rows] == [3, 4]
    code, out, _ = call(*wanted)
    assert "batch up to 32: kv_stages=4   (in force already)" in out
    assert "batch up to 8: not written: live was not compared with the row in force (kv_stages=3, of live)" in out
    instead = f"mjolnir defaults promote live --table {table} --replace --ledger {folder}"
    assert f"`{instead}` replaces it all the same" in out
    assert call(*shlex.split(instead)[1:])[0] == 0, "it can be copied"
    assert [row.setting.kv_stages for row in Table.read(table).rows] == [4, 4]


def test_a_packaged_row_is_not_shadowed_by_one_that_was_not_compared_with_it(tmp_path):
    with ledgers.open(tmp_path, git="off") as ledger, ledger.writer("live", {}) as writer:
        writer.append("campaign", {"simulated": False, "incumbents": {}})
        writer.append("promotion", promotion(8))
    code, out, _ = call("defaults", "promote", "live", "--table", tmp_path / "table.json", "--ledger", tmp_path)
    assert (code, "live was not compared with the row in force" in out) == (4, True)
    assert not (tmp_path / "table.json").exists()


def test_the_last_decision_on_a_bucket_counts(live):
    with ledgers.open(
        live(promotion(8), promotion(32), promotion(8, kv_stages=5), promotion(32, "not-proven"))
    ) as ledger:
        rows = proven([record.as_dict() for record in ledger.records("live")]).rows
    assert [row.setting for row in rows] == [Setting(kv_stages=5)]


def test_no_row_without_its_evidence(live):
    body = promotion(8)
    body["certificate"] = {name: value for name, value in body["certificate"].items() if name != "records"}
    folder = live(body)
    with ledgers.open(folder) as ledger, pytest.raises(Failure, match="lacks records"):
        proven([record.as_dict() for record in ledger.records("live")])
    code, _, err = call("defaults", "promote", "live", "--table", folder / "table.json", "--ledger", folder)
    assert (code, "nothing was written: the certificate of bucket 8 lacks records" in err) == (4, True)


def test_other_rows_of_a_table_stay(tmp_path):
    path = tmp_path / "new" / "table.json"
    assert write_rows(path, [make_row(8)]) == 1
    assert write_rows(path, [make_row(32)]) == 1
    assert write_rows(path, [make_row(32)]) == 0
    assert Table.read(path).rows == (make_row(8), make_row(32))
    assert [entry.name for entry in path.parent.iterdir()] == ["table.json"]


def test_a_broken_table_is_left_as_it_is(tmp_path):
    path = tmp_path / "table.json"
    path.write_text('{"schema": "mjolnir.defaults/1", "rows": [{}]}')
    before = path.read_bytes()
    with pytest.raises(NotWrittenFailure, match="not changed before it is repaired"):
        write_rows(path, [make_row(8)])
    assert path.read_bytes() == before
