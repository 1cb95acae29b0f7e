from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mjolnir.backend.lookup import Defaults, Resolution
from mjolnir.backend.overrides import Overrides
from mjolnir.backend.table import Key, Row, Table
from mjolnir.kernel.device import H200, Device
from mjolnir.kernel.geometry import Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.rule import built_in

from .rows import GEOMETRY, HASH, PLACEMENT, certificate, key, row, unfitted

A, B, C = Setting(pdl=1), Setting(max_splits=4), Setting(l2_prefetch=2)


def packaged(*rows: Row) -> Table:
    return Table("packaged table", rows)


def look(*tables: Table, batch: int = 8, **options: object) -> Resolution:
    return Defaults(tables, **{"rule": unfitted, **options}).lookup(H200, GEOMETRY, PLACEMENT, batch)  # type: ignore[arg-type]


def path(found: Resolution) -> list[tuple[str, str, str]]:
    return [(step.source, step.rule, step.outcome) for step in found.steps]


def test_exact_key_serves() -> None:
    found = look(packaged(row(8, A), row(16, B), row(4, C)), batch=5)
    assert (found.setting, found.engine, found.row) == (A, "warp", row(8, A))
    assert path(found) == [("packaged table", "exact key", "serves"), ("environment", "override", "none set")]
    assert set(found.sources.values()) == {"packaged table"}
    assert found.steps[0].row == key(8)


def test_where_the_rule_was_fitted_it_is_nearer_than_rows_of_other_batches_and_problems() -> None:
    for other in (row(16, B), row(8, B, page_size=16)):
        found = look(packaged(other), rule=built_in)
        assert (found.row, found.setting) == (None, Setting(1, 4, 8))
        assert [step.outcome for step in found.steps if step.row == other.key] == ["passed over"]
        assert look(packaged(other)).setting == B
    assert look(packaged(row(16, B)), packaged(row(8, C)), rule=built_in).setting == C


def test_larger_neighbour_serves_before_the_smaller() -> None:
    assert look(packaged(row(16, B), row(4, C))).setting == B
    found = look(packaged(row(4, C), row(32, A), row(2, A)))
    assert found.setting == C
    assert path(found)[:2] == [
        ("packaged table", "exact key", "no row"),
        ("packaged table", "nearest bucket", "serves"),
    ]


def test_bucket_of_one_has_a_larger_neighbour_alone() -> None:
    assert look(packaged(row(2, B)), batch=1).setting == B


def test_bucket_more_than_a_factor_of_two_away_does_not_serve() -> None:
    found = look(packaged(row(32, A), row(2, B)))
    assert found.row is None
    assert found.setting == Setting(1, 4, 8)
    assert path(found) == [
        ("packaged table", "exact key", "no row"),
        ("packaged table", "nearest bucket", "no row"),
        ("packaged table", "similar problem", "no row"),
        ("built-in rule", "built-in rule", "serves"),
        ("environment", "override", "none set"),
    ]
    assert set(found.sources.values()) == {"built-in rule"}


@pytest.mark.parametrize(
    ("batch", "changes", "serves"),
    [
        (8, {"page_size": 16}, True),
        (8, {"layout": "token-major"}, True),
        (8, {"kv": "apart"}, True),
        (8, {"device": "NVIDIA H100"}, True),
        (8, {"mig": "7g.141gb"}, True),
        (16, {"heads_q": 16, "heads_kv": 4}, True),
        (32, {"heads_q": 16, "heads_kv": 4}, True),
        (64, {"heads_q": 16, "heads_kv": 4}, False),
        (8, {"heads_q": 16, "heads_kv": 4}, True),
        (4, {"heads_q": 16, "heads_kv": 4}, False),
        (8, {"heads_q": 64}, False),
        (8, {"sm_count": 114}, False),
        (8, {"arch": "sm_100a"}, False),
        (2, {"page_size": 16}, False),
    ],
)
def test_similar_problem(batch: int, changes: dict[str, Any], serves: bool) -> None:
    found = look(packaged(row(batch, A, **changes)))
    assert (found.setting == A) == serves
    if serves:
        assert path(found)[2] == ("packaged table", "similar problem", "serves")


def test_nearest_similar_problem_serves() -> None:
    half: dict[str, Any] = {"heads_q": 16, "heads_kv": 4}
    assert look(packaged(row(8, A, **half), row(16, B, **half), row(32, C, **half))).setting == B
    assert look(packaged(row(8, A, **half), row(32, C, **half))).setting == C
    # equally near: the one that differs in fewest fields, whatever their order in the table
    assert look(packaged(row(8, A, device="A", page_size=16), row(8, B, page_size=16))).setting == B


