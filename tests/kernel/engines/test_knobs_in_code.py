"""Each baked knob changes what it claims to change, in PTX or machine code; no GPU needed.

What differs between architectures is looked at on all of them, with all knobs changed at once; that each knob does it
alone is shown on one.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations

import pytest

from mjolnir.kernel.device import ARCHITECTURES
from mjolnir.kernel.engines.ptx import EVICT_FIRST, EVICT_NORMAL
from mjolnir.kernel.knobs import KNOBS, Setting
from mjolnir.kernel.plan import make_plan
from mjolnir.kernel.variant import stage_bytes
from tests.kernel.engines.machine_code import SMALL, Compiler

pytest.importorskip("cutlass", reason="the extra `dsl` is not installed")
DEFAULT = Setting()
CHANGED = Setting(ctas_per_sm=1, kv_stages=2, consumer_warps=8, pdl=1, l2_prefetch=2, kv_evict_first=0)
ALONE = Setting(ctas_per_sm=1, kv_stages=4)
"""With one CTA per SM every knob can be changed alone."""

EVERYWHERE = pytest.mark.parametrize("arch", ARCHITECTURES)


def loads(ptx: str) -> list[str]:
    return [line for line in ptx.splitlines() if "cp.async.bulk.tensor.4d.shared" in line]


def threads(ptx: str) -> list[str]:
    return re.findall(r"\.(?:req|max)ntid (\d+)", ptx)


def test_all_knobs_are_changed() -> None:
    baked = {item.name for item in KNOBS if item.baked}
    assert set(CHANGED.changed(DEFAULT)) == baked


@EVERYWHERE
def test_kv_is_loaded_by_tma_with_the_evict_first_policy(code: Compiler, arch: str) -> None:
    for setting, policy, other in ((DEFAULT, EVICT_FIRST, EVICT_NORMAL), (CHANGED, EVICT_NORMAL, EVICT_FIRST)):
        made = code(setting, arch)
        assert len(loads(made.ptx)) == 2
        assert all("L2::cache_hint" in line for line in loads(made.ptx))
        assert str(policy) in made.ptx
        assert str(other) not in made.ptx


@EVERYWHERE
def test_l2_prefetch_issues_the_prefetch_instruction(code: Compiler, arch: str) -> None:
    assert "cp.async.bulk.prefetch.tensor" not in code(DEFAULT, arch).ptx
    assert code(CHANGED, arch).ptx.count("cp.async.bulk.prefetch.tensor.4d.L2") == 2
    assert code(CHANGED, arch).opcodes()["UTMAPF.L2.4D"] == 2


@EVERYWHERE
def test_one_kernel_decodes_and_merges(code: Compiler, arch: str) -> None:
    for setting in (DEFAULT, CHANGED):
        assert code(setting, arch).ptx.count(".entry") == 1


@EVERYWHERE
def test_pdl_lets_the_next_kernel_begin_and_waits_for_the_one_before(code: Compiler, arch: str) -> None:
    """The next one may begin at once: it waits for this grid's end all the same."""
    on, off = code(CHANGED, arch), code(DEFAULT, arch)
    assert on.ptx.count("griddepcontrol.wait") == on.ptx.count("griddepcontrol.launch_dependents") == 1
    assert on.ptx.index("griddepcontrol.launch_dependents") < on.ptx.index("griddepcontrol.wait")
    assert not re.search(r"@\S+\s+griddepcontrol", on.ptx), "every thread of every CTA does both"
    assert "griddepcontrol" not in off.ptx


@EVERYWHERE
def test_pdl_touches_nothing_of_the_chain_before_it_waits(code: Compiler, arch: str) -> None:
    body = code(CHANGED, arch).ptx.split(".entry")[1]
    before, after = body.split("griddepcontrol.wait")
    touches = r"\b(ld|st|atom|red)\.(?!param|shared)|cp\.async\.bulk\.(tensor|prefetch)|\bprefetch\.(?!tensormap)"
    assert not re.search(touches, before)
    assert re.search(touches, after)


@EVERYWHERE
def test_kv_stages_sets_the_bytes_of_the_ring_and_its_barriers(code: Compiler, arch: str) -> None:
    for setting in (DEFAULT, CHANGED):
        made = code(setting, arch)
        stages = made.variant.kv_stages
        barriers = re.findall(r"mbarrier\.init\S+\s+\[%r\d+\+(\d+)\]", made.ptx)
        ring = stages * stage_bytes(SMALL)
        # the barriers lie behind the ring: a full and an empty one for each stage
        assert sorted(map(int, barriers)) == [ring + 8 * i for i in range(2 * stages)]


@EVERYWHERE
def test_residency_is_asked_of_the_compiler(code: Compiler, arch: str) -> None:
    made = code(DEFAULT, arch)
    assert re.findall(r"\.minnctapersm (\d+)", made.ptx) == ["2"]
    for setting in (DEFAULT, CHANGED):
        resources = code(setting, arch).resources
        per_scheduler = -(-setting.ctas_per_sm * (setting.consumer_warps + 1) // 4)
        assert per_scheduler * 32 * resources.registers <= 65536 // 4
        assert resources.frame_bytes == 0


@EVERYWHERE
def test_consumer_warps_change_the_block(code: Compiler, arch: str) -> None:
    assert set(threads(code(DEFAULT, arch).ptx)) == {"160"}
    assert set(threads(code(CHANGED, arch).ptx)) == {"288"}


def test_each_knob_alone_is_another_binary(code: Compiler) -> None:
    settings = {"none": ALONE}
    for item in KNOBS:
        if item.baked and item.name != "ctas_per_sm":
            settings[item.name] = replace(ALONE, **{item.name: getattr(CHANGED, item.name)})
    settings["l2_prefetch further"] = replace(ALONE, l2_prefetch=5)
    settings["ctas_per_sm"] = replace(ALONE, ctas_per_sm=2)
    settings["ctas_per_sm more"] = replace(ALONE, ctas_per_sm=3, kv_stages=2)
    made = {name: code(setting).cubin for name, setting in settings.items()}
    assert [pair for pair in combinations(made, 2) if made[pair[0]] == made[pair[1]]] == []


def test_without_splits_no_merge_is_compiled(code: Compiler) -> None:
    """The merge counts arrivals with an atomic of the whole GPU; nothing else does."""
    arrival = re.compile(r"\b(atom|red)\S*\.global")
    assert arrival.search(code(DEFAULT).ptx)
    whole = code(replace(DEFAULT, max_splits=1))
    assert not arrival.search(whole.ptx)
    assert len(whole.cubin) < len(code(DEFAULT).cubin)


def test_max_splits_changes_the_plan_and_not_the_binary(code: Compiler) -> None:
    assert code(replace(DEFAULT, max_splits=4)).variant == code(DEFAULT).variant
    plans = {make_plan([4096], 8, 264, splits, capacity=4096).digest() for splits in (0, 1, 2, 4, 8, 16)}
    assert len(plans) == 6


@pytest.mark.parametrize("fault", ["mask", "skip", "silent"])
def test_a_fault_is_another_binary(code: Compiler, fault: str) -> None:
    assert code(DEFAULT, fault=fault).cubin != code(DEFAULT).cubin
