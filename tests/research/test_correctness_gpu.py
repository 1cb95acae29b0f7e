"""How cases are judged on the GPU, with the emulator on the CPU in the kernel's place, right or with a fault."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
import torch

from mjolnir.kernel.device import Device
from mjolnir.kernel.emulator import emulate
from mjolnir.kernel.engine import engine_for
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.matrix import Probe, matrix_cases
from mjolnir.kernel.plan import make_plan
from mjolnir.research import correctness as twin
from mjolnir.research import correctness_build
from mjolnir.research import correctness_gpu as gpu
from mjolnir.research.answer import Failure
from mjolnir.research.correctness_truth import Truth, make_truth, packed, unpacked

DEVICE = Device("sm_90a", "Small", 4)
Launched = dict[str, Any]


class Emulated:
    """Takes a runner's calls and answers with the emulator; `fault` may spoil what was written."""

    fault: Callable[[Launched], None] = staticmethod(lambda given: None)

    def __init__(self, setting: Any, geometry: Geometry, device: Device, *, capacity: int, **options: Any) -> None:
        self.setting, self.geometry, self.capacity = setting, geometry, capacity
        self.engine = engine_for(geometry, device.arch, options.get("engine"))
        self.grid = device.sm_count * setting.ctas_per_sm

    def plan(self, seq_lens: torch.Tensor, margin: int = 0) -> None:
        self.made = make_plan(
            seq_lens.tolist(), self.geometry.heads_kv * self.engine.blocks, self.grid, self.setting.max_splits,
            capacity=self.capacity, margin=margin,
        )  # fmt: skip

    def run(self, query, k, v, table, lengths, out, k_scale, v_scale, scale=None, lse=None, q_mul=None, o_mul=None):
        tokens, heads = len(lengths) * self.geometry.q_len, (-1, self.geometry.heads_q, self.geometry.head_dim)
        query, out = query.view(heads), out.view(heads)
        values, logs = emulate(
            query[:tokens], k, v, table, lengths, self.made, geometry=self.geometry, engine=self.engine,
            scale=scale or self.geometry.head_dim**-0.5, k_scale=k_scale, v_scale=v_scale, q_mul=q_mul, o_mul=o_mul,
            warps=self.setting.consumer_warps, lse=True,
        )  # fmt: skip
        out[:tokens] = values
        if lse is not None:
            lse[:tokens] = logs
        type(self).fault({"out": out, "lse": lse, "k": k, "tokens": tokens, "lengths": lengths, "plan": self.made})


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> type[Emulated]:
    """The kernel's stand-in; a subclass, so that a fault lasts for one test."""
    stand_in = type("StandIn", (Emulated,), {})
    monkeypatch.setattr(gpu, "Runner", stand_in)
    monkeypatch.setattr(gpu, "WHERE", "cpu")
    monkeypatch.setattr(gpu, "FAR_BYTES", 1 << 23)
    monkeypatch.setattr(gpu, "MILLION", 5037)

    class Graph:
        def __init__(self, step: Callable[[int], None], _: int) -> None:
            self.step = step

        def replay(self) -> None:
            self.step(0)

    monkeypatch.setattr(gpu, "capture", Graph)
    return stand_in


@cache
def some() -> tuple[tuple[Probe, Truth], ...]:
    """Small cases: with and without a log-sum-exp, O in all places."""
    loud = [p for p in matrix_cases(3, 200, DEVICE) if p.case.name == "loud" and p.case.geometry.heads_q < 30]
    chosen = {(probe.out, probe.lse): probe for probe in loud}
    assert {out for out, _ in chosen} == {"plain", "fused", "odd"}
    assert {lse for _, lse in chosen} == {True, False}
    return tuple((probe, make_truth(probe, DEVICE)) for probe in chosen.values())


def fresh(truth: Truth) -> Truth:
    """A copy that may be written to: on the CPU, moving to the device copies nothing."""
    return unpacked(packed(truth))


def test_what_is_right_has_no_problems(kernel: type[Emulated]) -> None:
    for probe, truth in some():
        row = gpu.judge(probe, truth, DEVICE)
        assert row["problems"] == []
        assert row["excess_emulator"] == 0
        assert 0 < row["excess"] < 0.9
        assert ("lse_excess" in row) == probe.lse


def scribble(given: Launched) -> None:
    given["out"][given["tokens"] + 1, 0, 0] = 1