def test_user_table_comes_before_the_packaged_one() -> None:
    user = Table("user table", (row(8, A),))
    assert look(user, packaged(row(8, B))).setting == A
    found = look(user, packaged(row(2, B)), batch=2)
    assert found.setting == B
    assert path(found)[:4] == [
        ("user table", "exact key", "no row"),
        ("user table", "nearest bucket", "no row"),
        ("user table", "similar problem", "no row"),
        ("packaged table", "exact key", "serves"),
    ]


def test_environment_comes_before_every_table() -> None:
    found = look(packaged(row(8, A)), overrides=Overrides.read({"MJOLNIR_ATTN_PDL": "off", "MJOLNIR_ATTN_CTAS": "1"}))
    assert found.setting == Setting(ctas_per_sm=1, pdl=0)
    assert found.sources["pdl"] == "MJOLNIR_ATTN_PDL"
    assert found.sources["kv_stages"] == found.sources["ctas_per_sm"] == "MJOLNIR_ATTN_CTAS"
    assert found.sources["max_splits"] == "packaged table"
    assert found.steps[-1].outcome == "applied"
    assert found.steps[-1].reason == "MJOLNIR_ATTN_CTAS=1, MJOLNIR_ATTN_PDL=0 changes ctas_per_sm=1 pdl=0"


def test_mixture_that_does_not_fit_names_both_sources() -> None:
    table = packaged(row(8, Setting(ctas_per_sm=2, kv_stages=4)))
    with pytest.raises(ValueError, match=r"from packaged table and MJOLNIR_ATTN_KV_STAGES, cannot run: shared memory"):
        look(table, overrides=Overrides.read({"MJOLNIR_ATTN_KV_STAGES": "12"}))


def test_rejected_row_is_a_step_and_the_next_rule_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    table = packaged(row(8, A), row(16, B))
    monkeypatch.setattr("mjolnir.backend.lookup.infeasible", lambda setting, *_: "too big" if setting == A else None)
    found = look(table)
    assert found.setting == B
    assert path(found)[:2] == [
        ("packaged table", "exact key", "does not fit"),
        ("packaged table", "nearest bucket", "serves"),
    ]
    assert "too big" in found.steps[0].reason


WIDE = replace(GEOMETRY, q_len=16)
"""64 query rows of a KV head: more than engine warp has registers for."""


def test_without_a_row_the_engine_is_the_best_for_the_geometry() -> None:
    defaults = Defaults((packaged(),))
    assert defaults.lookup(H200, GEOMETRY, PLACEMENT, 8).engine == "warp"
    assert defaults.lookup(H200, WIDE, PLACEMENT, 8).engine == "wgmma"
    thor = Device("sm_110a", "NVIDIA Thor", 20)
    assert defaults.lookup(thor, WIDE, PLACEMENT, 8).engine == "warp"


def test_a_row_is_judged_by_the_engine_that_it_names() -> None:
    """Five stages fit two CTAs of engine warp, and not two of engine wgmma with 64 rows."""
    by_warp = Row(Key.of(H200, WIDE, PLACEMENT, 8), "warp", Setting(kv_stages=5), certificate())
    found = Defaults((packaged(by_warp),)).lookup(H200, WIDE, PLACEMENT, 8)
    assert (found.engine, found.setting) == ("warp", Setting(kv_stages=5))
    with pytest.raises(ValueError, match="cannot run: shared memory"):
        Row(by_warp.key, "wgmma", Setting(kv_stages=5), certificate())
    with pytest.raises(ValueError, match="consumer_warps = 8: engine wgmma computes with 4 warps"):
        Row(by_warp.key, "wgmma", Setting(ctas_per_sm=1, consumer_warps=8), certificate())
    with pytest.raises(ValueError, match="value: engine wgmma needs sm_90a, not sm_110a"):
        Row(replace(by_warp.key, arch="sm_110a"), "wgmma", Setting(), certificate())


def test_a_row_from_before_a_knob_has_its_default() -> None:
    values = row(8, Setting(ctas_per_sm=1, kv_stages=4)).as_dict()
    assert values["value"].pop("consumer_warps") == 4
    assert Row.from_dict(values).setting == Setting(ctas_per_sm=1, kv_stages=4, consumer_warps=4)


def test_computing_warps_from_the_environment_need_their_ctas() -> None:
    table = packaged(row(8, Setting(ctas_per_sm=2, kv_stages=4)))
    warps = {"MJOLNIR_ATTN_CONSUMER_WARPS": "8"}
    with pytest.raises(ValueError, match="from packaged table and MJOLNIR_ATTN_CONSUMER_WARPS, cannot run: registers"):
        look(table, overrides=Overrides.read(warps))
    found = look(table, overrides=Overrides.read({**warps, "MJOLNIR_ATTN_CTAS": "1"}))
    assert found.setting == Setting(ctas_per_sm=1, kv_stages=0, consumer_warps=8)
    assert found.sources["kv_stages"] == "MJOLNIR_ATTN_CTAS"


