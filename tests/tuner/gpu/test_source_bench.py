"""Two builds in processes of their own around fake cards: each runs its own sources, and the base judges both."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from mjolnir.kernel.geometry import Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.bench import REJECTED, Status
from mjolnir.tuner.gpu import DeviceUnavailable
from mjolnir.tuner.gpu.source_bench import GpuSourceBench, Tree
from mjolnir.tuner.gpu.supervisor import Backend
from mjolnir.tuner.sources import Arm, Comparison, Source
from mjolnir.tuner.statistics import instance_values
from tests.fakes.compiler import FAILS
from tests.tuner.gpu.conftest import GEOMETRY, POLICY, WORKLOAD

DEFAULTS = (Setting(),) * len(WORKLOAD.points)
CHANGE, BASE, TWIN = (Arm(source, DEFAULTS) for source in (Source.CHANGE, Source.BASE, Source.TWIN))


def lay_out(folder: Path, text: str) -> Path:
    """The running sources as a tree of their own, with `text` at the end of one of the kernel's."""
    for room in ("kernel", "tuner", "ledger", "research", "backend"):
        spec = find_spec(f"mjolnir.{room}")
        assert spec
        assert spec.submodule_search_locations
        source, place = Path(spec.submodule_search_locations[0]), folder / "mjolnir" / room
        place.parent.mkdir(parents=True, exist_ok=True)
        if room != "kernel":
            place.symlink_to(source)
            continue
        shutil.copytree(source, place, ignore=shutil.ignore_patterns("__pycache__"))
    warp = folder / "mjolnir" / "kernel" / "engines" / "warp.py"
    warp.write_text(warp.read_text() + text)
    return folder


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where both keep what they make: the base's expected outputs are made once."""
    return tmp_path_factory.mktemp("caches")


@pytest.fixture
def opened(tmp_path: Path, caches: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., GpuSourceBench]]:
    """Opens a bench whose change says what is given."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    benches: list[GpuSourceBench] = []

    def run(text: str) -> GpuSourceBench:
        base = Tree(lay_out(tmp_path / "base", ""), caches / "base")
        change = Tree(lay_out(tmp_path / "change", text), caches / "change")
        backend = Backend(
            card="tests.fakes.gpu:create",
            options={"uuid": "GPU-one"},
            worker="mjolnir.tuner.gpu.worker:create",
            compiler="tests.fakes.compiler:create",
        )
        limits = {"lock": 2.0}
        bench = GpuSourceBench(
            GEOMETRY, Placement(), WORKLOAD, base, change, backend, policy=POLICY, processes=1, limits=limits
        )
        benches.append(bench)
        return bench

    yield run
    for bench in benches:
        bench.close()


def test_two_builds_are_timed_in_turns_and_told_apart(opened, caches):
    bench = opened("# speed 0.9\n")
    checked = bench.check(CHANGE)
    assert checked.status is Status.MEASURED, checked.reason
    assert checked.correctness["arms"][0]["points"]["checked"] == len(WORKLOAD.points)
    instance = bench.compare(Comparison(1, 1, (CHANGE, BASE), rounds=4))
    assert instance.status is Status.MEASURED, instance.reason
    assert [[len(arm) for arm in point] for point in instance.samples] == [[4, 4]] * len(WORKLOAD.points)
    assert instance_values(instance.samples, 0, 1) == pytest.approx(np.log(0.9), abs=1e-3)
    made = [side["kv_seed"] for side in instance.correctness["arms"]]
    assert made[0] == made[1]
    again = bench.compare(Comparison(1, 2, (CHANGE, BASE), rounds=2))
    assert again.correctness["arms"][0]["kv_seed"] == made[0]
    fresh = bench.compare(Comparison(2, 3, (TWIN, BASE), rounds=2))
    assert fresh.correctness["arms"][0]["kv_seed"] != made[0]
    assert instance_values(fresh.samples, 0, 1) == pytest.approx(0, abs=1e-3)
    # The base alone emulates what the gate expects.
    assert list((caches / "base").glob("expected-*.pt"))
    assert not list((caches / "change").glob("expected-*.pt"))


def test_a_wrong_change_is_caught_by_the_bases_gate(opened):
    bench = opened("# trouble wrong\n")
    outcome = bench.check(CHANGE)
    assert outcome.status is Status.INCORRECT
    assert bench.compare(Comparison(1, 1, (CHANGE, BASE), rounds=2)).reason.startswith("the change: ")
    assert bench.canary("mask").status in REJECTED
    unbuilt = Arm(Source.CHANGE, (Setting(l2_prefetch=FAILS), *DEFAULTS[1:]))
    assert bench.check(unbuilt).status is Status.COMPILE_FAILED


def test_a_change_that_crashes_takes_down_its_own_process_alone(opened):
    bench = opened("# trouble crash\n")
    assert bench.check(CHANGE).status is Status.CRASHED
    assert bench.check(BASE).status is Status.MEASURED


def test_a_worker_that_runs_other_sources_is_refused(opened, monkeypatch):
    monkeypatch.setattr("mjolnir.tuner.gpu.source_bench.replace", lambda backend, **changes: backend)
    with pytest.raises(DeviceUnavailable, match="not its own"):
        opened("# speed 0.9\n")
