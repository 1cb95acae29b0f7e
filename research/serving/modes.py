"""Ways to run an engine, by name: eager or with CUDA graphs, and what makes its steps differ from plain decoding.

A mode is one of `GRAPHS`, or none of them for an eager engine, with any of `PARTS`, joined by `+`: `eager`,
`chunked+ngram`, `FULL_DECODE_ONLY+ngram`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

EAGER = "eager"
COMPILED = 3
"""vLLM's mode of compilation in which it cuts the model at its attention layers, which piecewise graphs need."""

GRAPHS: Mapping[str, int] = {"FULL_DECODE_ONLY": 0, "FULL": 0, "FULL_AND_PIECEWISE": COMPILED, "PIECEWISE": COMPILED}
"""CUDA-graph modes as vLLM names them, each with its mode of compilation."""

SPECULATED = 3
"""Tokens that n-gram speculation proposes."""

BUDGET = 128
"""Tokens of a step where prompts are cut into chunks."""

PARTS: Mapping[str, tuple[str, str]] = {
    "chunked": ("mixed", "no step mixed prompts with decoding"),
    "ngram": ("speculative", "no decode step verified speculated tokens"),
    "prefix": ("cached", "no prompt token came from the prefix cache"),
    "tight": ("preempted", "no request was preempted"),
}
"""What a mode may have besides: the count that shows that it was met, and what is said where that is zero."""


@dataclass(frozen=True, slots=True)
class Mode:
    """One way.

    Attributes:
        name: as it was given.
        graph: a key of `GRAPHS`, or `EAGER`.
        parts: keys of `PARTS`.
    """

    name: str
    graph: str
    parts: tuple[str, ...]

    @classmethod
    def parse(cls, name: str) -> Mode:
        """The mode of this name.

        Raises:
            ValueError: a part is unknown, or there are two graph modes; the message lists what there is.
        """
        words = name.split("+")
        graphs = [word for word in words if word in GRAPHS or word == EAGER]
        parts = tuple(word for word in words if word in PARTS)
        if len(graphs) > 1 or len(graphs) + len(parts) < len(words):
            listed = ", ".join((EAGER, *GRAPHS))
            raise ValueError(f"mode {name!r}: one of {listed}, and any of {', '.join(PARTS)}, joined by +")
        return cls(name, graphs[0] if graphs else EAGER, parts)

    def arguments(self, batch: int, blocks: int) -> dict[str, Any]:
        """Arguments of `vllm.LLM` for batches of up to `batch`; `blocks` of the cache are few, where that is asked."""
        found: dict[str, Any] = {"enable_prefix_caching": "prefix" in self.parts}
        if self.graph == EAGER:
            found["enforce_eager"] = True
        else:
            found["compilation_config"] = {
                "mode": self.compilation,
                "cudagraph_mode": self.graph,
                "cudagraph_capture_sizes": capture_sizes(batch * self.most_query_tokens),
            }
        if "chunked" in self.parts:
            found |= {"enable_chunked_prefill": True, "max_num_batched_tokens": max(BUDGET, 2 * batch)}
        if "ngram" in self.parts:
            found["speculative_config"] = {
                "method": "ngram", "num_speculative_tokens": SPECULATED, "prompt_lookup_max": 2, "prompt_lookup_min": 1,
            }  # fmt: skip
        if "tight" in self.parts:
            found["num_gpu_blocks_override"] = blocks
        return found

    @property
    def compilation(self) -> int:
        """vLLM's mode of compilation; 0 where nothing is compiled."""
        return GRAPHS.get(self.graph, 0)

    @property
    def most_query_tokens(self) -> int:
        """Query tokens of one request in a decode step, at most."""
        return 1 + SPECULATED if "ngram" in self.parts else 1

    def unmet(self, scheduled: Mapping[str, int]) -> list[str]:
        """Which parts of the mode never happened, in words; `scheduled` are the counts of `steps.Steps`."""
        return [words for count, words in (PARTS[part] for part in self.parts) if not scheduled[count]]


def capture_sizes(most: int) -> list[int]:
    """Powers of two up to the first that holds `most` tokens."""
    return [1 << exponent for exponent in range((most - 1).bit_length() + 1)]
