"""Campaigns over the real worker processes and a fake card that fails: each fault ends as its status."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mjolnir.kernel.geometry import Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.bench import CANARIES, InstanceRequest, Status
from mjolnir.tuner.clean_window import CleanWindow
from mjolnir.tuner.coordinator import Result, run
from mjolnir.tuner.fleet import FleetBench
from mjolnir.tuner.gpu import GpuBench
from mjolnir.tuner.gpu.pool import CompilePool
from mjolnir.tuner.gpu.supervisor import Backend
from mjolnir.tuner.journal import MemoryJournal
from mjolnir.tuner.options import Options
from mjolnir.tuner.session import Progress
from mjolnir.tuner.workload import Workload, uniform
from tests.fakes.compiler import CRASHES, FAILS, HANGS
from tests.tuner.gpu.conftest import GEOMETRY, POLICY

SMALL = Workload("one", (uniform(2, 64),))
TROUBLE = {"1": "hang", "2": "crash", "3": "killed", "4": "sticky", "stages 3": "no clock", "stages 4": "nan"}
FAULTS = {
    Setting(l2_prefetch=HANGS): (Status.COMPILE_TIMEOUT, "within 2 s"),
    Setting(l2_prefetch=CRASHES): (Status.COMPILE_FAILED, "SIGSEGV"),
    Setting(l2_prefetch=FAILS): (Status.COMPILE_FAILED, "DSLRuntimeError"),
    Setting(l2_prefetch=1): (Status.HUNG, "within 2 s in phase 'gate'"),
    Setting(l2_prefetch=2): (Status.CRASHED, "SIGSEGV in phase 'gate'"),
    Setting(l2_prefetch=3): (Status.INFRASTRUCTURE, "SIGKILL in phase 'gate'"),
    Setting(l2_prefetch=4): (Status.CRASHED, "an illegal memory access was encountered"),
    Setting(kv_stages=3): (Status.NAN, "took nan ns"),
    Setting(kv_stages=4): (Status.NAN, "the output holds NaN"),
    Setting(kv_stages=2): (Status.MEASURED, ""),
}
"""What each setting does here, and how its trial has to end."""

OPTIONS = Options(trials=1 + len(FAULTS), minutes=60, proposer="random", noise=1, enqueued=tuple(FAULTS))

Make = Callable[..., GpuBench]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompilePool]:
    """Compile processes that the benches share."""
    folder = tmp_path_factory.mktemp("cache")
    made = CompilePool(folder, processes=1, seconds=2.0, target="tests.fakes.compiler:create")
    yield made
    made.close()


@pytest.fixture
def make(tmp_path: Path, pool: CompilePool, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    made: list[GpuBench] = []

    def bench(gate: CleanWindow | None = None, **options: Any) -> GpuBench:
        backend = Backend(
            card="tests.fakes.gpu:create",
            options={"trouble": TROUBLE, "lost": str(tmp_path / "lost"), **options},
            worker="mjolnir.tuner.gpu.worker:create",
            compiler="tests.fakes.compiler:create",
        )
        limits = {"gate": 2.0, "measure": 2.0, "lock": 0.5}
        given: dict[str, Any] = {"folder": tmp_path, "policy": POLICY, "limits": limits, "pool": pool, "gate": gate}
        made.append(GpuBench(GEOMETRY, Placement(), SMALL, backend=backend, **given))
        return made[-1]

    yield bench
    for each in made:
        each.close()


class Watch:
    """Stops a campaign after its search; `at` is called with the number of each trial."""

    def __init__(self, trials: int, at: Callable[[int], object] = lambda number: None) -> None:
        self._trials, self._at = trials, at
        self.over = False

    def update(self, progress: Progress) -> None:
        if progress.phase == "search" and not progress.replayed:
            self._at(progress.trials)
            self.over = progress.trials >= self._trials

    def __call__(self) -> bool:
        return self.over


def search(bench: GpuBench, journal: MemoryJournal, options: Options = OPTIONS, watch: Watch | None = None) -> Result:
    watch = watch or Watch(options.trials)
    return run(bench, journal, options, watch, watch)


def bodies(journal: MemoryJournal, kind: str) -> list[dict[str, Any]]:
    return [record["body"] for record in journal.records if record["kind"] == kind]


def test_every_fault_ends_as_its_status_and_the_campaign_goes_on(make: Make) -> None:
    journal = MemoryJournal()
    result = search(make(), journal)
    assert [body["fault"] for body in bodies(journal, "canary")] == list(CANARIES)
    assert all(body["rejected"] for body in bodies(journal, "canary"))
    trials = bodies(journal, "trial")
    assert [body["status"] for body in trials] == ["measured", *(str(status) for status, _ in FAULTS.values())]
    for body, (_, words) in zip(trials[1:], FAULTS.values(), strict=True):
        assert words in body["reason"]
        assert set(body["phases"]) == {"propose", "compile", "gate", "measure", "record"}
        assert body["policy"] == POLICY.as_dict()
        if body["status"] != "measured":
            assert (body["ratio"], body["ratios"]) == (None, {})
    assert trials[4]["phases"]["gate"] > 1.5  # and for the kernel
    assert trials[0]["phases"]["measure"] > 0 < trials[0]["phases"]["record"]
    assert (result.measured, result.reason) == (2, "interrupted")


def test_a_device_that_is_lost_is_left_alone_and_the_campaign_can_go_on(make: Make, tmp_path: Path) -> None:
    journal, lost = MemoryJournal(), tmp_path / "lost"
    bench = make()
    options = replace(OPTIONS, trials=8, enqueued=(), pins={"l2_prefetch": 0, "kv_stages": 2})

    def lose(number: int) -> None:
        if number == 3:
            lost.touch()

    result = search(bench, journal, options, Watch(8, lose))
    assert (result.reason, result.resumable, result.void) == ("infrastructure", True, False)
    failed = bodies(journal, "trial")[3:]
    assert [body["status"] for body in failed] == ["infrastructure"] * 3
    assert all("no CUDA-capable device" in body["reason"] for body in failed)
    assert bodies(journal, "end")[-1]["reason"] == "infrastructure"
    lost.unlink()
    again = search(bench, journal, options)
    assert [body["trial"] for body in bodies(journal, "trial")] == list(range(1, 9))
    assert [body["status"] for body in bodies(journal, "trial")[6:]] == ["measured"] * 2
    assert again.reason == "interrupted"


def test_a_binary_that_tells_nothing_apart_fails_its_canary(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make()
    build = bench._parts.build  # what every compile comes to

    def alike(setting: Setting, fault: str = "none") -> Any:
        made, refusal = build(setting, fault)
        return replace(made, facts={**made.facts, "binary": "0" * 64}) if made else made, refusal

    monkeypatch.setattr(bench._parts, "build", alike)
    outcome = bench.measure(0, Setting(), "stale")
    assert outcome.status is Status.MEASURED
    assert "were compiled to one binary" in outcome.reason


class Gate(CleanWindow):
    """A gate whose server is a script."""

    def __init__(self, troubles: list[str]) -> None:
        self._troubles = troubles
        self._samples, self._interval, self._patience, self._attempts = 1, 0.0, 0.0, 2
        self._clean = 0
        self._stop = lambda: False

    def _trouble(self) -> str:
        return self._troubles.pop(0) if self._troubles else ""


def test_all_that_is_measured_goes_through_the_gate(make: Make) -> None:
    troubles: list[str] = []
    bench = make(Gate(troubles))
    busy = ["", "busy"] * 2
    troubles += busy
    outcome = bench.measure(1, Setting())
    assert (outcome.status, outcome.reason) == (Status.DIRTY, "the window was dirty: busy")
    assert [timing.window["dirty"] for timing in outcome.timings] == ["busy"]
    troubles += busy
    assert [timing.window["dirty"] for timing in bench.noise(1)] == ["busy"]
    troubles += busy
    taken = bench.instance(InstanceRequest(0, 1, (0,), (Setting(kv_stages=2), Setting())))
    assert (taken.status, taken.window["dirty"]) == (Status.DIRTY, "busy")
    assert [arm["bitwise"]["equal"] for arm in taken.correctness["arms"]] == [True, True]
    troubles += ["busy"]
    refused = bench.measure(2, Setting())
    assert (refused.status, refused.timings) == (Status.DIRTY, ())
    assert "no clean window in 0 s: busy" in refused.reason
    troubles += ["busy"]
    assert bench.measure(0, Setting(), "mask").status is Status.INCORRECT  # nothing is timed there
    assert troubles == ["busy"]


def test_a_gate_that_never_opens_ends_the_campaign_as_void(make: Make) -> None:
    journal = MemoryJournal()
    result = search(make(Gate(["busy"] * 1000)), journal)
    assert (result.reason, result.void, result.resumable) == ("no-clean-window", True, True)
    assert {body["status"] for body in bodies(journal, "noise")} == {"dirty"}


def test_a_fleet_of_real_workers_loses_nothing_with_one_that_is_killed(make: Make) -> None:
    journal = MemoryJournal()
    benches = {f"cuda:{number}": make(uuid=f"GPU-{number}") for number in range(2)}
    fleet = FleetBench(benches)
    options = replace(OPTIONS, trials=12, noise=2, enqueued=(), depth=8, pins={"l2_prefetch": 0, "kv_stages": 2})

    def kill(number: int) -> None:
        if number == 4:
            os.kill(benches["cuda:1"].worker_pid or 0, signal.SIGKILL)

    watch = Watch(12, kill)
    result = run(fleet, journal, options, watch, watch)
    fleet.close()
    trials = bodies(journal, "trial")
    assert [body["trial"] for body in trials] == list(range(1, 13))
    assert {body["status"] for body in trials} == {"measured"}
    assert result.measured == 12
    assert {body["facts"]["device"] for body in trials} == {"cuda:0", "cuda:1"}
    assert [entry["device"] for body in trials for entry in body["facts"].get("lost", ())] == ["cuda:1"]
    noise = bodies(journal, "noise")
    assert {timing["window"]["device"] for body in noise for timing in body["timings"]} == {"cuda:0", "cuda:1"}
