"""A point that is timed, on an engine that is made up: what counts as its steps, and what as its time."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mjolnir.research.serving import filling
from mjolnir.research.serving.steps import Steps
from mjolnir.research.serving.timing import WARM_STEPS, WOKEN_STEPS, Point, Question, most_tokens

ASKED = Question(
    "x", "m", "TRITON_ATTN", ((2, 30), (4, 8)), vocabulary=90, loops=3, windows=3, steps=5, engine={}, cores=(0,)
)  # fmt: skip


def test_a_question_travels_whole() -> None:
    assert Question.from_dict(json.loads(json.dumps(ASKED.as_dict()))) == ASKED


def test_prompts_are_as_long_as_any_point_needs_them() -> None:
    prompts = filling.make_prompts(ASKED.points, ASKED.vocabulary, ASKED.seed)
    assert [len(prompt) for prompt in prompts] == [30, 30, 8, 8]
    assert len({tuple(prompt[:8]) for prompt in prompts}) == 4
    assert filling.make_prompts(ASKED.points, ASKED.vocabulary, ASKED.seed) == prompts


class Engine:
    """Prefills for some steps, one request a step, and decodes all of its requests from then on."""

    def __init__(self, steps: Steps, builds: list[int], clock: list[float]) -> None:
        self.requests: list[str] = []
        self.aborted: list[str] = []
        self._steps, self._builds, self._clock, self._made = steps, builds, clock, 0

    def step(self) -> list[Any]:
        self._made += 1
        self._builds[0] += 2000
        self._clock[0] += 0.001
        decoding = self.requests[: self._made]
        self._steps.add([30] if len(decoding) < len(self.requests) else [1] * len(decoding))
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[7])]) for _ in decoding]

    def add_request(self, name: str, prompt: Any, sampling: Any) -> str:
        self.requests.append(name)
        return name

    def abort_request(self, names: list[str]) -> None:
        self.aborted += names

    def has_unfinished_requests(self) -> bool:
        return self.aborted != self.requests


@pytest.fixture
def point(monkeypatch: pytest.MonkeyPatch) -> tuple[Point, Engine, Steps]:
    steps, builds, clock = Steps(), [0], [0.0]
    engine = Engine(steps, builds, clock)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])

    def begin(self: Point, prompts: list[list[int]]) -> list[str]:
        return [engine.add_request(str(number), prompt, None) for number, prompt in enumerate(prompts)]

    monkeypatch.setattr(Point, "_begin", begin)
    return Point(SimpleNamespace(llm_engine=engine), steps, builds, ASKED), engine, steps


def test_windows_hold_decode_steps_alone(point: tuple[Point, Engine, Steps]) -> None:
    timed, engine, _ = point
    prompts = [[5] * 40] * 4
    assert timed.answer({"begin": [4, 30]}, prompts) == {"step_us": pytest.approx(1000.0)}
    assert engine._made == 3 + 2 * WARM_STEPS + WOKEN_STEPS
    found = timed.answer({"window": 5}, prompts)
    assert found == {
        "step_us": pytest.approx(1000.0), "tokens_per_s": pytest.approx(4000.0), "host_us": pytest.approx(2.0),
        "decode_steps": 5, "mjolnir_steps": 0,
    }  # fmt: skip
    profile: dict[str, Any] = {"attention_us": None, "kernels": {}, "others": {}, "trouble": "there is no GPU"}
    assert timed.answer({"end": True}, prompts) == profile
    assert engine.aborted == ["0", "1", "2", "3"]


def test_requests_that_never_decode_together_end_it(point: tuple[Point, Engine, Steps]) -> None:
    timed, engine, _ = point
    engine.requests = [str(number) for number in range(most_tokens(3, 5))]
    with pytest.raises(RuntimeError, match="never decoded together"):
        timed.begin([[5] * 30])


def test_randomise_gives_every_matrix_its_size() -> None:
    linear, norm = torch.nn.Linear(400, 100), torch.nn.LayerNorm(100)
    filling.randomise(torch.nn.Sequential(linear, norm))
    assert linear.weight.std().item() == pytest.approx(0.05, rel=0.05)
    assert torch.equal(norm.weight, torch.ones(100))


def test_requests_that_are_not_ended_are_told(point: tuple[Point, Engine, Steps], monkeypatch: Any) -> None:
    timed, engine, _ = point
    monkeypatch.setattr(engine, "abort_request", lambda names: None)
    timed.begin([[1, 2, 3]] * 4)
    with pytest.raises(RuntimeError, match="go on after they were ended"):
        timed.end()


def test_layers_are_gone_through_several_times_and_once_while_the_cache_is_filled() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = torch.nn.Linear(2, 2)

    class Inner(torch.nn.Module):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.layers, self.end_layer = torch.nn.ModuleList(Layer() for _ in range(count)), count

    filling.loop_layers(Inner, 3)
    model = SimpleNamespace(model=Inner(2))
    inner = model.model
    assert (len(inner.layers), inner.end_layer, len([*inner.parameters()])) == (6, 6, 4)
    assert inner.layers[0] is inner.layers[4]

    def layer(impl: Any, *, apart: bool) -> Any:
        return SimpleNamespace(impl=impl, attn_backend=SimpleNamespace(forward_includes_kv_cache_update=not apart))

    class Impl:
        def forward(self, output: Any) -> Any:
            return output.fill_(1)

    impls = [Impl(), Impl()]
    layers = {"a": layer(impls[0], apart=True), "b": layer(impls[1], apart=False)}
    config = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=layers))
    llm = SimpleNamespace(llm_engine=SimpleNamespace(vllm_config=config), apply_model=lambda change: change(model))
    ones = torch.ones(2)
    with filling.bare(llm):
        assert inner.end_layer == 2
        assert inner.layers[1].mlp(ones) is ones
        assert [impl.forward(output=torch.ones(1)).item() for impl in impls] == [0, 1]
    assert inner.end_layer == 6
    assert inner.layers[1].mlp(ones) is not ones
    assert impls[0].forward(output=torch.zeros(1)).item() == 1
