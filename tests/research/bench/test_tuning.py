"""Settings come from a file, the table or a search, in this order, and the search finds what is fast."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mjolnir.backend.lookup import Defaults
from mjolnir.backend.table import Table
from mjolnir.kernel.device import H200
from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.rule import built_in
from mjolnir.kernel.variant import infeasible, resolve
from mjolnir.research.answer import UsageFailure
from mjolnir.research.bench import rows
from mjolnir.research.bench.points import MAIN, spot
from mjolnir.research.bench.rows import TOKEN_MAJOR
from mjolnir.research.bench.tuning import Tuned, key_of, read, search
from tests.research.bench.made import row
from tests.research.conftest import make_row

PLACE = spot(MAIN, 8, 8192)
EMPTY = Defaults((Table("table"),))


def test_file_comes_before_table_and_table_before_default() -> None:
    chosen = {key_of(PLACE): Setting(pdl=1), key_of(PLACE, "chain"): Setting(max_splits=4)}
    table = Defaults((Table("table", (make_row(8, kv_stages=5),)),))
    filed, served = Tuned(H200, table, chosen), Tuned(H200, table)
    assert (filed.choice(PLACE, Placement()).setting, filed.choice(PLACE, Placement()).origin) == (
        Setting(pdl=1),
        "file",
    )
    assert filed.choice(PLACE, Placement(), "chain").setting == Setting(max_splits=4)
    assert served.choice(PLACE, Placement()).origin == "table"
    assert served.choice(PLACE, Placement()).setting == Setting(kv_stages=5)
    other = spot(Geometry(16, 2, 256), 8, 8192)
    assert filed.choice(other, Placement()).origin == "built-in rule"
    assert Tuned(H200, EMPTY).choice(PLACE, Placement()).setting == built_in(PLACE.geometry, H200, PLACE.batch)


def test_a_list_of_settings_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    entries = [
        {"geometry": "32/8xd128,page=64", "batch": 8, "context": 8192, "q_len": 4, "knobs": {"pdl": 1}},
        {"geometry": "32/8xd128", "lengths": "1x65536+31x4096", "knobs": {"kv_stages": 4}},
        {"geometry": "32/8xd128", "batch": 1, "context": 4096, "timing": "chain", "knobs": {}},
    ]
    path.write_text(json.dumps(entries))
    full = str(MAIN)
    assert read(path) == {
        (str(replace(MAIN, q_len=4)), "8x8192", "graph"): Setting(pdl=1),
        (full, "1x65536+31x4096", "graph"): Setting(kv_stages=4),
        (full, "1x4096", "chain"): Setting(),
    }


def test_a_result_file_is_read_for_its_head_major_settings(tmp_path: Path) -> None:
    path = tmp_path / "kernel-peers-h200.json"
    one = {"setting": {"pdl": 1}}
    made = [
        row("mjolnir", PLACE, 3.0), {**row("mjolnir", PLACE, 3.0, layout=TOKEN_MAJOR), "setting": {"pdl": 0}},
        {**row("mjolnir", PLACE, 3.0, timing="chain"), "setting": {"max_splits": 2}}, row("fa3", PLACE, 4.0),
    ]  # fmt: skip
    rows.write(path, {"schema": rows.SCHEMA, "rows": made})
    assert read(path) == {
        key_of(PLACE): Setting(**one["setting"]), key_of(PLACE, "chain"): Setting(max_splits=2)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "tuned.json"),
        ("3", "neither a list of settings nor a result file"),
        ('[{"batch": 1}]', "entry 0: KeyError: 'geometry'"),
        ('[{"geometry": "32/8xd128", "batch": 1, "context": 64, "knobs": {"speed": 1}}]', "unknown knob 'speed'"),
        ('[{"geometry": "32/8xd128", "batch": 1, "context": 64, "knobs": {"pdl": 7}}]', "pdl = 7"),
        ('[{"geometry": "32/8xd128", "batch": 0, "context": 64, "knobs": {}}]', "no sequences"),
    ],
)
def test_a_malformed_file_is_told(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "tuned.json"
    path.write_text(text)
    with pytest.raises(UsageFailure, match=told):
        read(path)


class Stopwatch:
    """Times settings by a rule, and remembers them."""

    def __init__(self) -> None:
        self.timed: list[Setting] = []

    def __call__(self, setting: Setting) -> float | None:
        self.timed.append(setting)
        if setting.ctas_per_sm == 1:
            return None  # does not compile
        us = 100.0 + (setting.ctas_per_sm != 3) + 2 * (resolve(setting, MAIN, H200).kv_stages != 3)
        return us - 5 * setting.pdl - 3 * (setting.max_splits == 16) - (setting.l2_prefetch == 2)


def test_search_finds_binary_splits_and_then_the_rest() -> None:
    watch = Stopwatch()
    found = search([Setting(max_splits=8), Setting()], MAIN, H200, watch, 60)
    assert found is not None
    assert resolve(found, MAIN, H200) == Setting(ctas_per_sm=3, kv_stages=3, pdl=1, max_splits=16, l2_prefetch=2)
    assert len(watch.timed) <= 60
    assert watch.timed[:2] == [Setting(max_splits=8), Setting()]
    folded = [resolve(setting, MAIN, H200) for setting in watch.timed]
    assert len(folded) == len(set(folded)), "nothing is timed twice"
    assert not any(infeasible(setting, MAIN, H200) for setting in watch.timed)


def test_search_turns_pdl_off_where_all_likely_binaries_have_it_on() -> None:
    timed: dict[Setting, float] = {}

    def watch(setting: Setting) -> float:
        eight = setting.consumer_warps == 8 and setting.kv_stages == 4
        return timed.setdefault(setting, 10.0 - 2 * eight + 0.5 * setting.pdl)

    found = search([Setting()], MAIN, H200, watch, 10)
    assert found == Setting(ctas_per_sm=1, consumer_warps=8, kv_stages=4, pdl=0)
    assert len(timed) == 10


def test_search_keeps_to_its_limit() -> None:
    for limit in (1, 2, 5, 12):
        watch = Stopwatch()
        assert search([Setting(max_splits=8), Setting()], MAIN, H200, watch, limit) is not None
        assert len(watch.timed) == limit


def test_search_without_a_setting_that_runs_finds_none() -> None:
    assert search([Setting()], MAIN, H200, lambda setting: None, 9) is None