def scribble_between(given: Launched) -> None:
    """One element behind the heads of the first row; there is none in a plain output."""
    out = given["out"]
    if not out.is_contiguous():
        out.as_strided((1,), (1,), out[0].numel()).fill_(1)


def drift(given: Launched) -> None:
    given["out"][0] *= 1 + torch.rand(()) / 8


def write_inputs(given: Launched) -> None:
    given["k"][0, 0, 0, 0] = 0x31


@pytest.mark.parametrize(
    ("fault", "words"),
    [(scribble, "beyond"), (scribble_between, "beyond"), (drift, "two launches differ"), (write_inputs, "inputs")],
)
def test_what_is_done_wrong_beside_the_output_is_told(
    kernel: type[Emulated], fault: Callable[[Launched], None], words: str
) -> None:
    kernel.fault = staticmethod(fault)
    found = [gpu.judge(probe, fresh(truth), DEVICE)["problems"] for probe, truth in some()]
    assert any(words in " ".join(problems) for problems in found)
    assert fault is scribble_between or all(found)


def test_wrong_outputs_have_large_errors(kernel: type[Emulated]) -> None:
    kernel.fault = staticmethod(lambda given: given["out"].view(-1)[:1].add_(1))
    plain = next((probe, truth, DEVICE) for probe, truth in some() if probe.out == "plain")
    assert gpu.judge(*plain)["excess"] > 1
    kernel.fault = staticmethod(lambda given: given["out"][:2].fill_(torch.nan))
    assert gpu.judge(*plain)["excess_emulator"] == torch.inf


def test_a_graph_is_replayed_with_other_lengths(kernel: type[Emulated]) -> None:
    seen: list[tuple[int, ...]] = []
    kernel.fault = staticmethod(lambda given: seen.append(tuple(given["lengths"].tolist())))
    probe, truth = some()[0]
    row = gpu.judge_graph(probe, fresh(truth), DEVICE)
    assert row["problems"] == []
    assert 0 < row["excess"] < 0.9
    assert len(set(seen)) == 4
    assert probe.case.tokens in seen


def test_a_graph_that_keeps_its_old_plan_is_told(kernel: type[Emulated], monkeypatch: pytest.MonkeyPatch) -> None:
    class Stale(gpu.capture):  # type: ignore[name-defined, misc]
        def replay(self) -> None:
            """Nothing is launched."""

    monkeypatch.setattr(gpu, "capture", Stale)
    probe, truth = some()[0]
    row = gpu.judge_graph(probe, fresh(truth), DEVICE)
    assert row["excess"] == torch.inf
    assert "a replay differs from a launch" in row["problems"]


def test_pages_far_away_are_found(kernel: type[Emulated]) -> None:
    for probe in gpu.far_probes(0):
        truth = make_truth(probe, DEVICE)
        inputs = gpu.far_away(truth.inputs, probe.case)
        used = inputs.block_table[0, :2].tolist()
        assert min(used) >= inputs.k.shape[0] - truth.inputs.k.shape[0]
        assert torch.equal(inputs.block_table[1], truth.inputs.block_table[1])
        row = gpu.judge_far(probe, truth, DEVICE)
        assert 0 < row["excess"] < 0.9
        assert row["excess_emulator"] == 0


def test_a_long_context_is_judged_by_f64(kernel: type[Emulated]) -> None:
    row = gpu.judge_million(Geometry(8, 1), DEVICE, 0)
    assert 0 < row["excess"] < 0.9


def over_all(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.setattr(correctness_build, "build", lambda job: "")
    monkeypatch.setattr(twin, "_room", lambda size: True)
    with ThreadPoolExecutor(1) as executor:
        rows, refused = twin.on_gpu(2, 3, DEVICE, executor)
    assert refused == {}
    return rows


def test_everything_is_judged_in_one_go(kernel: type[Emulated], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = over_all(monkeypatch)
    assert sorted(row["class"] for row in rows if row["class"] in ("graph", "far", "million")) == [
        "far", "far", "graph", "million",
    ]  # fmt: skip
    assert len(rows) == 2 + 4
    assert not any(map(twin.is_wrong, rows))
    assert twin.figures([{**row, "wrong": False} for row in rows])["worst_excess_emulator"] == 0


def test_a_launch_that_fails_is_told_with_its_case(kernel: type[Emulated], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(given: Launched) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    kernel.fault = staticmethod(fail)
    with pytest.raises(Failure, match=r"illegal memory access was encountered\nin Probe\(case=Case\(name="):
        over_all(monkeypatch)
