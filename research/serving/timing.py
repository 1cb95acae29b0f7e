"""The process of one engine that is timed: `python -m mjolnir.research.serving.timing QUESTION.json FD`.

It answers in lines of JSON on the file descriptor FD: what it is, when it is ready, and then the times of every point
that it reads a line about. Prompts are computed once, for the longest context, and lie in the prefix cache from then
on; each point takes as many of them, and as much of each, as it is about. Their attention is left out, which takes far
longer than all that is timed: what lies in the cache is as random without it. A point is timed in windows of whole
decode steps; its attention is taken from further steps under torch's profiler, so that the profiler costs no window
anything. Weights are random and of the usual size: times depend on them little, and not on the backend.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, TextIO

from mjolnir.research.serving import kernels
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
from mjolnir.research.serving.prompts import FIRST_ID
from mjolnir.research.serving.steps import Steps

WARM_STEPS = 6
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
        vocabulary, layers: of the model.
        windows, steps: timed windows of a point, and decode steps of a window.
        engine: further arguments of `vllm.LLM`.
        seed: of the prompts.
    """

    name: str
    model: str
    backend: str
    points: tuple[tuple[int, int], ...]
    vocabulary: int
    layers: int
    windows: int
    steps: int
    engine: Mapping[str, Any]
    seed: int = 0

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Question:
        """The inverse of `as_dict`."""
        return cls(**{**values, "points": tuple((batch, context) for batch, context in values["points"])})


@dataclass(frozen=True, slots=True)
class Times:
    """What one point took.

    Attributes:
        batch, context: the point.
        step_us: wall time of a decode step, a value a window.
        tokens_per_s: tokens that came out, likewise.
        host_us: of a step in the backend's metadata builder, likewise.
        attention_us: of a step on the device; None without a GPU, or where it cannot be told.
        kernels, others: microseconds of a step by kernel, those of attention and the rest.
        trouble: why attention cannot be told.
        decode_steps, mjolnir_steps: steps that were timed, and those of them that ran on Mjolnir.
    """

    batch: int
    context: int
    step_us: list[float]
    tokens_per_s: list[float]
    host_us: list[float]
    attention_us: float | None
    kernels: dict[str, float]
    others: dict[str, float]
    trouble: str
    decode_steps: int
    mjolnir_steps: int


def main(source: Path, asked: TextIO, answers: TextIO) -> None:
    """Make what the question in the file `source` is about, and answer on what is asked of it, line by line."""
    question = Question.from_dict(json.loads(source.read_text("utf-8")))
    job = Job(question.name, question.model, question.backend, (), 1, question.engine)
    began = time.monotonic()
    builds = watched_builds(question.backend)
    llm, steps = start(job)
    llm.apply_model(randomise)
    started = time.monotonic()
    prompts = make_prompts(question)
    with without_attention(llm):
        fill(llm, prompts)
    filled = time.monotonic()
    seconds = {"start": round(started - began, 1), "fill": round(filled - started, 1)}
    print(json.dumps({**facts(llm), "seconds": seconds}), file=answers, flush=True)
    for number, line in enumerate(asked):
        batch, context = json.loads(line)
        point = Point(llm, steps, builds, question, number)
        times = point.times([prompt[:context] for prompt in prompts[:batch]])
        print(json.dumps(asdict(times)), file=answers, flush=True)


@contextmanager
def without_attention(llm: Any) -> Iterator[None]:
    """Attention gives zeros, where keys and values are written apart from it."""
    layers = [layer for layer in attention_layers(llm) if not layer.attn_backend.forward_includes_kv_cache_update]

    def forward(*given: Any, **named: Any) -> Any:
        return named["output"].zero_()

    for layer in layers:
        layer.impl.forward = forward
    try:
        yield
    finally:
        for layer in layers:
            del layer.impl.forward


def randomise(model: Any) -> None:
    """Give every matrix of a model random values of the usual size, on its device."""
    import torch

    generator = torch.Generator(device=next(model.parameters()).device).manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() == 2 and parameter.is_floating_point():
            parameter.data.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)


def make_prompts(question: Question) -> list[list[int]]:
    """As many prompts as the largest batch takes, each as long as any point needs it; no two begin alike."""
    random = Random(question.seed)
    most = max(batch for batch, _ in question.points)
    lengths = [max(context for batch, context in question.points if batch > number) for number in range(most)]
    return [random.choices(range(FIRST_ID, question.vocabulary), k=length) for length in lengths]


def most_tokens(windows: int, steps: int) -> int:
    """Tokens that a request may make: more than all steps of its point will ask for."""
    return windows * steps + PROFILED_STEPS + 8 * WARM_STEPS + 256


def fill(llm: Any, prompts: Sequence[Sequence[int]]) -> None:
    """Have the engine compute all prompts and keep them in its prefix cache."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    once = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, detokenize=False)
    llm.generate([TokensPrompt(prompt_token_ids=list(prompt)) for prompt in prompts], once, use_tqdm=False)


class Point:
    """One point on an engine.

    Args:
        llm, steps: the engine, and the counts of what it schedules.
        builds: nanoseconds in the backend's builder, summed up.
        question: what is asked.
        number: of the point, for names.
    """

    def __init__(self, llm: Any, steps: Steps, builds: list[int], question: Question, number: int = 0) -> None:
        self._engine = llm.llm_engine
        self._llm, self._steps, self._builds, self._question = llm, steps, builds, question
        self._number, self._most = number, most_tokens(question.windows, question.steps)

    def times(self, prompts: Sequence[Sequence[int]]) -> Times:
        """Time decoding behind `prompts`, together."""
        names = self._begin(prompts)
        self._settle(len(prompts))
        self._steps.reset()
        ours = self._question.backend in OURS
        if ours:
            reset_counters()
        step_us, tokens, host = [], [], []
        for _ in range(self._question.windows):
            seconds, made, built = self._window()
            step_us.append(1e6 * seconds / self._question.steps)
            tokens.append(made / seconds)
            host.append(built / 1e3 / self._question.steps)
        counted = mjolnir_steps(counters()) if ours else 0
        decode = self._steps.decode
        found, trouble = self._profiled()
        self._end(names)
        return Times(
            len(prompts), len(prompts[0]), step_us, tokens, host, found.us if found else None,
            _first(found.kernels) if found else {}, _first(found.others) if found else {}, trouble, decode, counted,
        )  # fmt: skip

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

    def _window(self) -> tuple[float, int, int]:
        """Seconds, tokens and nanoseconds in the builder, of the steps of a window."""
        self._builds[:] = [0]
        begin = time.perf_counter()
        made = sum(self._tokens_of_step() for _ in range(self._question.steps))
        return time.perf_counter() - begin, made, self._builds[0]

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
            return kernels.attention(seen, sum(1 for _ in attention_layers(self._llm))), ""
        except ValueError as error:
            return None, str(error)


def _first(times: Mapping[str, float]) -> dict[str, float]:
    """The kernels that took longest, by names that can be read."""
    return {name[:100]: round(us, 2) for name, us in [*times.items()][:KEPT_NAMES]}


if __name__ == "__main__":
    os.set_inheritable(int(sys.argv[2]), False)
    with os.fdopen(int(sys.argv[2]), "w", encoding="utf-8") as pipe:
        main(Path(sys.argv[1]), sys.stdin, pipe)
