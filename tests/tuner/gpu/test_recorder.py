"""The recorder over a bench in this process: what it writes, shares, leaves out, and how it goes on."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mjolnir.kernel.device import H200, Device
from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import Variant, resolve
from mjolnir.tuner.bench import CANARIES, BenchFailure, OneByOne, Outcome, Race, Status, Timing
from mjolnir.tuner.gpu.cost import cell_seconds, estimate
from mjolnir.tuner.gpu.grids import COARSE, EXTENTS, FULL, Extent, in_order
from mjolnir.tuner.gpu.plans import plan_digests
from mjolnir.tuner.gpu.recorder import RECORDER_POLICY, Recorded, record
from mjolnir.tuner.recording import Recording, RecordingError
from mjolnir.tuner.space import grid as full_factorial
from mjolnir.tuner.workload import DECODE8, Workload

GEOMETRY = Geometry(32, 8)
GRID = {"ctas_per_sm": (1, 2), "kv_stages": (0, 4), "max_splits": (0, 1, 4, 128)}


class Bench(OneByOne):
    """Measures by formula."""

    simulated = False
    canaries = CANARIES

    def __init__(self, fails: Mapping[Setting, Status] | None = None) -> None:
        self.geometry, self.placement, self.workload = GEOMETRY, Placement(), DECODE8
        self.device: Device = H200
        self.policy = RECORDER_POLICY
        self.environment = {"kernel_hash": "0" * 64, "policy": self.policy.as_dict(), "engine": "warp", "versions": {}}
        self.asked: list[tuple[Setting, tuple[int, ...], str]] = []
        self.submitted: list[Setting] = []
        self.renewed: list[int] = []
        self.noises: list[tuple[int | None, int | None]] = []
        self.closed = False
        self._fails = fails or {}

    def settings(self) -> None:
        return None

    def now(self) -> float:
        return 0.0

    def advance(self, seconds: float) -> None: ...

    def submit(self, setting: Setting) -> None:
        self.submitted.append(setting)

    def plans(self, setting: Setting) -> list[str]:
        return plan_digests(setting, self.workload, self.geometry, self.device)

    def binary(self, setting: Setting) -> str:
        return Variant.of(setting, self.geometry, self.device).key()

    def timing(self, point: int, rounds: int | None, each: int) -> Timing:
        count = rounds or self.policy.rounds
        samples = tuple(each + number for number in range(count))
        return Timing(point, samples, tuple(each + 5 for _ in samples), (4_000,) * -(-count // 3), {"dirty": ""})

    def measure_at(
        self,
        trial: int | None,
        setting: Setting,
        *,
        fault: str = "none",
        points: Sequence[int] | None = None,
        rounds: int | None = None,
    ) -> Outcome:
        assert trial is None
        chosen = tuple(range(8) if points is None else points)
        self.asked.append((setting, chosen, fault))
        common: dict[str, Any] = {"binary": self.binary(setting), "plans": tuple(self.plans(setting))}
        if fault != "none":
            return Outcome(Status.INCORRECT, "case edges: off", correctness={"cases": {}}, **common)
        if setting in self._fails:
            return Outcome(self._fails[setting], "went wrong", **common)
        timings = tuple(self.timing(point, rounds, 10_000 + 100 * setting.kv_stages) for point in chosen)
        return Outcome(
            Status.MEASURED,
            timings=timings,
            facts={"compile_seconds": 0.5},
            phases={"gate": 0.1 * len(chosen), "measure": 1.0 * len(chosen)},
            **common,
        )

    def measure(self, trial: int, setting: Setting, fault: str = "none", race: Race | None = None) -> Outcome:
        raise AssertionError("the recorder renews no inputs")

    def compare_default(self, number: int | None, rounds: int | None = None) -> tuple[Timing, ...]:
        self.noises.append((number, rounds))
        return tuple(self.timing(point, rounds, 9_000) for point in range(8))

    def noise(self, number: int) -> tuple[Timing, ...]:
        return self.compare_default(number)

    def instance(self, request: object) -> Any:
        raise AssertionError("the recorder takes no instances")

    def renew_process(self) -> None:
        self.renewed.append(len(self.noises))

    def close(self) -> None:
        self.closed = True


def run(folder: Path, bench: Bench, say: Callable[[str], None] = lambda line: None, **values: Any) -> Recorded:
    facts = {name: values.pop(name) for name in ("pairs", "rebuilds", "instances", "between") if name in values}
    extent = Extent(values.pop("grid", GRID), **facts)
    return record(GEOMETRY, Placement(), DECODE8, folder, "h200-test", extent, bench=bench, say=say, **values)


def test_a_whole_grid_is_recorded(tmp_path: Path) -> None:
    bench = Bench()
    lines: list[str] = []
    done = run(tmp_path, bench, lines.append)
    made = Recording.load(tmp_path)
    expected = full_factorial(GEOMETRY, H200, GRID)
    assert (done.settings, done.planned, done.reason) == (len(expected), len(expected), "complete")
    assert set(made.settings) == set(expected) == set(bench.submitted)
    assert made.default == made.settings[0] == resolve(Setting(), GEOMETRY, H200)
    assert [canary["fault"] for canary in made.canaries] == ["mask", "skip", "silent", "stale", "replayed"]
    assert made.arrays["candidate"].shape[1:] == made.arrays["baseline"].shape[1:] == (12,)
    assert made.arrays["empty"].shape[1:] == (4,)
    assert made.arrays["pair_candidate"].shape == (8, 200)
    assert made.arrays["rebuild_candidate"].shape == (8, 10, 12)
    assert bench.noises == [(None, 200), *((number, None) for number in range(10))]
    assert bench.renewed == [5, 9]  # three processes: rebuilds 0 to 3, 4 to 7, 8 and 9
    assert bench.closed
    assert any("16 settings at 8 points" in line for line in lines)


def test_equal_plans_of_a_binary_are_timed_once(tmp_path: Path) -> None:
    bench = Bench()
    run(tmp_path, bench)
    made = Recording.load(tmp_path)
    timed = [(bench.binary(setting), bench.plans(setting)[point], point) for setting, points, fault in bench.asked
             for point in points if fault == "none"]  # fmt: skip
    assert len(timed) == len(set(timed)) == len(made.arrays["candidate"])
    assert len(timed) < 8 * len(made.settings)
    for place, setting in enumerate(made.settings):
        cells = made.arrays["cell"][0, place]
        assert (made.arrays["candidate"][cells, 0] == 10_000 + 100 * setting.kv_stages).all()
        plans = [int(digest, 16) for digest in bench.plans(setting)]
        assert made.arrays["cell_plan"][cells].tolist() == plans


def test_a_setting_takes_the_time_of_all_its_cells_however_many_were_shared(tmp_path: Path) -> None:
    run(tmp_path, Bench())
    times = Recording.load(tmp_path).arrays["setting_ms"]
    assert (times[:, 0] > 300).all()
    assert (abs(times[:, 1] - 10 * times[:, 0]) <= 5).mean() > 0.9
    assert times[0].tolist() == [800, 8000]


def test_failures_are_data_and_the_benchs_own_are_left_out(tmp_path: Path) -> None:
    grid = full_factorial(GEOMETRY, H200, GRID)
    wrong, broken = (s for s in grid if s.max_splits == 4 and s.ctas_per_sm == 1)
    lines: list[str] = []
    done = run(tmp_path, Bench({wrong: Status.INCORRECT, broken: Status.INFRASTRUCTURE}), lines.append)
    made = Recording.load(tmp_path)
    assert done.settings == len(grid) - 1
    assert broken not in made.index
    assert made.status(made.index[wrong]) is Status.INCORRECT
    assert made.reasons[made.index[wrong]] == "went wrong"
    assert any("stays out of the recording" in line for line in lines)
    bench = Bench({wrong: Status.MEASURED})
    assert run(tmp_path, bench).settings == len(grid)
    assert {setting for setting, _, _ in bench.asked} == {broken}
    assert bench.noises == []


def test_a_bench_that_is_gone_ends_the_sitting(tmp_path: Path) -> None:
    grid = full_factorial(GEOMETRY, H200, GRID)
    default = resolve(Setting(), GEOMETRY, H200)
    bench = Bench({setting: Status.INFRASTRUCTURE for setting in grid if setting != default})
    done = run(tmp_path, bench)
    assert done.reason == "3 failures of the bench in a row"
    assert Recording.load(tmp_path).settings == (default,)


def test_a_budget_leaves_a_valid_part_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def tick() -> float:
        clock[0] += 1.0
        return clock[0]

    monkeypatch.setattr(time, "monotonic", tick)
    done = run(tmp_path, Bench(), budget=25.0)
    assert done.reason == "time"
    part = Recording.load(tmp_path)
    assert 1 < len(part.settings) == done.settings < done.planned
    assert part.settings[0] == part.default
    whole = run(tmp_path, Bench())
    made = Recording.load(tmp_path)
    assert whole.reason == "complete"
    assert len(made.settings) == whole.planned
    assert made.settings[: len(part.settings)] == part.settings
    assert len(made.chunks) == 2
    assert np.array_equal(made.arrays["pair_candidate"], part.arrays["pair_candidate"])


def test_without_its_default_there_is_no_recording(tmp_path: Path) -> None:
    default = resolve(Setting(), GEOMETRY, H200)
    bench = Bench({default: Status.INCORRECT})
    with pytest.raises(RecordingError, match=r"the built-in default .* was not measured: incorrect: went wrong"):
        run(tmp_path, bench)
    assert bench.closed


def test_the_default_is_recorded_whatever_the_grid(tmp_path: Path) -> None:
    run(tmp_path, Bench(), grid={"pdl": (1,), "max_splits": (2,)})
    assert len(Recording.load(tmp_path).settings) == 2


def test_the_coarse_grid_is_what_is_asked_of_it() -> None:
    settings = full_factorial(GEOMETRY, H200, COARSE)
    assert len(settings) == 1404
    assert len({Variant.of(setting, GEOMETRY, H200) for setting in settings}) == 312
    assert resolve(Setting(), GEOMETRY, H200) in settings
    assert {setting.consumer_warps for setting in settings if setting.ctas_per_sm == 1} == {4, 8}
    assert {setting.max_splits for setting in settings} == {0, 1, 2, 4, 8, 16, 32, 64, 128}


def test_the_order_is_fixed_by_binary_and_starts_with_the_default() -> None:
    settings = full_factorial(GEOMETRY, H200, COARSE)
    default = resolve(Setting(), GEOMETRY, H200)
    order = in_order(settings, default)
    assert order[0] == default
    assert sorted(order) == sorted(settings)
    assert order == in_order(list(reversed(settings)), default)
    baked = [replace(setting, max_splits=0) for setting in order[1:]]
    changes = sum(a != b for a, b in itertools.pairwise(baked))
    assert changes == len(set(baked)) - 1


def test_the_coarse_grid_takes_under_four_minutes_by_estimate() -> None:
    bench = Bench()
    seconds = estimate(bench, full_factorial(GEOMETRY, H200, COARSE))
    assert 60 < seconds < 180
    assert estimate(bench, []) == 0
    one = Workload("one", DECODE8.points[:1])
    bench.workload = one
    assert estimate(bench, [Setting(kv_stages=6)]) == pytest.approx(cell_seconds(bench, 0))


def test_the_full_grid_is_what_is_asked_of_it() -> None:
    settings = full_factorial(GEOMETRY, H200, FULL)
    assert len(settings) == 3960
    assert len({replace(setting, max_splits=0) for setting in settings}) == 440
    assert len({Variant.of(setting, GEOMETRY, H200) for setting in settings}) == 880
    assert (EXTENTS["full"].pairs, EXTENTS["full"].rebuilds, EXTENTS["full"].instances) == (2000, 30, 6)


class Uneven(Bench):
    """Settings with deeper rings are faster, and every fresh instance is slower by 1 ns than the one before it."""

    def __init__(self, fails: Mapping[Setting, Status] | None = None) -> None:
        super().__init__(fails)
        self.instance_number = 0

    def compare_default(self, number: int | None, rounds: int | None = None) -> tuple[Timing, ...]:
        self.instance_number += number is not None and number >= 1000
        return super().compare_default(number, rounds)

    def measure_at(self, trial: int | None, setting: Setting, **values: Any) -> Outcome:
        outcome = super().measure_at(trial, setting, **values)
        level = 10_000 - 100 * setting.kv_stages - 50 * setting.l2_prefetch + self.instance_number
        timings = tuple(replace(timing, candidate=(level,) * 12, baseline=(10_000,) * 12) for timing in outcome.timings)
        return replace(outcome, timings=timings)


def test_cells_near_the_best_get_further_instances_on_fresh_inputs(tmp_path: Path) -> None:
    bench = Uneven()
    done = run(tmp_path, bench, instances=3)
    made = Recording.load(tmp_path)
    assert (done.reason, len(made.arrays["cell"])) == ("complete", 4)
    assert [number for number, _ in bench.noises][-3:] == [1000, 1001, 1002]
    levels = made.arrays["candidate"][made.arrays["cell"], 0]
    best = levels[0].min(axis=0)
    ratios = (levels[0] - 4000) / (best - 4000)
    near = ratios <= 1.03
    assert 0 < near.sum() < near.size
    assert (levels[1:][:, near] - levels[0][near] == [[1], [2], [3]]).all()
    assert (levels[1:][:, ~near] == levels[0][~near]).all()
    again = Uneven()
    assert run(tmp_path, again, instances=3).reason == "complete"
    assert (again.asked, again.noises) == ([], [])
    more = Uneven()
    run(tmp_path, more, instances=4)
    assert [number for number, _ in more.noises] == [1003]
    assert len(Recording.load(tmp_path).arrays["cell"]) == 5


def test_time_is_kept_for_further_instances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def tick() -> float:
        clock[0] += 1.0
        return clock[0]

    monkeypatch.setattr(time, "monotonic", tick)
    done = run(tmp_path, Uneven(), budget=90.0, instances=2)
    part = Recording.load(tmp_path)
    assert done.reason == "time"
    assert 1 < done.settings < done.planned
    assert len(part.arrays["cell"]) > 1
    assert run(tmp_path, Uneven(), instances=2).reason == "complete"
    whole = Recording.load(tmp_path)
    assert len(whole.settings) == done.planned
    assert len(whole.arrays["cell"]) >= 3


def test_an_interruption_leaves_a_valid_part(tmp_path: Path) -> None:
    class Interrupted(Bench):
        def measure_at(self, trial: int | None, setting: Setting, **values: Any) -> Outcome:
            if len(self.asked) == 12:
                raise KeyboardInterrupt
            return super().measure_at(trial, setting, **values)

    done = run(tmp_path, Interrupted())
    assert done.reason == "interrupted"
    assert len(Recording.load(tmp_path).settings) == done.settings < done.planned


def test_a_default_in_a_dirty_window_is_compared_again(tmp_path: Path) -> None:
    class Dirty(Bench):
        def compare_default(self, number: int | None, rounds: int | None = None) -> tuple[Timing, ...]:
            if len(self.noises) % 2 == 0:
                self.noises.append((None, None))
                raise BenchFailure("the card throttled", status=Status.DIRTY)
            return super().compare_default(number, rounds)

    lines: list[str] = []
    assert run(tmp_path, Dirty(), lines.append).reason == "complete"
    assert lines.count("the card throttled; once more") == 11


def test_prefetch_distances_between_those_of_the_grid_are_looked_at(tmp_path: Path) -> None:
    grid = {**GRID, "l2_prefetch": (0, 2, 4, 8)}
    bench = Uneven()
    run(tmp_path, bench, grid=grid, instances=1, between=True)
    made = Recording.load(tmp_path)
    (told,) = [chunk["between"] for chunk in made.chunks]
    assert {setting.l2_prefetch for setting in made.settings} == {0, 2, 4, 8}
    assert {setting.l2_prefetch for setting in bench.submitted} == {0, *range(2, 9)}
    assert told["settings"] == len(told["table"]) == 16
    assert [entry["point"] for entry in told["points"]] == [6, 7]
    assert set(told["points"][0]["distances"]) == {"3", "5", "6", "7"}
    # The logarithm of a straight line lies above the line between its ends' logarithms, by less than a rebuild's 5 ns.
    assert all(0 < each["mean"] < 1e-3 and not each["differs"] for each in told["points"][0]["distances"].values())
    again = Uneven()
    run(tmp_path, again, grid=grid, instances=1, between=True)
    assert again.asked == []


@pytest.mark.gpu
def test_a_small_grid_on_the_gpu(tmp_path: Path) -> None:
    workload = Workload("two", (DECODE8.points[0], DECODE8.points[5]))
    grid = {"max_splits": (0, 1, 8), "pdl": (0, 1)}
    done = record(GEOMETRY, Placement(), workload, tmp_path, "smoke", Extent(grid, pairs=24, rebuilds=4))
    assert (done.settings, done.reason) == (6, "complete")
    made = Recording.load(tmp_path)
    assert [canary["status"] for canary in made.canaries] != ["measured"] * 3
    assert (made.arrays["setting_status"] == list(Status).index(Status.MEASURED)).all()
