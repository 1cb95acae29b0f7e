"""vLLM's real engine on the CPU, one after another in this process, which saves all but the first its imports."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip
VOCABULARY = 2048


@dataclass(frozen=True, slots=True)
class Answer:
    """What was generated for a prompt.

    Attributes:
        tokens: the tokens.
        tops: log-probability by token, of the five likeliest of each step.
    """

    tokens: tuple[int, ...]
    tops: tuple[dict[int, float], ...]


@contextmanager
def engine(model: Path, **options: Any) -> Iterator[Any]:
    """A running engine; `options` as `vllm.LLM` has them."""
    os.environ.update(ENVIRONMENT)
    from vllm import LLM

    given = {
        "skip_tokenizer_init": True, "enforce_eager": True, "max_model_len": 512, "max_num_seqs": 8, "seed": 0,
        "dtype": "bfloat16", "kv_cache_dtype": "fp8", "attention_backend": "CUSTOM", "disable_log_stats": True,
    }  # fmt: skip
    llm = LLM(model=str(model), **{**given, **options})
    _once_only()
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def _once_only() -> None:
    """vLLM puts stand-ins for Triton's kernels in all modules at each start, and stumbles over some of them."""
    from vllm.platforms.cpu import CpuPlatform

    CpuPlatform.register_triton_kernel_overrides = classmethod(lambda cls: None)


def prompt(length: int, kind: int = 1) -> list[int]:
    """A prompt of a length; those of one kind begin alike."""
    return [(31 * place * kind + 7 * place * place) % (VOCABULARY - 5) + 5 for place in range(1, length + 1)]


def sampling(tokens: int) -> Any:
    """Greedy, without an end."""
    from vllm import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False, logprobs=5)


def generate(llm: Any, prompts: Sequence[list[int]], tokens: int) -> list[Answer]:
    """All answers."""
    from vllm.inputs import TokensPrompt

    asked = [TokensPrompt(prompt_token_ids=item) for item in prompts]
    return [answer(found) for found in llm.generate(asked, sampling(tokens), use_tqdm=False)]


def answer(found: Any) -> Answer:
    """An answer of vLLM's."""
    output = found.outputs[0]
    tops = tuple({token: item.logprob for token, item in step.items()} for step in output.logprobs)
    return Answer(tuple(output.token_ids), tops)


def gaps(found: Sequence[Answer], expected: Sequence[Answer]) -> tuple[float, list[str]]:
    """The largest difference of a chosen token's log-probability while the answers agree, and what is no near tie."""
    most, problems = 0.0, []
    for number, (mine, other) in enumerate(zip(found, expected, strict=True)):
        for step, (one, two) in enumerate(zip(mine.tokens, other.tokens, strict=True)):
            if one != two:
                near = [top[own] - top[foreign] for top, own, foreign in (
                    (mine.tops[step], one, two), (other.tops[step], two, one),
                ) if foreign in top]  # fmt: skip
                if not near or min(near) > 1.0:
                    problems.append(f"prompt {number}, step {step}: {one} and {two} are no near tie")
                break
            most = max(most, abs(mine.tops[step][one] - other.tops[step][one]))
    return most, problems
