"""`mjolnir verify pdl`, with the emulator in the kernel's place: what reads too early, or not at all, is told."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mjolnir.kernel.cache import CompileError, compile_only
from mjolnir.kernel.cubin import read_resources
from mjolnir.kernel.device import H200, Device
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import Variant
from mjolnir.research import pdl as twin
from mjolnir.research import pdl_gpu as gpu
from mjolnir.research import pdl_writer
from mjolnir.research.answer import Answer, Exit, Failure, MissingFailure
from tests.research.test_cli import call
from tests.research.test_correctness_gpu import Emulated

DEVICE = Device("sm_90a", "Small", 2)
SMALL = gpu.Shape("small", Geometry(2, 1, page_size=16), 3, 128)
REPLAYS = 10
"""Two plans, and replays that grow from both."""


def write(words: torch.Tensor, places: torch.Tensor, target: torch.Tensor) -> None:
    target[places.long()] = words


class Kernel(Emulated):
    """The emulator as it is, unless `stale` makes one with PDL take an argument as it was in the launch before."""

    stale = ""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._old: dict[int, torch.Tensor] = {}

    def run(self, query, k, v, table, lengths, out, *more):
        given = {"query": query, "cache": k, "lengths": lengths}
        if type(self).stale and self.setting.pdl:
            fresh = given[type(self).stale]
            old = self._old.get(out.data_ptr(), fresh)
            self._old[out.data_ptr()] = fresh.clone()
            given[type(self).stale] = old
        super().run(given["query"], given["cache"], v, table, given["lengths"], out, *more)


class Graph:
    """A graph that is run by hand; one launch comes before, as in `capture`."""

    def __init__(self, step: Callable[[int], None], _: int) -> None:
        self.step = step
        step(0)

    def replay(self) -> None:
        self.step(0)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> type[Kernel]:
    stand_in = type("StandIn", (Kernel,), {})
    monkeypatch.setattr(gpu, "Runner", stand_in)
    monkeypatch.setattr(gpu, "WHERE", "cpu")
    monkeypatch.setattr(gpu, "capture", Graph)
    monkeypatch.setattr(gpu, "SHAPES", (SMALL,))
    monkeypatch.setattr(pdl_writer, "early_writer", lambda arch: write)
    monkeypatch.setattr(twin, "current_device", lambda: DEVICE)
    return stand_in


def test_what_waits_differs_nowhere(kernel: type[Kernel], tmp_path: Path) -> None:
    out = tmp_path / "results" / "pdl.json"
    answer = twin.pdl(REPLAYS, 3, out)
    (row,) = answer.data["rows"]
    assert answer.code is Exit.DONE
    assert answer.data["figures"] == {"pdl_replays": REPLAYS, "pdl_mismatches": 0}
    assert (row["replays"], row["mismatches"], row["changes"], row["first_mismatch"]) == (REPLAYS, 0, REPLAYS, 0)
    assert 0 < row["excess"] < 1
    assert row["problems"] == []
    assert json.loads(out.read_text()) == json.loads(json.dumps(answer.data))
    assert "PDL on against PDL off on Small, seed 3" in str(answer.view)


@pytest.mark.parametrize("stale", ["query", "cache", "lengths"])
def test_what_is_read_too_early_is_told(kernel: type[Kernel], stale: str) -> None:
    kernel.stale = stale
    answer = twin.pdl(REPLAYS)
    (row,) = answer.data["rows"]
    assert answer.code is Exit.FAILED
    assert row["mismatches"] >= REPLAYS // 2
    assert 1 <= row["first_mismatch"] <= 3
    assert f"WRONG: small: {row['mismatches']} replays differ from PDL off" in str(answer.view)


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_a_kernel_that_always_writes_the_same_is_told(kernel: type[Kernel], value: float) -> None:
    kernel.fault = staticmethod(lambda given: given["out"].fill_(value))
    answer = twin.pdl(REPLAYS)
    (row,) = answer.data["rows"]
    assert row["mismatches"] == 0
    assert row["changes"] <= 1
    assert row["excess"] is None if value else row["excess"] > 1
    assert answer.code is Exit.FAILED
    assert "changed in" in str(answer.view)
    assert "f32 reference" in str(answer.view)


def test_lengths_are_drawn_and_then_grow_within_the_margin(
    kernel: type[Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = gpu.Step(gpu.Shape("more", SMALL.geometry, 16, 128), DEVICE, write, 0)
    plans: list[list[int]] = []

    def plan(self: Emulated, lengths: torch.Tensor, margin: int = 0) -> None:
        plans.append([margin, *lengths.tolist()])
        Emulated.plan(self, lengths, margin)

    monkeypatch.setattr(kernel, "plan", plan)
    drawn: list[list[int]] = []
    for number in range(3 * gpu.PLAN_EVERY):
        before, words = step.lengths.tolist(), step.query.clone()
        rows = [item.cache.clone() for item in step.layers]
        step.advance(number % gpu.PLAN_EVERY == 0)
        lengths = step.lengths.tolist()
        drawn += [lengths] if number % gpu.PLAN_EVERY == 0 else []
        assert number % gpu.PLAN_EVERY == 0 or lengths == [n + 1 for n in before]
        assert max(lengths) <= 128
        assert not torch.equal(words, step.query)
        written = [(a != b).flatten(1).any(1).sum() for a, b in zip(rows, (i.cache for i in step.layers), strict=True)]
        assert all(0 < n <= 16 for n in written)
    assert len({tuple(lengths) for lengths in drawn}) == 3
    assert min(map(min, drawn)) < gpu.TINY
    assert max(map(max, drawn)) > 100
    assert plans == [[gpu.PLAN_EVERY, *lengths] for lengths in drawn for _ in range(2)]


def test_a_row_is_written_where_the_last_token_lies(kernel: type[Kernel]) -> None:
    step = gpu.Step(gpu.Shape("heads", Geometry(6, 3, page_size=16), 2, 64), DEVICE, write, 0)
    lengths = torch.tensor([17, 64])
    item, places = step.layers[0], step._places(lengths)
    item.cache.view(torch.int32).view(-1)[places] = 0
    for part in (item.k, item.v):
        zeros = (part == 0).all(-1)
        found = {(int(page), int(slot)) for page, slot, _ in zeros.nonzero()}
        wanted = [(int(item.block_table[0, 1]), 0), (int(item.block_table[1, 3]), 15)]
        assert found == set(wanted)
        assert int(zeros.sum()) == 2 * 3


def test_shapes_are_what_is_to_be_shown() -> None:
    variants = {shape.name: Variant.of(shape.setting, shape.geometry, H200) for shape in gpu.SHAPES}
    assert {variant.engine for variant in variants.values()} == {"warp", "wgmma"}
    assert {variant.consumer_warps for variant in variants.values()} == {4, 8}
    assert {variant.merge for variant in variants.values()} == {True, False}
    assert {shape.batch for shape in gpu.SHAPES} == {1, 8, 64}
    for shape in gpu.SHAPES:
        assert shape.context % shape.geometry.page_size == 0
        assert Variant.of(Setting(**{**shape.setting.as_dict(), "pdl": 1}), shape.geometry, H200).pdl == 1


def test_without_a_gpu_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Device:
        raise RuntimeError("no CUDA device is visible to torch")

    monkeypatch.setattr(twin, "current_device", none)
    with pytest.raises(MissingFailure, match="stress test needs one"):
        twin.pdl()
    code, _, errors = call("verify", "pdl")
    assert code == 3
    assert "stress test needs one" in errors


@pytest.mark.parametrize("error", [CompileError("spills 8 bytes"), RuntimeError("CUDA error: misaligned address")])
def test_a_launch_that_fails_is_told_with_its_shape(kernel: type[Kernel], error: Exception) -> None:
    def fail(given: dict[str, Any]) -> None:
        raise error

    kernel.fault = staticmethod(fail)
    with pytest.raises(Failure, match=rf"small: \w+: {error}"):
        twin.pdl(REPLAYS)


def test_the_command_passes_on_what_it_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[Any] = []

    def work(*arguments: Any) -> Answer:
        given.extend(arguments)
        return Answer({"a": 1}, "text", Exit.FAILED)

    monkeypatch.setattr(twin, "pdl", work)
    out = tmp_path / "x.json"
    assert call("verify", "pdl", "--replays", 5, "--seed", 2, "--out", out)[:2] == (1, "text\n")
    assert given == [5, 2, out]


def test_the_writer_starts_the_next_kernel_before_it_writes() -> None:
    made = pdl_writer.Scatter()
    artifacts = compile_only(made, made.arguments(), "sm_90a").artifacts
    assert read_resources(artifacts.CUBIN).frame_bytes == 0
    text = artifacts.PTX if isinstance(artifacts.PTX, str) else artifacts.PTX.decode()
    order = [text.index(word) for word in ("launch_dependents", "griddepcontrol.wait", "%clock", "st.global")]
    assert order == sorted(order)
