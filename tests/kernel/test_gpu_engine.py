"""The engine on a GPU: every case class against the emulator, plans against the reference, graphs with new lengths."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mjolnir.kernel.cache import CompileError
from mjolnir.kernel.cases import Case, expected, gate_cases, make_inputs
from mjolnir.kernel.device import current_device
from mjolnir.kernel.engine import ENGINES, engine_for, refusal
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.runner import Runner
from mjolnir.kernel.tolerance import excess, lse_excess
from mjolnir.kernel.variant import infeasible

pytestmark = pytest.mark.gpu
GEOMETRIES = (
    "32/8xd128", "8/8xd128,page=16", "32/2xd128,page=32", "36/4xd128,page=128,dtype=f16", "14/2xd128,page=16",
    "32/8xd128,q=4", "64/8xd128,q=8,query=fp8", "16/2xd256,query=fp8", "24/2xd256,page=32,q=3,causal=no,dtype=f16",
)  # fmt: skip
SETTINGS = (
    Setting(),
    Setting(max_splits=1, kv_stages=2),
    Setting(ctas_per_sm=1, pdl=1, l2_prefetch=3),
    Setting(ctas_per_sm=3, kv_evict_first=0, l2_prefetch=8, pdl=1),
    Setting(ctas_per_sm=1, consumer_warps=8),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def runner_for(case: Case, setting: Setting, folder: Path, fault: str = "none", engine: str | None = None) -> Runner:
    device = current_device()
    if infeasible(setting, case.geometry, device, engine_for(case.geometry, device.arch, engine)):
        pytest.skip(f"{setting} does not fit {case.geometry}")
    try:
        return Runner(
            replace(setting, max_splits=case.max_splits), case.geometry, device, max_batch=len(case.lengths),
            capacity=case.capacity, lse=True, q_mul=case.q_mul, o_mul=case.o_mul, engine=engine, fault=fault,
            folder=folder,
        )  # fmt: skip
    except CompileError as error:
        if setting == Setting():
            raise
        pytest.skip(f"infeasible: {error}")


def launch(runner: Runner, case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = make_inputs(case).to("cuda")
    out = torch.full(inputs.q.shape, torch.nan, dtype=inputs.q.dtype, device="cuda")
    lse = torch.full(inputs.q.shape[:2], torch.nan, device="cuda")
    runner.plan(torch.tensor(case.planned, dtype=torch.int32, device="cuda"), case.margin)
    arguments = {name: value for name, value in inputs.arguments().items() if name not in ("geometry", "q", "k", "v")}
    runner.run(inputs.q, inputs.k, inputs.v, out=out, lse=lse, **arguments)
    return out.cpu(), lse.cpu()


def judge(case: Case, runner: Runner) -> None:
    """Compare the kernel with the emulator of the engine that the runner has."""
    out, lse = launch(runner, case)
    wanted = expected(case, runner.grid, runner.engine, runner.variant.consumer_warps)
    assert excess(out, wanted.out, case.geometry, make_inputs(case).o_mul) <= 1, case
    assert lse_excess(lse, wanted.lse) <= 1, case


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("token_major", [None, True, False])
def test_kernel_and_emulator_agree(geometry: str, setting: Setting, token_major: bool | None, folder: Path) -> None:
    grid, problem = current_device().sm_count * setting.ctas_per_sm, Geometry.parse(geometry)
    many = problem.q_len > 1
    cases = gate_cases(
        problem, grid, merge=setting.max_splits != 1, token_major=token_major, q_mul=many, o_mul=many,
        engine=engine_for(problem, current_device().arch), seed=torch.seed() % 10**6,
    )  # fmt: skip
    for case in cases:
        judge(case, runner_for(case, setting, folder))


@pytest.mark.parametrize("geometry", ["32/8xd128", "24/2xd128,q=4", "8/1xd256,q=5,query=fp8"])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_runs_every_number_of_rows(geometry: str, engine: str, folder: Path) -> None:
    problem, device = Geometry.parse(geometry), current_device()
    if refusal(engine, problem, device.arch):
        pytest.skip(f"{engine} does not run on {device.arch}")
    grid, chosen = 2 * device.sm_count, engine_for(problem, device.arch, engine)
    for case in gate_cases(problem, grid, engine=chosen, seed=torch.seed() % 10**6):
        judge(case, runner_for(case, Setting(), folder, engine=engine))


def test_partials_of_the_last_step_and_workspace_are_never_taken(folder: Path) -> None:
    case = gate_cases(Geometry(32, 8), 2 * current_device().sm_count)[1]
    runner = runner_for(case, Setting(), folder)
    first = launch(runner, case)
    for workspace in (runner._partial, runner._partial_lse):
        workspace.fill_(torch.nan)
    assert all(torch.equal(a, b) for a, b in zip(first, launch(runner, case), strict=True))


@pytest.mark.parametrize("max_splits", [0, 1, 2, 7, 64])
def test_the_device_makes_the_plan_of_the_reference(max_splits: int, folder: Path) -> None:
    for case in gate_cases(Geometry(32, 8), 2 * current_device().sm_count):
        case = replace(case, max_splits=max_splits)
        runner = runner_for(case, Setting(), folder)
        runner.plan(torch.tensor(case.planned, dtype=torch.int32, device="cuda"), case.margin)
        plan = case.plan(runner.grid)
        assert tuple(map(tuple, runner.cuts[:, :2].tolist())) == plan.cuts
        assert tuple(runner.tiles[: len(case.lengths)].tolist()) == plan.tiles


@pytest.mark.parametrize("fault", ["mask", "skip", "silent"])
def test_a_planted_fault_is_seen(fault: str, folder: Path) -> None:
    cases = gate_cases(Geometry(32, 8), 2 * current_device().sm_count)
    seen = []
    for case in cases:
        out, _ = launch(runner_for(case, Setting(), folder, fault), case)
        seen.append(excess(out, expected(case, 2 * current_device().sm_count).out, case.geometry) > 1)
    assert any(seen)


def test_a_graph_replays_with_new_lengths(folder: Path) -> None:
    long = gate_cases(Geometry(32, 8), 2 * current_device().sm_count, layout="BHN2D")[1]
    runner = runner_for(long, Setting(), folder)
    inputs = make_inputs(long).to("cuda")
    out = torch.empty(inputs.q.shape, dtype=inputs.q.dtype, device="cuda")
    lse = torch.empty(inputs.q.shape[:2], device="cuda")

    def step() -> None:
        runner.plan(inputs.seq_lens)
        runner.run(
            inputs.q, inputs.k, inputs.v, inputs.block_table, inputs.seq_lens, out, inputs.k_scale, inputs.v_scale,
            inputs.scale, lse,
        )  # fmt: skip

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for divisor in (1, 3, 64):
        shorter = tuple(n // divisor for n in long.lengths)
        inputs.seq_lens.copy_(torch.tensor(shorter, dtype=torch.int32))
        out.fill_(torch.nan)
        graph.replay()
        replayed = out.clone()
        out.fill_(torch.nan)
        step()
        assert torch.equal(replayed, out)
        assert not replayed.isnan().any()


def test_two_launches_are_bitwise_equal(folder: Path) -> None:
    case = gate_cases(Geometry(32, 8), 2 * current_device().sm_count)[1]
    runner = runner_for(case, Setting(), folder)
    first, second = launch(runner, case), launch(runner, case)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
