"""The compile pool: what a compiler can do to it, and sharing of equal jobs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mjolnir.kernel import cache
from mjolnir.kernel.cases import Inputs, gate_cases, make_inputs
from mjolnir.kernel.cases import expected as emulated
from mjolnir.kernel.engine import Engine
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.tolerance import bound
from mjolnir.kernel.variant import Variant
from mjolnir.tuner.bench import Status
from mjolnir.tuner.gpu.compiler import variant_of
from mjolnir.tuner.gpu.expectation import Expectation
from mjolnir.tuner.gpu.expected import EXPECTED_BY, cases_of, drawn, expected_outputs, find, load_expected, load_inputs
from mjolnir.tuner.gpu.pool import CompilePool, Need
from tests.fakes.compiler import CRASHES, FAILS, HANGS
from tests.fakes.gpu import DEVICE
from tests.kernel.reached import reached
from tests.tuner.gpu.conftest import EXPECTATIONS, GEOMETRY, GRID


def variant(l2_prefetch: int, **knobs: int) -> Variant:
    return Variant.of(Setting(l2_prefetch=l2_prefetch, **knobs), GEOMETRY, DEVICE)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[CompilePool]:
    made = CompilePool(tmp_path, processes=2, seconds=1.0, target="tests.fakes.compiler:create")
    yield made
    made.close()


def test_one_compiler_going_wrong_leaves_the_others_alone(pool: CompilePool) -> None:
    jobs = {name: pool.variant(variant(name)) for name in (0, HANGS, CRASHES, FAILS, 1)}
    jobs[2] = pool.variant(variant(2))  # after all of them
    built = {name: job.result(60) for name, job in jobs.items()}
    assert built[0].failure is built[1].failure is built[2].failure is None
    assert built[0].facts["registers"] == 100
    assert built[0].facts["key"] != built[1].facts["key"]
    assert built[HANGS].failure is Status.COMPILE_TIMEOUT
    assert "within 1 s" in built[HANGS].reason
    assert built[CRASHES].failure is Status.COMPILE_FAILED
    assert "SIGSEGV" in built[CRASHES].reason
    assert "internal compiler error" in built[CRASHES].log
    assert built[FAILS].failure is Status.COMPILE_FAILED
    assert built[FAILS].reason == "compiling for sm_90a failed: DSLRuntimeError"
    assert built[FAILS].log == "line 1\nline 2"


def test_a_binary_in_the_cache_is_answered_without_a_process(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    kept, code = variant(0), b"object"
    key = cache.key_of(kept)
    (tmp_path / f"{key}.o").write_bytes(code)
    facts = {"key": key, "path": f"{key}.o", "binary": "ab", "registers": 7, "spill_bytes": 0, "smem_bytes": 8}
    (tmp_path / f"{key}.json").write_text(
        json.dumps({**facts, "seconds": 5.5, "object": hashlib.sha256(code).hexdigest()})
    )
    pool = CompilePool(tmp_path, processes=1, target="tests.fakes.nothing:there")
    of_a_tree = CompilePool(tmp_path, processes=1, target="tests.fakes.compiler:create", tree=Path.cwd())
    try:
        built, other = pool.variant(kept).result(5), pool.variant(variant(1)).result(60)
        assert (built.failure, built.seconds) == (None, 0.0)
        assert built.facts == {**facts, "path": str(tmp_path / f"{key}.o"), "seconds": 5.5}
        assert other.failure is Status.COMPILE_FAILED
        assert of_a_tree.variant(kept).result(60).facts["registers"] == 100  # its sources may be others
        (tmp_path / f"{key}.o").write_bytes(b"damaged")
        assert cache.find(kept, tmp_path) is None
    finally:
        pool.close()
        of_a_tree.close()


def test_what_the_gate_expects_is_answered_without_a_process_once_it_is_made(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    made = expected_outputs(GEOMETRY, EXPECTATIONS[True], tmp_path)
    pool = CompilePool(tmp_path, processes=1, target="tests.fakes.nothing:there")
    try:
        job = pool.expected(GEOMETRY, EXPECTATIONS[True])
        assert job.done()
        assert job.result().facts == {"path": str(made)}
        assert pool.expected(GEOMETRY, EXPECTATIONS[False]).result(60).failure is Status.COMPILE_FAILED
    finally:
        pool.close()
    next(tmp_path.glob("case-*.pt")).unlink()
    assert find(GEOMETRY, EXPECTATIONS[True], tmp_path) is None
    expected_outputs(GEOMETRY, EXPECTATIONS[True], tmp_path)
    made.write_bytes(made.read_bytes()[:-40])
    assert find(GEOMETRY, EXPECTATIONS[True], tmp_path) is None


def test_there_are_no_more_threads_than_were_busy_at_once(tmp_path: Path) -> None:
    pool = CompilePool(tmp_path, processes=8, target="tests.fakes.compiler:create")
    try:
        for prefetch in (0, 1, 2):
            pool.variant(variant(prefetch)).result(60)
            while not pool._idle._value:
                pass  # the thread has answered, and will wait for the next job
        assert len(pool._threads) == 1
        several = [pool.variant(variant(0, kv_stages=stages)) for stages in (2, 3, 4)]
        assert all(job.result(60).failure is None for job in several)
        assert 1 < len(pool._threads) <= 3
    finally:
        pool.close()


def test_equal_jobs_share_one_answer(pool: CompilePool) -> None:
    first = pool.variant(variant(0, max_splits=2))
    assert pool.variant(variant(0, max_splits=64), need=Need.NOW) is first
    assert pool.variant(variant(0, max_splits=1)) is not first


def test_processes_can_be_started_before_there_are_jobs(pool: CompilePool) -> None:
    made = [job.result(60) for job in pool.warm()]
    assert [build.failure for build in made] == [None, None]
    assert [job.result() for job in pool.warm()] == made


def test_closing_cancels_what_has_not_begun(tmp_path: Path) -> None:
    pool = CompilePool(tmp_path, processes=1, target="tests.fakes.compiler:create")
    running = pool.variant(variant(HANGS), need=Need.NOW)
    while not running.running():
        pass
    waiting = pool.variant(variant(0))
    pool.close()
    assert waiting.cancelled()
    assert running.result(5).failure is Status.COMPILE_FAILED
    with pytest.raises(RuntimeError, match="closed"):
        pool.variant(variant(1))


def test_a_variant_survives_the_way_to_the_compiler() -> None:
    made = variant(3, pdl=1)
    assert variant_of(made.as_dict()) == made


@pytest.mark.parametrize("merge", [True, False])
def test_expected_outputs_come_back_as_the_emulator_made_them(expected: dict[str, str], merge: bool) -> None:
    expectation = EXPECTATIONS[merge]
    path = Path(expected[expectation.name])
    stamp = path.stat().st_mtime_ns
    assert expected_outputs(GEOMETRY, expectation, path.parent) == path
    assert path.stat().st_mtime_ns == stamp
    loaded = load_expected(path, GEOMETRY, expectation)
    assert [kept.case for kept in loaded] == list(gate_cases(GEOMETRY, GRID, merge=merge))
    last = loaded[-1]
    assert last.out.dtype is torch.bfloat16
    assert torch.equal(last.out, emulated(last.case, GRID).out)
    assert torch.equal(last.allowed, bound(last.out, GEOMETRY))


def test_inputs_come_back_as_they_were_drawn_gaps_and_strides_included(expected: dict[str, str]) -> None:
    expectation = EXPECTATIONS[True]
    for kept in load_expected(Path(expected[expectation.name]), GEOMETRY, expectation):
        assert kept.inputs.is_file()
        same(load_inputs(kept.case, kept.inputs), make_inputs(kept.case))


def same(one: Inputs, other: Inputs) -> None:
    for name, tensor in one.arguments().items():
        right = getattr(other, name)
        if isinstance(tensor, torch.Tensor):
            assert tensor.stride() == right.stride()
            assert torch.equal(bits(tensor), bits(right)), name
        else:
            assert tensor == right, name
    memories = [torch.tensor([], dtype=torch.uint8).set_(each.cache.untyped_storage()) for each in (one, other)]
    assert torch.equal(*memories), "between the blocks"


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def test_expectations_share_the_inputs_that_they_have_in_common(expected: dict[str, str]) -> None:
    files = [
        [kept.inputs for kept in load_expected(Path(expected[each.name]), GEOMETRY, each)]
        for each in EXPECTATIONS.values()
    ]
    assert files[0] == files[1]
    assert len(set(files[0])) == len(files[0])
    cases = cases_of(GEOMETRY, EXPECTATIONS[True])
    other = cases_of(GEOMETRY, replace(EXPECTATIONS[True], grid=132))
    assert [drawn(a) == drawn(b) for a, b in zip(cases, other, strict=True)] == [case.name != "crowd" for case in cases]
    case = next(case for case in cases if case.margin and case.max_splits == 0)
    same(make_inputs(case), make_inputs(replace(case, max_splits=7, margin=3, name="another")))


def test_a_damaged_file_is_made_anew_and_never_believed(tmp_path: Path) -> None:
    each = EXPECTATIONS[False]
    path = expected_outputs(GEOMETRY, each, tmp_path)
    kept = load_expected(path, GEOMETRY, each)[0]
    for file in (path, kept.inputs):
        whole = file.read_bytes()
        file.write_bytes(whole[:-1000] + bytes([whole[-1000] ^ 1]) + whole[-999:])
    with pytest.raises(ValueError, match="missing or damaged: start the run again"):
        load_expected(path, GEOMETRY, each)
    same(load_inputs(kept.case, kept.inputs), make_inputs(kept.case))
    assert expected_outputs(GEOMETRY, each, tmp_path) == path
    assert torch.equal(load_expected(path, GEOMETRY, each)[0].out, kept.out)
    assert kept.inputs.read_bytes() == whole
    assert not list(tmp_path.glob("*.tmp"))


def test_what_is_expected_is_not_read_where_others_may_write(tmp_path: Path) -> None:
    each = EXPECTATIONS[False]
    path = expected_outputs(GEOMETRY, each, tmp_path)
    tmp_path.chmod(0o770)
    for use in (lambda: expected_outputs(GEOMETRY, each, tmp_path), lambda: load_expected(path, GEOMETRY, each)):
        with pytest.raises(PermissionError, match="can be written by others"):
            use()


def test_other_problems_have_other_files(tmp_path: Path, expected: dict[str, str]) -> None:
    other = Geometry(2, 2, page_size=16, dtype="f16")
    path = expected_outputs(other, EXPECTATIONS[False], tmp_path)
    assert path.name not in {Path(file).name for file in expected.values()}
    assert all(kept.out.dtype is torch.float16 for kept in load_expected(path, other, EXPECTATIONS[False]))


def test_expected_outputs_are_made_anew_when_any_source_of_theirs_changes() -> None:
    facts = {"device.py"}  # of cards; a case says itself on which it is planned
    assert set(EXPECTED_BY) == reached(["cases.py", "tolerance.py"]) - facts


def test_an_expectation_is_that_of_the_settings_warps_and_the_cards_engine(tmp_path: Path) -> None:
    """Eight warps round otherwise than four, and many rows are dealt out to items otherwise than few."""
    settings = Setting(ctas_per_sm=1), Setting(ctas_per_sm=1, consumer_warps=8)
    four, eight = (Expectation.of(setting, DEVICE) for setting in settings)
    assert (four.name, eight.name) == ("4-merge-4", "4-merge-8")
    assert Expectation.of(Setting(max_splits=1), DEVICE).name == "8-whole-4"
    paths = [expected_outputs(GEOMETRY, each, tmp_path) for each in (four, eight)]
    pairs = [load_expected(path, GEOMETRY, each) for path, each in zip(paths, (four, eight), strict=True)]
    assert [kept.case for kept in pairs[0]] == [kept.case for kept in pairs[1]]
    assert not all(torch.equal(a.out, b.out) for a, b in zip(*pairs, strict=True))
    first = pairs[1][0]
    assert torch.equal(first.out, emulated(first.case, 4, eight.engine(GEOMETRY), 8).out)
    wide = Geometry(64, 1, q_len=2)
    assert four.engine(wide) == Engine("wgmma", 64, 2)
    other = Expectation("sm_100a", 4, True, 4)
    assert other.engine(wide) == Engine("warp", 16, 8)
    assert cases_of(wide, four) != cases_of(wide, other)
