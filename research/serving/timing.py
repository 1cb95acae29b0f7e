"""The process of one engine that is timed: `python -m mjolnir.research.serving.timing QUESTION.json FD`.

It answers in lines of JSON on the file descriptor FD: what it is, once it is ready, and then every line that it reads:
`{"begin": [batch, context]}` with the time of a step, `{"window": steps}` with the times of so many decode steps, and
`{"end": true}` with those of attention. Between lines it waits, with nothing left on the device.
Prompts are computed once, for the longest context, and lie in the prefix cache from then on; each point takes as many
of them, and as much of each, as it is about. What lies in the cache is as random without attention and MLPs, so that
these are left out there. Attention is taken from further steps under torch's profiler, so that the profiler costs no
window anything. Weights are random and of the usual size: times depend on them little, and not on the backend.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

from mjolnir.research.serving import filling, kernels
from mjolnir.research.serving.engine import (
    OURS,
    attention_layers,
    counters,
    facts,
    reset_counters,
    start,
    watched_builds,
)  # fmt: skip
from mjolnir.research.serving.job import Job, mjolnir_steps
from mjolnir.research.serving.steps import Steps

WARM_STEPS = 6
"""Steps in which all requests decode together, before a point counts as begun."""

WOKEN_STEPS = 3
"""Steps before each window, which fill the pipeline of steps scheduled ahead and the host's caches."""

PROFILED_STEPS = 6
KEPT_NAMES = 12


@dataclass(frozen=True, slots=True)
class Question:
    """What is timed.

    Attributes:
        name: for messages.
        model: folder of the model's config.
        backend: as vLLM names it.
        points: (batch, context), of those that will be asked.
        vocabulary, loops: of the model, and how often its layers are gone through.
        windows, steps: timed windows of a point, and decode steps of a window, at most.
        cores: of the host, on which the process runs; none: on all.
        engine: further arguments of `vllm.LLM`.
        seed: of the prompts.
    """

    name: str
    model: str
    backend: str
    points: tuple[tuple[int, int], ...]
    vocabulary: int
    loops: int
    windows: int
    steps: int
    engine: Mapping[str, Any]
    cores: tuple[int, ...] = ()
    seed: int = 0

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Question:
        """The inverse of `as_dict`."""
        points = tuple((batch, context) for batch, context in values["points"])
        return cls(**{**values, "points": points, "cores": tuple(values["cores"])})


@dataclass(frozen=True, slots=True)
class Window:
    """What the steps of a window took.

    Attributes:
        step_us: wall time of a decode step.
        tokens_per_s: tokens that came out.
        host_us: of a step in the backend's metadata builder.
        decode_steps, mjolnir_steps: steps that were made, and those of them that ran on Mjolnir.
    """

    step_us: float
    tokens_per_s: float
    host_us: float
    decode_steps: int
    mjolnir_steps: int


@dataclass(frozen=True, slots=True)
class Profile:
    """What attention took.

    Attributes:
        attention_us: of a step on the device; None without a GPU, or where it cannot be told.
        kernels, others: microseconds of a step by kernel, those of attention and the rest.
        trouble: why attention cannot be told.
    """

    attention_us: float | None
    kernels: dict[str, float]
    others: dict[str, float]
    trouble: str


def main(source: Path, asked: TextIO, answers: TextIO) -> None:
    """Make what the question in the file `source` is about, and answer on what is asked of it, line by line."""
    question = Question.from_dict(json.loads(source.read_text("utf-8")))
    if question.cores:
        os.sched_setaffinity(0, question.cores)
    job = Job(question.name, question.model, question.backend, (), 1, question.engine)
    began = time.monotonic()
    builds = watched_builds(question.backend)
    loop(question.loops)
    llm, steps = start(job)
    llm.apply_model(filling.randomise)
    started = time.monotonic()
    prompts = filling.make_prompts(question.points, question.vocabulary, question.seed)
    with filling.bare(llm):
        filling.fill(llm, prompts)
    filled = time.monotonic()
    seconds = {"start": round(started - began, 1), "fill": round(filled - started, 1)}

    def tell(answer: Any) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    tell({**facts(llm), "seconds": seconds})
    point = Point(llm, steps, builds, question)
    for line in asked:
        tell(point.answer(json.loads(line), prompts))


def loop(times: int) -> None:
    """Have the model's layers gone through so many times."""
    from vllm.model_executor.models.qwen3 import Qwen3Model

    filling.loop_layers(Qwen3Model, times)


def most_tokens(windows: int, steps: int) -> int:
    """Tokens that a request may make: more than all steps of its point will ask for."""
    return windows * (steps + WOKEN_STEPS) + PROFILED_STEPS + 9 * WARM_STEPS + 256


