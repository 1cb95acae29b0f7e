"""Knobs: one declaration, domains that hold, and assignments as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mjolnir.kernel.knobs import KNOBS, Knob, Setting, knob, parse_assignment

settings = st.builds(Setting, **{item.name: st.sampled_from(item.values) for item in KNOBS})


def test_the_built_in_default() -> None:
    assert Setting().as_dict() == {
        "ctas_per_sm": 2,
        "kv_stages": 0,
        "consumer_warps": 4,
        "max_splits": 0,
        "pdl": 0,
        "l2_prefetch": 0,
        "kv_evict_first": 1,
    }


@pytest.mark.parametrize("item", KNOBS, ids=lambda item: item.name)
def test_declarations_are_sound(item: Knob) -> None:
    assert list(item.values) == sorted(set(item.values))
    assert item.default in item.values
    assert set(item.search) <= set(item.values)
    assert item.default in item.search
    assert item.help
    assert item.variable.isupper()
    assert knob(item.name) is item


def test_only_the_plan_knob_is_not_baked() -> None:
    assert [item.name for item in KNOBS if not item.baked] == ["max_splits"]
    assert knob("max_splits").search == (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@given(settings)
def test_dictionaries_come_back(setting: Setting) -> None:
    assert Setting.from_dict(setting.as_dict()) == setting
    assert Setting.from_dict(setting.changed(Setting())) == setting


@given(settings, st.sampled_from(KNOBS), st.integers(-1000, 1000))
def test_values_outside_a_domain_are_refused(setting: Setting, item: Knob, value: int) -> None:
    values = {**setting.as_dict(), item.name: value}
    if value in item.values:
        assert getattr(Setting.from_dict(values), item.name) == value
    else:
        with pytest.raises(ValueError, match=f"{item.name} = {value} is not allowed"):
            Setting.from_dict(values)


def test_settings_from_before_a_knob_have_its_default() -> None:
    older = {"ctas_per_sm": 1, "kv_stages": 6, "max_splits": 4, "pdl": 1, "l2_prefetch": 0, "kv_evict_first": 1}
    assert Setting.from_dict(older) == Setting(1, 6, 4, 4, 1, 0, 1)
    assert Setting.from_dict(older).consumer_warps == 4


def test_switches_become_whole_numbers() -> None:
    assert Setting(pdl=True) == Setting(pdl=1)
    assert type(Setting(pdl=True).pdl) is int


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kv_stages=4", ("kv_stages", 4)),
        (" pdl = on", ("pdl", 1)),
        ("kv_evict_first=No", ("kv_evict_first", 0)),
        ("max_splits=512", ("max_splits", 512)),
    ],
)
def test_assignments(text: str, expected: tuple[str, int]) -> None:
    assert parse_assignment(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kv_stages", "not of the form KNOB=VALUE"),
        ("stages=4", "unknown knob 'stages'; the knobs are ctas_per_sm"),
        ("kv_stages=four", "not a whole number: 0, 2 to 12"),
        ("kv_stages=on", "not a whole number"),
        ("kv_stages=1", "is not allowed: 0, 2 to 12"),
        ("ctas_per_sm=5", "is not allowed: 1 to 4"),
        ("consumer_warps=6", "is not allowed: 4 or 8"),
        ("pdl=2", r"is not allowed: off \(0\), on \(1\)"),
    ],
)
def test_assignments_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_assignment(text)


def test_unknown_knobs_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown knob 'depth'"):
        Setting.from_dict({"depth": 3})
