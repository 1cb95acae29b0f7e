"""The process of one engine: `python -m mjolnir.research.serving.engine JOB.json RUN.json`.

It needs torch, vLLM and Mjolnir, and no network. The engine lies in this process (`VLLM_ENABLE_V1_MULTIPROCESSING=0`),
so that the counters of its scheduler and of the backend can be read.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from mjolnir.research.serving.job import TOP, Completion, Job, Run
from mjolnir.research.serving.steps import Steps, watch


def main(source: Path, target: Path) -> None:
    """Do the job in the file `source`, and write what came of it to `target`."""
    job = Job.from_dict(json.loads(source.read_text("utf-8")))
    target.write_text(json.dumps(run(job).as_dict()), "utf-8")


def run(job: Job) -> Run:
    """Start the engine and ask it."""
    began = time.monotonic()
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    imported = time.monotonic()
    llm, steps = start(job)
    started = time.monotonic()
    if job.zeroed:
        for layer in attention_layers(llm):
            zero(layer.impl, steps)
    if job.backend in OURS:
        reset_counters()
    sampling = SamplingParams(
        temperature=0.0, max_tokens=job.tokens, ignore_eos=True, detokenize=False, logprobs=TOP
    )  # fmt: skip
    answered: list[Any] = []
    for batch in job.batches:
        asked = [TokensPrompt(prompt_token_ids=list(prompt)) for prompt in batch]
        answered += llm.generate(asked, sampling, use_tqdm=False)
    marks = {"import": imported - began, "start": started - imported, "generate": time.monotonic() - started}
    seconds = {name: round(value, 1) for name, value in marks.items()}
    completions = tuple(map(completion, answered))
    counted = counters() if job.backend in OURS else {}
    return Run(completions, steps.counts(), counted, {**facts(llm), "seconds": seconds})


OURS = ("CUSTOM", "MJOLNIR")
"""Names under which vLLM knows the backend."""


def start(job: Job) -> tuple[Any, Steps]:
    """An engine, and the counts of its steps from now on."""
    from vllm import LLM
    from vllm.v1.core.sched.scheduler import Scheduler

    if job.backend in OURS:
        register()
    speculated = (job.engine.get("speculative_config") or {}).get("num_speculative_tokens", 0)
    steps = Steps(most=1 + speculated)
    watch(Scheduler, steps)
    chosen = {"attention_backend": job.backend} if job.backend else {}
    llm = LLM(model=job.model, skip_tokenizer_init=True, seed=0, **chosen, **job.engine)
    steps.reset()
    return llm, steps


def register() -> None:
    """Register the backend where vLLM has no entry point to find it by: Mjolnir may lie on the path uninstalled."""
    if not any(point.name == "mjolnir" for point in entry_points(group="vllm.general_plugins")):
        from mjolnir.backend import register as register_backend

        register_backend()


def watched_builds(backend: str) -> list[int]:
    """Nanoseconds that the metadata builder of `backend` takes from now on, summed up in the list's one number.

    Called before the engine starts, so that what the engine keeps of the class is what is watched.
    """
    from vllm.plugins import load_general_plugins
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    load_general_plugins()
    if backend in OURS:
        register()
    builder = AttentionBackendEnum[backend].get_class().get_builder_cls()
    total, original = [0], builder.build

    def build(self: Any, *given: Any, **named: Any) -> Any:
        begin = time.perf_counter_ns()
        try:
            return original(self, *given, **named)
        finally:
            total[0] += time.perf_counter_ns() - begin

    builder.build = build
    return total


def attention_layers(llm: Any) -> Iterator[Any]:
    """The layers that hold an attention implementation."""
    context = llm.llm_engine.vllm_config.compilation_config.static_forward_context
    return (layer for layer in context.values() if hasattr(layer, "impl"))


def zero(impl: Any, steps: Steps) -> None:
    """Have `impl` give zeros in decode-only steps; the engine must be eager, and schedule no step ahead."""
    original = impl.forward

    def forward(*given: Any, **named: Any) -> Any:
        result = original(*given, **named)
        if steps.last_is_decode:
            named["output"].zero_()
        return result

    impl.forward = forward


def completion(answered: Any) -> Completion:
    """What vLLM answered to one prompt."""
    (output,) = answered.outputs
    tops = tuple({token: float(entry.logprob) for token, entry in top.items()} for top in output.logprobs)
    return Completion(len(answered.prompt_token_ids), tuple(output.token_ids), tops)


def reset_counters() -> None:
    """Count the backend's steps from now on."""
    from mjolnir.backend.counters import STEPS

    STEPS.reset()


def counters() -> Mapping[str, Any]:
    """The backend's own counts, and why steps went to the fallback."""
    from mjolnir.backend.counters import STEPS

    counts = {name: getattr(STEPS, name) for name in ("mjolnir", "non_causal", "fallback", "missed")}
    return {**counts, "reasons": dict(STEPS.reasons)}


def facts(llm: Any) -> dict[str, Any]:
    """What results depend on."""
    import torch
    import vllm

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    config = llm.llm_engine.vllm_config
    return {
        "device": device,
        "torch": torch.__version__,
        "vllm": vllm.__version__,
        "cudagraph_mode": config.compilation_config.cudagraph_mode.name,
        "block_size": config.cache_config.block_size,
        "v2_runner": bool(getattr(config, "use_v2_model_runner", False)),
        "backends": sorted({layer.attn_backend.get_name() for layer in attention_layers(llm)}),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
