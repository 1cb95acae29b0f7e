"""A point that is timed, on an engine that is made up: what counts as its steps, and what as its time."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from mjolnir.research.serving import timing
from mjolnir.research.serving.steps import Steps
from mjolnir.research.serving.timing import Point, Question, make_prompts, most_tokens

ASKED = Question(
    "x", "m", "TRITON_ATTN", ((2, 30), (4, 8)), vocabulary=90, layers=1, windows=3, steps=5, engine={}
)  # fmt: skip


def test_a_question_travels_whole() -> None:
    assert Question.from_dict(json.loads(json.dumps(ASKED.as_dict()))) == ASKED


def test_prompts_are_as_long_as_any_point_needs_them() -> None:
    prompts = make_prompts(ASKED)
    assert [len(prompt) for prompt in prompts] == [30, 30, 8, 8]
    assert len({tuple(prompt[:8]) for prompt in prompts}) == 4
    assert make_prompts(ASKED) == prompts


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
    found = point[0].times([[5] * 30] * 4)
    assert (found.batch, found.context) == (4, 30)
    assert found.step_us == pytest.approx([1000.0] * 3)
    assert found.tokens_per_s == pytest.approx([4000.0] * 3)
    assert found.host_us == pytest.approx([2.0] * 3)
    assert (found.decode_steps, found.mjolnir_steps, found.attention_us) == (15, 0, None)
    assert found.trouble == "there is no GPU"
    assert point[1].aborted == ["0", "1", "2", "3"]


def test_requests_that_never_decode_together_end_it(point: tuple[Point, Engine, Steps]) -> None:
    timed, engine, _ = point
    engine.requests = [str(number) for number in range(most_tokens(3, 5))]
    with pytest.raises(RuntimeError, match="never decoded together"):
        timed.times([[5] * 30])


def test_randomise_gives_every_matrix_its_size() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(400, 100), torch.nn.LayerNorm(100))
    timing.randomise(model)
    assert model[0].weight.std().item() == pytest.approx(0.05, rel=0.05)
    assert torch.equal(model[1].weight, torch.ones(100))


def test_requests_that_are_not_ended_are_told(point: tuple[Point, Engine, Steps], monkeypatch: Any) -> None:
    timed, engine, _ = point
    monkeypatch.setattr(engine, "abort_request", lambda names: None)
    with pytest.raises(RuntimeError, match="go on after they were ended"):
        timed.times([[1, 2, 3]] * 4)
