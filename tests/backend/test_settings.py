"""Settings: both spellings, every domain, messages that name variable, value and what is allowed, documentation."""

from __future__ import annotations

from typing import Any

import pytest

from mjolnir.backend.settings import Settings, sources, unknown
from mjolnir.kernel.knobs import KNOBS

PARSED: list[tuple[str, str, Any]] = [
    ("disable", "YES", True),
    ("disable", "off", False),
    ("fallback", "TRITON_ATTN", "TRITON_ATTN"),
    ("q_dtype", "e4m3", "fp8"),
    ("q_dtype", "fp8", "fp8"),
    ("q_dtype", "BFloat16", "native"),
    ("q_dtype", "native", "native"),
    ("max_qlen", "3", 3),
    ("precompile", "None", "none"),
    ("kernel_cache", "0", "off"),
    ("kernel_cache", "on", None),
    ("kernel_cache", "/srv/kernels", "/srv/kernels"),
    ("draft_t5", "0", False),
    ("noncausal", "no", False),
    ("fused_draft", "false", False),
    ("kv_layout", "2bhnd", "2BHND"),
    ("fused_qpack", "off", False),
    ("verbose", "1", True),
    ("banner", "off", False),
]


@pytest.mark.parametrize(("name", "text", "value"), PARSED)
@pytest.mark.parametrize("prefix", ["MJOLNIR_ATTN_", "THOR_T5_"])
def test_a_setting_is_read_in_both_spellings(prefix: str, name: str, text: str, value: Any) -> None:
    assert getattr(Settings.read({prefix + name.upper(): text}), name) == value


def test_every_setting_is_tried_above() -> None:
    assert {name for name, _, _ in PARSED} == set(Settings.model_fields)


def test_the_new_spelling_comes_before_the_older_and_empty_is_absent() -> None:
    both = {"MJOLNIR_ATTN_MAX_QLEN": "2", "THOR_T5_MAX_QLEN": "4"}
    assert Settings.read(both).max_qlen == 2
    assert Settings.read({**both, "MJOLNIR_ATTN_MAX_QLEN": ""}).max_qlen == 4
    assert sources(both)["max_qlen"] == "MJOLNIR_ATTN_MAX_QLEN"
    assert sources({"THOR_T5_BANNER": "0"})["banner"] == "THOR_T5_BANNER"
    assert sources({})["banner"] == "built-in"


@pytest.mark.parametrize(
    ("variable", "text", "allowed"),
    [
        ("MJOLNIR_ATTN_DISABLE", "perhaps", "one of 1, true, yes, on, or 0, false, no, off"),
        ("THOR_T5_BANNER", "2", "one of 1, true, yes, on, or 0, false, no, off"),
        ("MJOLNIR_ATTN_Q_DTYPE", "fp4", "one of fp8, e4m3, native, bf16, bfloat16"),
        ("MJOLNIR_ATTN_MAX_QLEN", "0", "a whole number, 1 to 16"),
        ("MJOLNIR_ATTN_MAX_QLEN", "two", "a whole number, 1 to 16"),
        ("MJOLNIR_ATTN_PRECOMPILE", "some", "one of all, none"),
        ("MJOLNIR_ATTN_KERNEL_CACHE", "kernels", "a folder's absolute path"),
        ("MJOLNIR_ATTN_KV_LAYOUT", "NHD", "one of BHN2D, BNH2D, B2NHD, B2HND, 2BNHD, 2BHND"),
    ],
)
def test_a_wrong_value_is_named_with_its_variable_and_what_is_allowed(variable: str, text: str, allowed: str) -> None:
    with pytest.raises(ValueError, match=f"{variable} = '{text}' is not allowed: {allowed}"):
        Settings.read({variable: text})


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ValueError, match=r"MJOLNIR_ATTN_MAX_QLEN = '99'.*; THOR_T5_VERBOSE = 'x'"):
        Settings.read({"MJOLNIR_ATTN_MAX_QLEN": "99", "THOR_T5_VERBOSE": "x"})


def test_the_documentation_has_a_row_for_each_setting_and_knob() -> None:
    rows = {row.variable: row for row in Settings.documented()}
    assert len(rows) == len(Settings.model_fields) + len(KNOBS) + 1
    assert rows["MJOLNIR_ATTN_BANNER"].default == "on"
    assert rows["MJOLNIR_ATTN_MAX_QLEN"].default == "1 + num_speculative_tokens"
    assert rows["MJOLNIR_ATTN_CTAS"].allowed == "1 to 4"
    assert "MJOLNIR_DEFAULTS" in rows
    assert all(row.meaning and row.allowed for row in rows.values())


def test_unknown_variables_of_ours_are_found() -> None:
    environ = {"MJOLNIR_ATTN_CTAS": "2", "MJOLNIR_ATTN_BANER": "0", "PATH": "/bin", "MJOLNIR_ATTN_KV_SCALES": "x"}
    assert unknown(environ) == ("MJOLNIR_ATTN_BANER", "MJOLNIR_ATTN_KV_SCALES")
