"""The bench with real processes around a fake card: every way to fail, each told apart, and what comes after it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.bench import CANARIES, RACED, REJECTED, Bench, InstanceRequest, Status, Timing
from mjolnir.tuner.gpu import DeviceUnavailable, GpuBench
from mjolnir.tuner.gpu.expectation import Expectation
from mjolnir.tuner.gpu.supervisor import Backend, Supervisor, backend_of
from mjolnir.tuner.workload import Workload, uniform
from tests.fakes.compiler import CRASHES, FAILS, HANGS, SPILLS
from tests.tuner.gpu.conftest import GEOMETRY, POLICY, WORKLOAD

TROUBLE = {"1": "hang", "2": "crash", "3": "killed", "4": "sticky", "stages 4": "scribbles"}
LIMITS = {"gate": 3.0, "measure": 3.0, "lock": 0.5}


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., GpuBench]]:
    folder = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))

        def bench(
            workload: Workload = WORKLOAD,
            geometry: Geometry = GEOMETRY,
            worker: Supervisor | None = None,
            **options: Any,
        ) -> GpuBench:
            backend = Backend(
                card="tests.fakes.gpu:create",
                options={"journal": str(folder / "journal"), "trouble": TROUBLE, **options},
                worker="mjolnir.tuner.gpu.worker:create",
                compiler="tests.fakes.compiler:create",
            )
            return GpuBench(
                geometry, Placement(), workload, folder=folder, policy=POLICY, processes=1, compile_seconds=2.0,
                limits=LIMITS, backend=backend, worker=worker,
            )  # fmt: skip

        yield bench


@pytest.fixture(scope="module")
def bench(make: Callable[..., GpuBench]) -> Iterator[GpuBench]:
    made = make(uuid="GPU-shared")
    yield made
    made.close()


def test_it_is_a_bench(bench: GpuBench) -> None:
    as_bench: Bench = bench
    assert as_bench.simulated is False
    assert as_bench.device.sm_count == 4
    assert as_bench.settings() is None
    assert as_bench.now() <= as_bench.now()
    environment = as_bench.environment
    assert environment["policy"] == POLICY.as_dict()
    assert environment["device"] == "Fake"
    assert environment["device_uuid"] == "GPU-shared"
    assert environment["versions"]["driver"] == "580.1"
    assert set(environment) >= {"kernel_hash", "dsl", "torch", "engine"}


def test_a_setting_is_measured_with_all_facts(bench: GpuBench) -> None:
    outcome = bench.measure(1, Setting(kv_stages=3))
    assert outcome.status is Status.MEASURED, outcome
    assert [timing.point for timing in outcome.timings] == [0, 1, 2]
    assert outcome.binary == bench.binary(Setting(kv_stages=3))
    assert outcome.plans == tuple(bench.plans(Setting(kv_stages=3)))
    assert outcome.facts["registers"] == 100
    assert outcome.facts["compile_seconds"] == 0.3
    assert set(outcome.phases) == {"compile", "gate", "measure"}
    assert outcome.log == ""


def test_eight_warps_are_gated_by_what_the_emulator_makes_of_eight(bench: GpuBench) -> None:
    eight = Setting(ctas_per_sm=1, consumer_warps=8)
    outcome = bench.measure(1, eight)
    assert outcome.status is Status.MEASURED, outcome
    assert outcome.binary != bench.binary(Setting(ctas_per_sm=1))
    assert outcome.plans == tuple(bench.plans(Setting(ctas_per_sm=1)))
    assert Expectation.of(eight, bench.device).name == "4-merge-8"


@pytest.mark.parametrize(
    ("setting", "status", "words"),
    [
        (Setting(consumer_warps=8), Status.INFEASIBLE, "2 CTAs of 8 computing warps per SM leave 96"),
        (Setting(ctas_per_sm=3, kv_stages=12), Status.INFEASIBLE, "shared memory"),
        (Setting(l2_prefetch=SPILLS), Status.INFEASIBLE, "spills 16 bytes"),
        (Setting(l2_prefetch=HANGS), Status.COMPILE_TIMEOUT, "within 2 s"),
        (Setting(l2_prefetch=CRASHES), Status.COMPILE_FAILED, "SIGSEGV"),
        (Setting(l2_prefetch=FAILS), Status.COMPILE_FAILED, "DSLRuntimeError"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_what_cannot_be_built_never_reaches_the_device(
    bench: GpuBench, setting: Setting, status: Status, words: str
) -> None:
    before = bench.worker_pid
    bench.submit(setting)
    outcome = bench.measure(2, setting)
    assert outcome.status is status
    assert words in outcome.reason
    assert outcome.timings == ()
    assert bench.worker_pid == before


@pytest.mark.parametrize(
    ("l2_prefetch", "status", "words"),
    [
        (1, Status.HUNG, "no answer within 3 s in phase 'gate'"),
        (2, Status.CRASHED, "SIGSEGV in phase 'gate'"),
        (3, Status.INFRASTRUCTURE, "SIGKILL in phase 'gate'"),
        (4, Status.CRASHED, "an illegal memory access"),
    ],
)
def test_a_kernel_that_takes_the_worker_down_costs_no_more_than_itself(
    bench: GpuBench, l2_prefetch: int, status: Status, words: str
) -> None:
    before = bench.worker_pid
    outcome = bench.measure(3, Setting(l2_prefetch=l2_prefetch))
    assert outcome.status is status
    assert words in outcome.reason
    assert outcome.timings == ()
    assert outcome.binary
    assert len(outcome.plans) == 3
    assert bench.worker_pid is None
    assert bench.measure(4, Setting()).status is Status.MEASURED
    assert bench.worker_pid != before


def test_a_worker_whose_inputs_were_written_to_is_replaced(bench: GpuBench) -> None:
    outcome = bench.measure(5, Setting(kv_stages=4))
    assert outcome.status is Status.INCORRECT
    assert "inputs were written to: KV cache" in outcome.reason
    assert bench.worker_pid is None
    assert bench.measure(6, Setting()).status is Status.MEASURED


def test_the_next_trial_lies_with_the_worker_before_the_one_at_hand_is_answered(bench: GpuBench) -> None:
    settings = {number: Setting(kv_stages=3, max_splits=splits) for number, splits in enumerate((2, 4), 20)}
    for setting in settings.values():
        bench.binary(setting)
    for number, setting in settings.items():
        bench.begin(number, setting)
    bench.measure(20, settings[20])
    assert bench.begun(21)
    time.sleep(0.3)
    assert bench.measure(21, settings[21]).facts["idle_ms"] < 100  # 300 ms went by on this side
    assert not bench.begun(22)


def test_a_worker_that_dies_takes_nothing_with_it_that_was_sent_ahead(bench: GpuBench) -> None:
    killed, after = Setting(l2_prefetch=3), Setting(kv_stages=3)
    for setting in (killed, after):
        bench.binary(setting)
    bench.begin(31, after)
    assert bench.measure(30, killed).status is Status.INFRASTRUCTURE
    assert not bench.begun(31)
    outcome = bench.measure(31, after)
    assert (outcome.status, outcome.binary) == (Status.MEASURED, bench.binary(after))


def test_what_was_sent_ahead_and_is_not_wanted_any_more_is_left_out(bench: GpuBench) -> None:
    unwanted = Setting(kv_stages=3, max_splits=16)
    bench.binary(unwanted)
    bench.begin(41, unwanted)
    bench.measure(40, Setting())
    assert bench.begun(41)
    assert {timing.point for timing in bench.noise(1)} == {0, 1, 2}
    assert bench.measure(42, Setting()).status is Status.MEASURED
    taken = bench.instance(InstanceRequest(91, 1, (0,), (unwanted, Setting())))
    assert set(taken.phases) == {"wait", "open", "inputs", "gate", "measure"}


def test_problems_take_turns_with_a_worker_and_share_its_fresh_processes(
    make: Callable[..., GpuBench], bench: GpuBench
) -> None:
    other, worker = Workload("other", (uniform(2, 64),)), bench._worker
    second = make(workload=other, geometry=replace(GEOMETRY, q_len=2), worker=worker, uuid="GPU-shared")
    arms = (Setting(kv_stages=3), Setting())
    pids = []
    for process in (101, 101, 102):
        for each, number in ((bench, 5), (second, 7)):
            taken = each.instance(InstanceRequest(process + number, process, (0,), arms))
            assert taken.status is Status.MEASURED, taken
            pids.append(worker.pid)
    assert pids[0] == pids[1] == pids[2] == pids[3] != pids[4] == pids[5]
    second.measure(50, Setting())
    second.close()
    assert worker.pid == pids[5]
    bench.instance(InstanceRequest(107, 200, (0,), arms))  # a search went through that process: it is not fresh
    assert worker.pid != pids[5]


class FirstPoint:
    """A race at point 0 that everybody wins, or nobody."""

    points = (0,)

    def __init__(self, goes_on: bool) -> None:
        self.goes_on = goes_on
        self.told: list[list[int]] = []

    def __call__(self, timings: Sequence[Timing]) -> bool:
        self.told.append([timing.point for timing in timings])
        return self.goes_on


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_race_is_decided_before_the_other_points_are_timed(bench: GpuBench, goes_on: bool) -> None:
    race = FirstPoint(goes_on)
    outcome = bench.measure(5, Setting(kv_stages=3), race=race)
    assert race.told == [[0]]
    assert outcome.status is (Status.MEASURED if goes_on else Status.RACED)
    points = range(len(WORKLOAD.points) if goes_on else 1)
    assert [timing.point for timing in outcome.timings] == list(points)
    assert outcome.reason == ("" if goes_on else RACED)
    assert len(outcome.plans) == len(WORKLOAD.points)
    assert set(outcome.phases) == {"compile", "gate", "measure"}


def test_canaries_and_noise(bench: GpuBench) -> None:
    assert bench.measure(5, Setting(), fault="mask").status is Status.INCORRECT
    timings = bench.noise(1)
    assert [timing.point for timing in timings] == [0, 1, 2]
    assert len(timings[0].candidate) == len(timings[0].empty) == POLICY.rounds


def test_instances_of_one_index_share_a_process_that_nothing_else_used(bench: GpuBench) -> None:
    assert bench.measure(6, Setting()).status is Status.MEASURED
    pids, seeds = [], []
    for process, number in ((0, 0), (0, 1), (1, 2)):
        arms = (Setting(), Setting(kv_stages=3, max_splits=1))
        taken = bench.instance(InstanceRequest(process, number, (1,), arms, rounds=4))
        assert taken.status is Status.MEASURED, taken.reason
        assert [len(arm) for arm in taken.samples[0]] == [4, 4]
        pids.append(bench.worker_pid)
        seeds.append(taken.correctness["kv_seed"])
    assert pids[0] == pids[1] != pids[2]
    assert seeds[0] == seeds[1] != seeds[2]
    failed = bench.instance(InstanceRequest(1, 3, (1,), (Setting(), Setting(l2_prefetch=4))))
    assert failed.status is Status.CRASHED
    assert failed.samples == ()


def test_a_worker_killed_between_trials_is_infrastructure_once(bench: GpuBench) -> None:
    assert bench.measure(7, Setting()).status is Status.MEASURED
    assert bench.worker_pid
    os.kill(bench.worker_pid, signal.SIGKILL)
    assert bench.measure(8, Setting()).status is Status.INFRASTRUCTURE
    assert bench.measure(9, Setting()).status is Status.MEASURED


def test_a_second_run_on_the_card_is_refused(bench: GpuBench, make: Callable[..., GpuBench]) -> None:
    assert bench.measure(10, Setting()).status is Status.MEASURED
    with pytest.raises(DeviceUnavailable, match="GPU-shared is in use by another mjolnir run"):
        make(uuid="GPU-shared")


def test_importing_the_package_is_light() -> None:
    code = "import sys, mjolnir.tuner.gpu; assert not {'torch', 'cutlass', 'optuna'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    code = "import sys, mjolnir.tuner.gpu.gpu_bench; assert not {'torch', 'cutlass'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.gpu
def test_a_campaigns_worth_on_the_gpu(tmp_path: Path) -> None:
    from mjolnir.kernel.geometry import Geometry
    from mjolnir.tuner.workload import Workload, uniform

    workload = Workload("two", (uniform(1, 4096), uniform(32, 4096)))
    bench = GpuBench(Geometry(32, 8), Placement(), workload)
    try:
        for fault in CANARIES:
            assert bench.measure(0, Setting(), fault=fault).status in REJECTED
        for trial, setting in enumerate((Setting(), Setting(pdl=1), Setting(max_splits=1), Setting(kv_stages=4)), 1):
            outcome = bench.measure(trial, setting)
            assert outcome.status is Status.MEASURED, outcome
            for timing in outcome.timings:
                assert min(timing.candidate) > max(1, min(timing.empty))
        arms = (Setting(), Setting(max_splits=8))
        taken = bench.instance(InstanceRequest(0, 0, (0, 1), arms))
        assert taken.status is Status.MEASURED, taken.reason
        assert [arm["bitwise"]["equal"] for arm in taken.correctness["arms"]] == [True, True]
        assert min(ns for point in taken.samples for arm in point for ns in arm) > 0
    finally:
        bench.close()


@pytest.mark.parametrize(
    ("shown", "index", "seen"),
    [(None, 1, "1"), ("", 0, "0"), ("2,3", 1, "3"), ("GPU-a, GPU-b", 1, "GPU-b"), ("MIG-x", 0, "MIG-x")],
)
def test_a_worker_sees_its_own_device_alone(shown: str | None, index: int, seen: str) -> None:
    made = backend_of(index, {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown})
    assert (made.options, made.environment) == ({"index": 0}, {"CUDA_VISIBLE_DEVICES": seen})
