"""The run: the fastest way counts, what fails is told, what was there is merged, and a lost device ends it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mjolnir.backend.lookup import Defaults
from mjolnir.backend.table import Table
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.rule import built_in
from mjolnir.research.answer import Exit, MissingFailure, UsageFailure
from mjolnir.research.bench import kernel, rows
from mjolnir.research.bench.peers.ours import Mjolnir, MjolnirDefault
from mjolnir.research.bench.points import Spot
from mjolnir.research.bench.pool import Pool
from mjolnir.research.bench.race import KERNELS, Bench, Options
from mjolnir.research.bench.rows import HEAD_MAJOR, TOKEN_MAJOR
from mjolnir.research.bench.tuning import Tuned, key_of
from tests.research.bench.made import DEVICE, SMALL, FakeClock, FakeContender, right, row

PLACE, OTHER = Spot(SMALL, (70, 16, 33)), Spot(SMALL, (64,))


def bench(*contenders: Any, clock: FakeClock | None = None, chosen: dict[Any, Setting] | None = None) -> Bench:
    def served(spot: Spot) -> Any:
        raise AssertionError(f"{spot} is not the spot of the chain")

    tuned = Tuned(DEVICE, Defaults((Table("table"),)), chosen or {})
    return Bench(DEVICE, contenders, Pool("cpu", rotation=1), clock or FakeClock(), tuned, served, {"torch": "2"})


def ours(us: float = 10.0, layout: str = HEAD_MAJOR, **more: Any) -> FakeContender:
    return FakeContender("mjolnir", {"": us}, layout, **more)


def measure(*contenders: Any, spots: tuple[Spot, ...] = (PLACE,), earlier: Any = (), **options: Any) -> Any:
    clock = options.pop("clock", None)
    return kernel.measured(Options(**options), spots, earlier, bench(*contenders, clock=clock))


def by_name(data: Any) -> dict[str, Any]:
    return {rows.name_of(one): one for one in data["rows"]}


def test_the_fastest_way_is_timed_again_and_all_are_told() -> None:
    clock = FakeClock()
    peer = FakeContender("fa3", {"num_splits=0": 14.0, "num_splits=8": 12.0, "num_splits=9": ValueError("too many")})
    answer = measure(ours(), peer, clock=clock, repeats=20)
    found = by_name(answer.data)[f"fa3 {PLACE}"]
    assert (found["us"], found["way"], len(found["samples"])) == (12.0, "num_splits=8", 20)
    assert list(found["tried"].items()) == [
        ("B2NHD num_splits=0", pytest.approx(14, rel=0.02)),
        ("B2NHD num_splits=8", pytest.approx(12, rel=0.02)),
        ("B2NHD num_splits=9", "ValueError: too many"),
    ]
    assert (clock.timed, clock.tidied) == ([7, 7, 7, *8 * [5]], 1)
    assert 0 < found["error"] < 0.05
    assert answer.data["figures"]["worst_vs_best_peer"] == 1.2
    assert answer.code == Exit.DONE


def test_a_card_that_grows_slower_favours_nobody() -> None:
    """Timed one after another the peer would look 4 % slower than it is, by turns it does not."""
    clock = FakeClock(slower=0.01)
    answer = measure(ours(), FakeContender("fa3", {"": 10.0}), clock=clock, repeats=20)
    assert [row["us"] > 10.2 for row in answer.data["rows"]] == [True, True]
    assert answer.data["figures"]["worst_vs_best_peer"] == pytest.approx(1, abs=0.002)


def test_what_fails_in_its_turn_is_told_and_the_others_are_timed() -> None:
    class Fails(FakeClock):
        def time(self, graph: Any, sets: int, repeats: int) -> list[float]:
            if len(self.timed) > 3 and graph.launch.us == 12.0:
                raise RuntimeError("the graph is gone")
            return super().time(graph, sets, repeats)

    answer = measure(ours(), FakeContender("fa3", {"": 12.0}), clock=Fails(), repeats=20)
    assert answer.data["taken"]["not_run"] == {f"fa3 {PLACE}": "RuntimeError: the graph is gone"}
    assert [(row["kernel"], len(row["samples"])) for row in answer.data["rows"]] == [("mjolnir", 20)]


def test_a_mistake_of_a_contender_is_told_with_its_kind_and_the_device_is_looked_at() -> None:
    class Mistaken(FakeContender):
        def choose(self, spot: Spot, heats: Any) -> None:
            raise KeyError("num_splits")

    answer = measure(ours(), Mistaken("fa3", {}))
    assert answer.data["taken"]["not_run"] == {f"fa3 {PLACE}": "KeyError: 'num_splits'"}
    clock = FakeClock()
    clock.broken = True
    told = measure(Mistaken("fa3", {}), clock=clock).data["taken"]["not_run"]
    assert told["the rest"].startswith(f"the device fails since fa3 {PLACE}")


def test_what_cannot_run_is_told_under_its_name() -> None:
    absent = FakeContender("vllm-triton", {"": ModuleNotFoundError("No module named 'vllm'")})
    fails = FakeContender("fa3", {"a": ValueError("no D 128"), "b": ValueError("no D 128"), "c": RuntimeError("no")})
    strided = ours(layout=TOKEN_MAJOR)
    strided._ways = {"": ValueError("no strides")}
    answer = measure(ours(), strided, absent, fails, spots=(PLACE, OTHER))
    assert answer.data["taken"]["not_run"] == {
        "vllm-triton": "ModuleNotFoundError: No module named 'vllm'",
        f"fa3 {PLACE}": "ValueError: no D 128; RuntimeError: no",
        f"fa3 {OTHER}": "ValueError: no D 128; RuntimeError: no",
        f"mjolnir {PLACE} {TOKEN_MAJOR}": "ValueError: no strides",
        f"mjolnir {OTHER} {TOKEN_MAJOR}": "ValueError: no strides",
    }
    assert "not run: vllm-triton: ModuleNotFoundError" in str(answer.view)
    assert set(by_name(answer.data)) == {f"mjolnir {PLACE}", f"mjolnir {OTHER}"}


def test_a_wrong_result_of_ours_fails() -> None:
    answer = measure(ours(gain=3.0))
    assert answer.code == Exit.FAILED
    assert answer.data["problems"] == [
        f"mjolnir {PLACE}: the result is wrong (error {answer.data['rows'][0]['error']})"
    ]


def test_a_lost_device_ends_the_run_and_keeps_what_there_is(tmp_path: Path) -> None:
    clock = FakeClock()

    class Breaks(FakeContender):
        def choose(self, spot: Spot, heats: Any) -> None:
            clock.broken = spot == OTHER
            super().choose(spot, heats)

    out = tmp_path / "kernel-peers-h200.json"
    bad = Breaks("fa3", {"": RuntimeError("CUDA error")})
    last = FakeContender("ceiling", {"": 5.0})
    answer = measure(ours(), bad, last, spots=(PLACE, OTHER, PLACE), clock=clock, out=out)
    assert set(by_name(answer.data)) == {f"mjolnir {PLACE}", f"ceiling {PLACE}"}
    told = answer.data["taken"]["not_run"]["the rest"]
    assert told.startswith("the device fails since B2NHD was tried: RuntimeError: an illegal memory access")
    assert rows.read(out)["rows"] == answer.data["rows"]


def test_what_was_measured_outlives_an_interrupt(tmp_path: Path) -> None:
    class Stopped(FakeContender):
        def choose(self, spot: Spot, heats: Any) -> None:
            if spot == OTHER:
                raise KeyboardInterrupt
            super().choose(spot, heats)

    out = tmp_path / "kernel-peers-h200.json"
    with pytest.raises(KeyboardInterrupt):
        measure(Stopped("mjolnir", {"": 10.0}, HEAD_MAJOR), spots=(PLACE, OTHER), out=out)
    assert [rows.name_of(one) for one in rows.read(out)["rows"]] == [f"mjolnir {PLACE}"]


def test_an_earlier_file_is_merged_and_its_gaps_are_closed(tmp_path: Path) -> None:
    first = tmp_path / "one.json"
    absent = FakeContender("fa3", {"": ModuleNotFoundError("No module named 'vllm'")})
    gone = FakeContender("flashinfer-tc", {"": ValueError("no")})
    measure(ours(), absent, gone, spots=(PLACE, OTHER), out=first, kernels=("mjolnir", "fa3", "flashinfer-tc"))
    earlier = rows.read(first)
    options = Options(append=(first,), kernels=("fa3", "flashinfer-tc"))
    peers = FakeContender("fa3", {"": 20.0}), FakeContender("flashinfer-tc", {"": 15.0})
    answer = kernel.measured(options, (PLACE,), [earlier], bench(*peers))
    assert rows.read(first) == answer.data, "without --out the first file to append to is written"
    assert by_name(answer.data)[f"mjolnir {PLACE}"]["us"] == 10.0
    assert by_name(answer.data)[f"fa3 {PLACE}"]["us"] == 20.0
    assert answer.data["taken"]["not_run"] == {f"flashinfer-tc {OTHER}": "ValueError: no"}
    assert [part["kernels"] for part in answer.data["taken"]["parts"]] == [
        ["mjolnir", "fa3", "flashinfer-tc"], ["fa3", "flashinfer-tc"],
    ]  # fmt: skip
    assert answer.data["figures"]["worst_vs_best_peer"] == 1.5


def test_results_of_two_devices_are_not_merged() -> None:
    earlier = measure(ours()).data
    earlier["taken"]["parts"][0]["device"] = "NVIDIA H100"
    with pytest.raises(UsageFailure, match="different devices: NVIDIA H100, NVIDIA H200"):
        measure(ours(), earlier=[earlier])


def test_no_spot_is_begun_after_the_minutes() -> None:
    answer = measure(ours(), minutes=1e-9, spots=(PLACE,))
    assert answer.data["taken"]["not_run"] == {str(PLACE): "the 1e-09 minutes were over"}
    assert answer.code == Exit.FAILED, "there is no row"


def settings_with(clock: FakeClock, best: Setting) -> Any:
    def prepare(sets: Any, setting: Setting, device: Any) -> Any:
        if setting.kv_stages == 5:
            raise ValueError("spills")
        return right(sets, 10.0 if setting == best else 11.0)

    return prepare


def test_ours_is_searched_where_no_file_names_a_setting() -> None:
    best, clock = replace(Setting(), ctas_per_sm=3, kv_stages=2, pdl=1), FakeClock()
    prepare = settings_with(clock, best)
    tuned = Tuned(DEVICE, Defaults((Table("table"),)), {key_of(OTHER): replace(Setting(), kv_stages=3)})
    contenders = Mjolnir(DEVICE, HEAD_MAJOR, tuned, 16, prepare), MjolnirDefault(DEVICE, prepare)
    found = by_name(measure(*contenders, spots=(PLACE, OTHER), clock=clock).data)
    searched, filed = found[f"mjolnir {PLACE}"], found[f"mjolnir {OTHER}"]
    assert (searched["us"], searched["setting"], searched["setting_from"]) == (10.0, best.as_dict(), "search")
    assert len(searched["tried"]) == 16
    assert (filed["setting"]["kv_stages"], filed["setting_from"], len(filed["tried"])) == (3, "file", 1)
    default = found[f"mjolnir-default {PLACE}"]
    assert (default["us"], default["setting"], default["layout"]) == (
        11.0,
        built_in(PLACE.geometry, DEVICE, PLACE.batch).as_dict(),
        HEAD_MAJOR,
    )
    assert len(searched["kernel_hash"]) == 12


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Any:
        raise RuntimeError("no CUDA device is visible to torch")

    monkeypatch.setattr(kernel, "current_device", none)
    with pytest.raises(MissingFailure, match="no CUDA device"):
        kernel.kernel(Options())


def test_merging_alone_needs_no_gpu(tmp_path: Path) -> None:
    one, out = tmp_path / "one.json", tmp_path / "all.json"
    measure(ours(), out=one)
    answer = kernel.kernel(Options(append=(one,), out=out, merge_only=True))
    assert rows.read(out)["rows"] == rows.read(one)["rows"] == answer.data["rows"]
    with pytest.raises(UsageFailure, match="--append with a file that exists"):
        kernel.kernel(Options(append=(tmp_path / "none.json",), merge_only=True))


def test_an_unknown_kernel_is_told() -> None:
    with pytest.raises(UsageFailure, match="--kernel 'fa9' is none of mjolnir, "):
        kernel.kernel(Options(kernels=("fa9",)))


def test_every_contender_that_is_asked_for_is_there() -> None:
    tuned = Tuned(DEVICE, Defaults((Table("table"),)))
    names = [one.name for one in kernel.contenders(DEVICE, Options(), tuned)]
    assert names == ["mjolnir", *KERNELS]
    assert [one.name for one in kernel.contenders(DEVICE, Options(kernels=("fa3", "ceiling")), tuned)] == [
        "fa3",
        "ceiling",
    ]
    assert row("mjolnir", Spot(Geometry(32, 8), (64,)), 1.0)["layout"] == HEAD_MAJOR
