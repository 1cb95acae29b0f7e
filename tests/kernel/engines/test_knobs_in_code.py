"""Each baked knob changes what it claims to change, in PTX or machine code, on every architecture; no GPU needed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mjolnir.kernel.device import ARCHITECTURES
from mjolnir.kernel.engines.ptx import EVICT_FIRST, EVICT_NORMAL
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.plan import make_plan
from mjolnir.kernel.variant import stage_bytes
from tests.kernel.engines.machine_code import SMALL, code

pytest.importorskip("cutlass", reason="the extra `dsl` is not installed")
DEFAULT = Setting()
EVERYWHERE = pytest.mark.parametrize("arch", ARCHITECTURES)


def loads(ptx: str) -> list[str]:
    return [line for line in ptx.splitlines() if "cp.async.bulk.tensor.4d.shared" in line]


@EVERYWHERE
def test_kv_is_loaded_by_tma_with_the_evict_first_policy(arch: str) -> None:
    on, off = code(DEFAULT, arch), code(replace(DEFAULT, kv_evict_first=0), arch)
    for made, policy, other in ((on, EVICT_FIRST, EVICT_NORMAL), (off, EVICT_NORMAL, EVICT_FIRST)):
        assert len(loads(made.ptx)) == 2
        assert all("L2::cache_hint" in line for line in loads(made.ptx))
        assert str(policy) in made.ptx
        assert str(other) not in made.ptx
    assert on.cubin != off.cubin


@EVERYWHERE
def test_l2_prefetch_issues_the_prefetch_instruction(arch: str) -> None:
    near, far = code(replace(DEFAULT, l2_prefetch=2), arch), code(replace(DEFAULT, l2_prefetch=5), arch)
    assert "cp.async.bulk.prefetch.tensor" not in code(DEFAULT, arch).ptx
    assert near.ptx.count("cp.async.bulk.prefetch.tensor.4d.L2") == 2
    assert near.opcodes()["UTMAPF.L2.4D"] == 2
    assert near.cubin != far.cubin


@EVERYWHERE
def test_pdl_waits_and_releases_in_both_kernels(arch: str) -> None:
    on, off = code(replace(DEFAULT, pdl=1), arch), code(DEFAULT, arch)
    assert on.ptx.count("griddepcontrol.wait") == 2
    assert on.ptx.count("griddepcontrol.launch_dependents") == 2
    assert "griddepcontrol" not in off.ptx


@EVERYWHERE
def test_pdl_touches_nothing_of_the_chain_before_it_waits(arch: str) -> None:
    ptx = code(replace(DEFAULT, pdl=1), arch).ptx
    for body in ptx.split(".entry")[1:]:
        before = body[: body.index("griddepcontrol.wait")]
        assert not re.search(r"\b(ld|st|atom|red)\.global", before)
        assert "cp.async.bulk.tensor" not in before


@EVERYWHERE
def test_kv_stages_sets_the_bytes_of_the_ring_and_its_barriers(arch: str) -> None:
    for stages in (2, 5):
        barriers = re.findall(
            r"mbarrier\.init\S+\s+\[%r\d+\+(\d+)\]", code(replace(DEFAULT, kv_stages=stages), arch).ptx
        )
        ring = stages * stage_bytes(SMALL)
        # the barriers lie behind the ring: a full and an empty one for each stage
        assert sorted(map(int, barriers)) == [ring + 8 * i for i in range(2 * stages)]


@EVERYWHERE
def test_ctas_per_sm_is_asked_of_the_compiler(arch: str) -> None:
    for ctas in (1, 2, 3):
        made = code(replace(DEFAULT, ctas_per_sm=ctas, kv_stages=2), arch)
        if ctas > 1:
            assert re.findall(r"\.minnctapersm (\d+)", made.ptx) == [str(ctas)]
        assert made.resources.registers <= 65536 // (160 * ctas)
        assert made.resources.frame_bytes == 0
    assert code(replace(DEFAULT, ctas_per_sm=1, kv_stages=2), arch).cubin != made.cubin


@EVERYWHERE
def test_without_splits_no_merge_is_compiled(arch: str) -> None:
    assert code(DEFAULT, arch).ptx.count(".entry") == 2
    assert code(replace(DEFAULT, max_splits=1), arch).ptx.count(".entry") == 1


def test_max_splits_changes_the_plan_and_not_the_binary() -> None:
    assert code(replace(DEFAULT, max_splits=4)).cubin == code(DEFAULT).cubin
    plans = {make_plan([4096], 8, 264, splits, capacity=4096).digest() for splits in (0, 1, 2, 4, 8, 16)}
    assert len(plans) == 6


@EVERYWHERE
def test_the_inner_loop_multiplies_on_tensor_cores_and_spills_nothing(arch: str) -> None:
    made = code(DEFAULT, arch)
    assert made.opcodes()["HMMA.16816.F32"] == 24
    assert made.resources.frame_bytes == 0


@pytest.mark.parametrize("fault", ["mask", "skip", "silent"])
def test_a_fault_is_another_binary(fault: str) -> None:
    assert code(DEFAULT, fault=fault).cubin != code(DEFAULT).cubin