def test_stale_row_serves_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    defaults = Defaults((packaged(row(8, A), row(16, B, kernel_hash="d" * 64)),), rule=unfitted, kernel_hash=HASH)
    assert not defaults.lookup(H200, GEOMETRY, PLACEMENT, 8).stale
    with caplog.at_level(logging.WARNING):
        for batch in (16, 32, 16, 9):
            found = defaults.lookup(H200, GEOMETRY, PLACEMENT, batch)
            assert (found.stale, found.setting) == (True, B)
    assert len(caplog.records) == 1
    assert "measured with other kernel sources (dddddddddddd, now aaaaaaaaaaaa)" in caplog.text


def test_without_a_kernel_hash_nothing_is_stale() -> None:
    assert not look(packaged(row(8, kernel_hash=""))).stale
    assert look(packaged(row(8, kernel_hash="")), kernel_hash=HASH).stale


def test_steps_are_logged_once_and_counted_always(caplog: pytest.LogCaptureFixture) -> None:
    defaults = Defaults((packaged(row(16, B)),), rule=unfitted)
    with caplog.at_level(logging.DEBUG, logger="mjolnir"):
        for batch in (8, 7, 8):
            defaults.lookup(H200, GEOMETRY, PLACEMENT, batch)
    assert len(caplog.records) == 3
    assert defaults.counts == {
        "packaged table: exact key: no row": 3,
        "packaged table: nearest bucket: serves": 3,
        "environment: override: none set": 3,
    }


def test_lookup_is_remembered() -> None:
    defaults = Defaults((packaged(row(8, A)),))
    first = defaults.lookup(H200, GEOMETRY, PLACEMENT, 8)
    assert defaults.lookup(H200, GEOMETRY, PLACEMENT, 5) is first
    assert defaults.lookup(H200, GEOMETRY, Placement(kv="apart"), 8) is not first


def test_incumbent_is_the_row_of_the_exact_key() -> None:
    user, shipped = Table("user table", (row(8, A),)), packaged(row(8, B), row(16, C))
    defaults = Defaults((user, shipped), overrides=Overrides.read({"MJOLNIR_ATTN_PDL": "0"}))
    assert defaults.incumbent(H200, GEOMETRY, PLACEMENT, 8) == row(8, A)
    assert defaults.incumbent(H200, GEOMETRY, PLACEMENT, 16) == row(16, C)
    assert defaults.incumbent(H200, GEOMETRY, PLACEMENT, 4) is None


def test_explanation_is_json() -> None:
    told = json.loads(json.dumps(look(packaged(row(4, C))).as_dict()))
    assert told["key"]["batch"] == 8
    assert told["row"]["key"]["batch"] == 4
    assert told["setting"]["l2_prefetch"] == 2
    assert [step["outcome"] for step in told["steps"]] == ["no row", "serves", "none set"]


def test_load_reads_environment_and_files_once(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_bytes(Table("t", (row(8, A),)).render())
    defaults = Defaults.load({"MJOLNIR_DEFAULTS": str(file), "MJOLNIR_ATTN_L2_PREFETCH": "3"})
    file.unlink()
    assert [table.name for table in defaults.tables] == ["user table", "packaged table"]
    assert defaults.lookup(H200, GEOMETRY, PLACEMENT, 8).setting == Setting(pdl=1, l2_prefetch=3)


def test_load_warns_of_a_named_table_that_is_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Defaults.load({"MJOLNIR_DEFAULTS": str(tmp_path / "none.json")})
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert f"user table: {tmp_path / 'none.json'}: cannot be read" in caplog.text


def test_a_scratch_table_stands_in_for_the_users(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scratch = tmp_path / "scratch.json"
    scratch.write_bytes(Table("t", (row(8, A),)).render())
    defaults = Defaults.load({"MJOLNIR_DEFAULTS": str(tmp_path / "none.json")}, scratch=scratch)
    assert defaults.tables[0] == Table(str(scratch), (row(8, A),))
    assert caplog.records == [], "the user's table is not read"


def test_load_is_silent_without_a_user_table(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert Defaults.load({}).tables[0].rows == ()
    assert caplog.records == []


def test_load_refuses_a_variable_that_does_not_parse() -> None:
    with pytest.raises(ValueError, match="MJOLNIR_ATTN_CTAS = '9'"):
        Defaults.load({"MJOLNIR_ATTN_CTAS": "9"})


def test_importing_is_light() -> None:
    program = (
        "import sys, mjolnir.backend.lookup\n"
        "print(sorted({'torch', 'numpy', 'pydantic', 'platformdirs', 'optuna', 'pandas', 'git'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
