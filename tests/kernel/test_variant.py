"""Variants: what fits, what is folded, and what names a binary."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mjolnir.kernel.device import ARCHITECTURES, H200, REGISTERS_PER_SM, SMEM_PER_SM, Device
from mjolnir.kernel.engine import Engine, engine_for
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import KNOBS, Setting
from mjolnir.kernel.variant import (
    Variant,
    fixed_smem_bytes,
    infeasible,
    loading_warps,
    registers_per_thread,
    resolve,
    stage_bytes,
    stages_that_fit,
    warpgroup_registers,
)

GEOMETRY = Geometry(32, 8)
WIDE = Geometry(64, 8, q_len=8)
"""64 rows of a KV head: engine wgmma on the H200."""

LONG = Geometry(16, 2, head_dim=256)
GEOMETRIES = [GEOMETRY, WIDE, LONG, Geometry(64, 8, q_len=4), Geometry(16, 2, head_dim=256, q_len=4)]
WARP = engine_for(GEOMETRY, "sm_90a")
settings = st.builds(Setting, **{item.name: st.sampled_from(item.values) for item in KNOBS})


def test_a_stage_is_k_and_v_of_one_tile() -> None:
    assert stage_bytes(GEOMETRY) == 2 * 64 * 128
    assert stage_bytes(LONG) == 2 * 64 * 256


@given(settings, st.sampled_from(GEOMETRIES))
def test_no_deeper_ring_would_fit(setting: Setting, geometry: Geometry) -> None:
    engine = engine_for(geometry, H200.arch, warps=setting.consumer_warps)
    fixed = fixed_smem_bytes(geometry, engine, setting.consumer_warps) + 1024
    stages, step = stages_that_fit(setting, geometry, H200), setting.consumer_warps // 4
    taken = setting.ctas_per_sm * (stages * stage_bytes(geometry) + fixed)
    assert stages <= 12
    assert stages % step == 0
    assert taken <= SMEM_PER_SM
    assert stages == 12 or taken + setting.ctas_per_sm * step * stage_bytes(geometry) > SMEM_PER_SM


@given(settings)
def test_more_of_anything_never_makes_room_for_a_deeper_ring(setting: Setting) -> None:
    stages = stages_that_fit(setting, GEOMETRY, H200)
    if setting.ctas_per_sm > 1:
        assert stages_that_fit(replace(setting, ctas_per_sm=setting.ctas_per_sm - 1), GEOMETRY, H200) >= stages
    assert stages_that_fit(replace(setting, consumer_warps=4), GEOMETRY, H200) >= stages
    assert stages_that_fit(setting, LONG, H200) <= stages


@pytest.mark.parametrize(
    ("ctas", "warps", "registers"),
    [(1, 4, 255), (2, 4, 168), (3, 4, 128), (4, 4, 96), (1, 8, 168), (2, 8, 96), (3, 8, 72), (4, 8, 56)],
)
def test_registers_of_a_thread_of_engine_warp(ctas: int, warps: int, registers: int) -> None:
    setting = Setting(ctas_per_sm=ctas, consumer_warps=warps)
    assert registers_per_thread(setting, WARP) == registers
    # a warp's registers come from one of four schedulers, which holds a quarter of them
    warps_of_a_scheduler = -(-ctas * (warps + 1) // 4)
    assert warps_of_a_scheduler * 32 * registers <= REGISTERS_PER_SM // 4


@pytest.mark.parametrize("ctas", [2, 3])
def test_the_warpgroups_of_engine_wgmma_share_what_a_cta_may_have(ctas: int) -> None:
    engine = engine_for(WIDE, "sm_90a")
    computing, loading = warpgroup_registers(ctas)
    assert registers_per_thread(Setting(ctas_per_sm=ctas), engine) == computing
    assert computing % 8 == loading % 8 == 0
    # registers change hands within what the CTA was launched with: a warpgroup that asks for more waits for ever
    launched = REGISTERS_PER_SM // (ctas * 256) // 8 * 8
    assert computing + loading == 2 * launched
    assert loading >= 24


@given(settings, st.sampled_from(GEOMETRIES))
def test_what_is_feasible_fits_an_sm(setting: Setting, geometry: Geometry) -> None:
    engine = engine_for(geometry, H200.arch, warps=setting.consumer_warps)
    resolved = resolve(setting, geometry, H200)
    assert resolve(resolved, geometry, H200) == resolved
    cta = resolved.kv_stages * stage_bytes(geometry) + fixed_smem_bytes(geometry, engine, setting.consumer_warps) + 1024
    reason = infeasible(setting, geometry, H200)
    if reason is None:
        assert resolved.kv_stages >= 2
        assert setting.ctas_per_sm * cta <= SMEM_PER_SM
        assert registers_per_thread(setting, engine) >= 112
        variant = Variant.of(setting, geometry, H200)
        assert variant.smem_bytes + 1024 == cta
        assert variant.threads == 32 * (setting.consumer_warps + loading_warps(engine))
    elif "consumer_warps" not in reason and "even number" not in reason:
        assert ("shared memory" in reason) == (setting.ctas_per_sm * cta > SMEM_PER_SM or resolved.kv_stages < 2)


def test_eight_warps_want_an_sm_for_themselves_and_engine_warp() -> None:
    wide = Setting(consumer_warps=8)
    assert infeasible(replace(wide, ctas_per_sm=1), GEOMETRY, H200) is None
    assert "2 CTAs of 8 computing warps per SM leave 96 a thread" in (infeasible(wide, GEOMETRY, H200) or "")
    assert infeasible(replace(wide, ctas_per_sm=1), WIDE, H200) == (
        "consumer_warps = 8: engine wgmma computes with 4 warps"
    )
    thor = Device("sm_110a", "Thor", 20)
    assert infeasible(replace(wide, ctas_per_sm=1), WIDE, thor) is None


def test_zero_stages_mean_as_many_as_fit() -> None:
    fit = stages_that_fit(Setting(), GEOMETRY, H200)
    assert resolve(Setting(), GEOMETRY, H200) == Setting(kv_stages=fit)
    assert fit == 5
    assert resolve(Setting(), WIDE, H200).kv_stages == 4
    assert resolve(Setting(), WIDE, H200, engine_for(WIDE, H200.arch, "warp")).kv_stages == fit
    assert resolve(Setting(kv_stages=3), GEOMETRY, H200) == Setting(kv_stages=3)


def test_reasons_say_what_is_short() -> None:
    assert infeasible(Setting(), GEOMETRY, H200) is None
    reason = infeasible(Setting(kv_stages=7), GEOMETRY, H200)
    assert reason is not None
    assert "7 stages take" in reason
    assert "at most 5 stages fit" in reason
    assert "registers" in (infeasible(Setting(ctas_per_sm=4), GEOMETRY, H200) or "")
    many = Geometry(128, 8)
    reason = infeasible(Setting(ctas_per_sm=3), many, H200, engine_for(many, H200.arch, "warp"))
    assert "16 query rows of engine warp need about 144" in (reason or "")
    with pytest.raises(ValueError, match="cannot run: shared memory"):
        Variant.of(Setting(kv_stages=7), GEOMETRY, H200)


def test_a_variant_holds_the_baked_knobs_alone() -> None:
    base = Variant.of(Setting(), GEOMETRY, H200)
    assert base == Variant.of(Setting(kv_stages=base.kv_stages, max_splits=8), GEOMETRY, H200)
    assert base.merge
    assert not Variant.of(Setting(max_splits=1), GEOMETRY, H200).merge


def test_every_field_is_part_of_the_key() -> None:
    base = Variant.of(Setting(), GEOMETRY, H200)
    others = {
        "geometry": Geometry(32, 8, page_size=16),
        "arch": "sm_100a",
        "engine": "wgmma",
        "ctas_per_sm": 1,
        "kv_stages": 3,
        "consumer_warps": 8,
        "pdl": 1,
        "l2_prefetch": 3,
        "kv_evict_first": 0,
        "merge": False,
        "lse": True,
        "q_mul": True,
        "o_mul": True,
        "fault": "mask",
    }
    assert set(others) == {field.name for field in fields(Variant)}
    keys = {replace(base, **{name: value}).key() for name, value in others.items()}  # type: ignore[arg-type]
    assert len(keys | {base.key()}) == len(others) + 1
    assert base.key() == Variant.of(Setting(), GEOMETRY, H200).key()
    assert base.key("sources") != base.key()


def test_the_engine_can_be_named_where_it_runs() -> None:
    assert Variant.of(Setting(), WIDE, H200).engine == "wgmma"
    assert Variant.of(Setting(), WIDE, H200).shape == Engine("wgmma", 64, 1)
    assert Variant.of(Setting(), WIDE, H200, engine="warp").shape == Engine("warp", 16, 4)
    with pytest.raises(ValueError, match="engine wgmma needs sm_90a, not sm_100a"):
        Variant.of(Setting(), WIDE, Device("sm_100a", "B200", 148), engine="wgmma")


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_the_built_in_default_runs_everywhere(arch: str, geometry: Geometry) -> None:
    assert infeasible(Setting(), geometry, Device(arch, "any", 20)) is None


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


def test_a_stage_always_belongs_to_the_same_warps() -> None:
    """Eight warps work on two tiles at once: with three stages, stage 0 would hold a tile of the one four, then of the
    others."""
    eight = Setting(ctas_per_sm=1, consumer_warps=8, kv_stages=3)
    assert infeasible(eight, GEOMETRY, H200) == "kv_stages = 3: 8 computing warps need an even number"
    assert infeasible(replace(eight, kv_stages=4), GEOMETRY, H200) is None
    assert infeasible(replace(eight, consumer_warps=4), GEOMETRY, H200) is None
    assert resolve(replace(eight, kv_stages=0), LONG, H200).kv_stages == 6
