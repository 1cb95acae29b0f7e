from __future__ import annotations

import pytest

from mjolnir.backend.overrides import Overrides, variable
from mjolnir.kernel.knobs import KNOBS, Setting, knob


def test_variables_are_those_of_the_knobs() -> None:
    names = {"CTAS", "KV_STAGES", "CONSUMER_WARPS", "MAX_SPLITS", "PDL", "L2_PREFETCH", "KV_EVICT_FIRST"}
    assert {variable(item) for item in KNOBS} == {f"MJOLNIR_ATTN_{name}" for name in names}


@pytest.mark.parametrize("item", KNOBS, ids=lambda item: item.name)
def test_every_knob_can_be_set(item: object) -> None:
    found = knob(item.name)  # type: ignore[attr-defined]
    value = found.values[-1]
    overrides = Overrides.read({variable(found): str(value), "MJOLNIR_ATTN_OTHER": "x"})
    assert overrides.values == {found.name: value}
    assert getattr(overrides.apply(Setting()), found.name) == value


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1), ("true", 1), ("Yes", 1), ("ON", 1), ("0", 0), ("false", 0), ("no", 0), ("oFF", 0)]
)
def test_switches_take_words(text: str, value: int) -> None:
    assert Overrides.read({"MJOLNIR_ATTN_PDL": text}).values == {"pdl": value}


def test_older_spelling_is_read_where_the_new_one_is_absent() -> None:
    overrides = Overrides.read({"THOR_T5_CTAS": "3", "THOR_T5_PDL": "1", "MJOLNIR_ATTN_PDL": "0"})
    assert overrides.values == {"ctas_per_sm": 3, "pdl": 0}
    assert overrides.variables == {"ctas_per_sm": "THOR_T5_CTAS", "pdl": "MJOLNIR_ATTN_PDL"}


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("MJOLNIR_ATTN_CTAS", "5", "1 to 4"),
        ("MJOLNIR_ATTN_CTAS", "two", "1 to 4"),
        ("MJOLNIR_ATTN_CTAS", "on", "1 to 4"),
        ("MJOLNIR_ATTN_KV_STAGES", "1", "0, 2 to 12"),
        ("MJOLNIR_ATTN_MAX_SPLITS", "2.0", "0 to 512"),
        ("MJOLNIR_ATTN_PDL", "maybe", r"off \(0\), on \(1\)"),
        ("THOR_T5_L2_PREFETCH", "-1", "0 to 8"),
    ],
)
def test_error_names_variable_value_and_what_is_allowed(name: str, text: str, allowed: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} = '{text}' is not allowed: {allowed}$"):
        Overrides.read({name: text})


def test_an_empty_variable_is_none() -> None:
    assert Overrides.read({"MJOLNIR_ATTN_CTAS": ""}) == Overrides()
    assert Overrides.read({"MJOLNIR_ATTN_CTAS": "", "THOR_T5_CTAS": "3"}).values == {"ctas_per_sm": 3}


def test_ctas_without_stages_sets_stages_to_zero() -> None:
    base = Setting(ctas_per_sm=1, kv_stages=12)
    assert Overrides.read({"MJOLNIR_ATTN_CTAS": "2"}).apply(base) == Setting(ctas_per_sm=2, kv_stages=0)
    both = Overrides.read({"MJOLNIR_ATTN_CTAS": "2", "MJOLNIR_ATTN_KV_STAGES": "3"})
    assert both.apply(base) == Setting(ctas_per_sm=2, kv_stages=3)
    assert Overrides.read({"MJOLNIR_ATTN_PDL": "1"}).apply(base) == Setting(ctas_per_sm=1, kv_stages=12, pdl=1)


def test_what_was_chosen_for_other_ctas_or_warps_is_not_kept() -> None:
    base = Setting(ctas_per_sm=1, kv_stages=12, consumer_warps=8, l2_prefetch=2)
    ctas = Overrides.read({"MJOLNIR_ATTN_CTAS": "2"})
    assert ctas.apply(base) == Setting(ctas_per_sm=2, kv_stages=0, consumer_warps=4, l2_prefetch=2)
    assert ctas.source("consumer_warps") == ctas.source("kv_stages") == "MJOLNIR_ATTN_CTAS"
    assert ctas.source("l2_prefetch") is None
    warps = Overrides.read({"MJOLNIR_ATTN_CONSUMER_WARPS": "4", "MJOLNIR_ATTN_PDL": "1"})
    assert warps.apply(base) == Setting(ctas_per_sm=1, kv_stages=0, consumer_warps=4, pdl=1, l2_prefetch=2)
    assert warps.source("kv_stages") == "MJOLNIR_ATTN_CONSUMER_WARPS"
    assert warps.source("ctas_per_sm") is None
    whole = Overrides.read({"MJOLNIR_ATTN_CTAS": "1", "MJOLNIR_ATTN_CONSUMER_WARPS": "8"})
    assert whole.apply(Setting(kv_stages=3)) == Setting(ctas_per_sm=1, kv_stages=0, consumer_warps=8)
    assert whole.source("kv_stages") == "MJOLNIR_ATTN_CTAS"


def test_nothing_set_changes_nothing() -> None:
    overrides = Overrides.read({})
    assert overrides == Overrides()
    assert overrides.apply(Setting(pdl=1)) == Setting(pdl=1)
