"""Variants: what fits, what is folded, and what names a binary."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mjolnir.kernel.device import H200, SMEM_PER_SM, Device
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import KNOBS, Setting
from mjolnir.kernel.variant import (
    Variant,
    fixed_smem_bytes,
    infeasible,
    registers_per_thread,
    resolve,
    stage_bytes,
    stages_that_fit,
)

GEOMETRY = Geometry(32, 8)
settings = st.builds(Setting, **{item.name: st.sampled_from(item.values) for item in KNOBS})


def test_a_stage_is_k_and_v_of_one_tile() -> None:
    assert stage_bytes(GEOMETRY) == 2 * 64 * 128


@pytest.mark.parametrize(("ctas", "stages"), [(1, 12), (2, 6), (3, 4), (4, 3)])
def test_stages_that_fit_an_h200(ctas: int, stages: int) -> None:
    assert stages_that_fit(ctas, GEOMETRY, H200) == stages


@pytest.mark.parametrize(("ctas", "registers"), [(1, 255), (2, 168), (3, 128), (4, 96)])
def test_registers_of_a_thread(ctas: int, registers: int) -> None:
    assert registers_per_thread(ctas) == registers


@given(settings)
def test_what_is_feasible_fits_the_shared_memory_of_an_sm(setting: Setting) -> None:
    resolved = resolve(setting, GEOMETRY, H200)
    assert resolve(resolved, GEOMETRY, H200) == resolved
    cta = resolved.kv_stages * stage_bytes(GEOMETRY) + fixed_smem_bytes() + 1024
    if infeasible(setting, GEOMETRY, H200) is None:
        assert resolved.kv_stages >= 2
        assert setting.ctas_per_sm * cta <= SMEM_PER_SM
    if setting.ctas_per_sm * cta > SMEM_PER_SM:
        assert "shared memory" in (infeasible(setting, GEOMETRY, H200) or "")


def test_zero_stages_mean_as_many_as_fit() -> None:
    assert resolve(Setting(), GEOMETRY, H200) == Setting(kv_stages=6)
    assert resolve(Setting(kv_stages=3), GEOMETRY, H200) == Setting(kv_stages=3)


def test_reasons_say_what_is_short() -> None:
    assert infeasible(Setting(), GEOMETRY, H200) is None
    reason = infeasible(Setting(kv_stages=7), GEOMETRY, H200)
    assert reason is not None
    assert "7 stages take" in reason
    assert "at most 6 stages fit" in reason
    assert "registers" in (infeasible(Setting(ctas_per_sm=4), GEOMETRY, H200) or "")
    with pytest.raises(ValueError, match="cannot run: shared memory"):
        Variant.of(Setting(kv_stages=7), GEOMETRY, H200)


def test_a_variant_holds_the_baked_knobs_alone() -> None:
    base = Variant.of(Setting(), GEOMETRY, H200)
    assert base == Variant.of(Setting(kv_stages=6, max_splits=8), GEOMETRY, H200)
    assert base.merge
    assert not Variant.of(Setting(max_splits=1), GEOMETRY, H200).merge


def test_every_field_is_part_of_the_key() -> None:
    base = Variant.of(Setting(), GEOMETRY, H200)
    others = {
        "geometry": Geometry(32, 8, page_size=16),
        "arch": "sm_100a",
        "ctas_per_sm": 1,
        "kv_stages": 5,
        "pdl": 1,
        "l2_prefetch": 3,
        "kv_evict_first": 0,
        "merge": False,
        "lse": True,
        "fault": "mask",
    }
    assert set(others) == {field.name for field in fields(Variant)}
    keys = {replace(base, **{name: value}).key() for name, value in others.items()}  # type: ignore[arg-type]
    assert len(keys | {base.key()}) == len(others) + 1
    assert base.key() == Variant.of(Setting(), GEOMETRY, H200).key()
    assert base.key("sources") != base.key()


def test_unsound_variants_are_refused() -> None:
    base = Variant.of(Setting(), GEOMETRY, H200)
    with pytest.raises(ValueError, match="fault 'typo' is not one of none, mask, skip, silent"):
        replace(base, fault="typo")
    with pytest.raises(ValueError, match="call resolve"):
        replace(base, kv_stages=0)


def test_devices() -> None:
    assert H200.smem_per_cta(2) == 114 * 1024 - 1024
    with pytest.raises(ValueError, match="'sm_80' is not supported"):
        Device("sm_80", "NVIDIA A100", 108)
    with pytest.raises(ValueError, match="sm_count = 0"):
        Device("sm_90a", "NVIDIA H200", 0)