class Point:
    """One point at a time on an engine.

    Args:
        llm, steps: the engine, and the counts of what it schedules.
        builds: nanoseconds in the backend's builder, summed up.
        question: what is asked.
    """

    def __init__(self, llm: Any, steps: Steps, builds: list[int], question: Question) -> None:
        self._engine = llm.llm_engine
        self._llm, self._steps, self._builds, self._question = llm, steps, builds, question
        self._most = most_tokens(question.windows, question.steps)
        self._number, self._names = 0, list[str]()

    def answer(self, asked: Mapping[str, Any], prompts: Sequence[Sequence[int]]) -> Any:
        """What a line asks for, ready for JSON."""
        ((what, value),) = asked.items()
        if what == "begin":
            batch, context = value
            return {"step_us": self.begin([prompt[:context] for prompt in prompts[:batch]])}
        return asdict(self.window(value) if what == "window" else self.end())

    def begin(self, prompts: Sequence[Sequence[int]]) -> float:
        """Have requests behind `prompts` decode together; gives the microseconds of a step."""
        self._number += 1
        self._names = self._begin(prompts)
        self._settle(len(prompts))
        gc.collect()
        gc.freeze()  # what lives as long as the point is not walked through in its windows
        found = self.window(WARM_STEPS)
        return found.step_us

    def window(self, count: int) -> Window:
        """Time so many decode steps."""
        for _ in range(WOKEN_STEPS):
            self._engine.step()
        ours = self._question.backend in OURS
        if ours:
            reset_counters()
        self._steps.reset()
        self._builds[:] = [0]
        begin = time.perf_counter()
        made = sum(self._tokens_of_step() for _ in range(count))
        seconds = time.perf_counter() - begin
        found = Window(
            1e6 * seconds / count, made / seconds, self._builds[0] / 1e3 / count, self._steps.decode,
            mjolnir_steps(counters()) if ours else 0,
        )  # fmt: skip
        _wait()
        return found

    def end(self) -> Profile:
        """Tell what attention takes, and end the requests."""
        found, trouble = self._profiled()
        self._end(self._names)
        gc.unfreeze()
        _wait()
        if found is None:
            return Profile(None, {}, {}, trouble)
        return Profile(found.us, _first(found.kernels), _first(found.others), trouble)

    def _begin(self, prompts: Sequence[Sequence[int]]) -> list[str]:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        sampling = SamplingParams(
            temperature=0.0, max_tokens=self._most, ignore_eos=True, detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )  # fmt: skip
        names = [f"{self._number}-{number}" for number in range(len(prompts))]
        for name, prompt in zip(names, prompts, strict=True):
            self._engine.add_request(name, TokensPrompt(prompt_token_ids=list(prompt)), sampling)
        return names  # not what the engine calls them by itself: it is told to end them by what they were named here

    def _end(self, names: list[str]) -> None:
        """End the requests, and have the engine forget them."""
        self._engine.abort_request(names)
        for _ in range(WARM_STEPS):
            if not self._engine.has_unfinished_requests():
                return
            self._engine.step()
        raise RuntimeError("requests go on after they were ended")

    def _settle(self, batch: int) -> None:
        """Step until all requests decode together, and a little on."""
        together = 0
        for _ in range(self._most // 2):
            together = together + 1 if self._tokens_of_step() == batch and self._steps.last_is_decode else 0
            if together == WARM_STEPS:
                return
        raise RuntimeError(f"the {batch} requests never decoded together: there is too little room in the cache")

    def _tokens_of_step(self) -> int:
        return sum(len(output.outputs[0].token_ids) for output in self._engine.step())

    def _profiled(self) -> tuple[kernels.Attention | None, str]:
        """What attention took in further steps, or why that cannot be told."""
        import torch
        from torch.profiler import ProfilerActivity, profile

        if not torch.cuda.is_available():
            return None, "there is no GPU"
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for _ in range(PROFILED_STEPS):
                self._engine.step()
            torch.cuda.synchronize()
        with TemporaryDirectory(prefix="mjolnir-trace-") as scratch:
            path = Path(scratch, "trace.json")
            profiler.export_chrome_trace(str(path))
            seen = kernels.read_trace(path)
        try:
            layers = self._question.loops * sum(1 for _ in attention_layers(self._llm))
            return kernels.attention(seen, layers), ""
        except ValueError as error:
            return None, str(error)


def _wait() -> None:
    """Until the device has nothing more to do: steps are scheduled ahead, and others may be timed now."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _first(times: Mapping[str, float]) -> dict[str, float]:
    """The kernels that took longest, by names that can be read."""
    return {name[:100]: round(us, 2) for name, us in [*times.items()][:KEPT_NAMES]}


if __name__ == "__main__":
    os.set_inheritable(int(sys.argv[2]), False)
    with os.fdopen(int(sys.argv[2]), "w", encoding="utf-8") as pipe:
        main(Path(sys.argv[1]), sys.stdin, pipe)
