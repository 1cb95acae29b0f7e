"""Answers of engines, made up."""

from __future__ import annotations

from collections.abc import Sequence

from mjolnir.research.serving.job import Completion, Run

FACTS = {"device": "cpu", "torch": "2", "vllm": "0", "seconds": {"start": 1.0, "generate": 2.0}}


def completion(tokens: Sequence[int], logprobs: Sequence[float], prompt: int = 9) -> Completion:
    """Every step's chosen token, and four others far below it."""
    tops = [{token: value, **{900 + i: -9.0 for i in range(4)}} for token, value in zip(tokens, logprobs, strict=True)]
    return Completion(prompt, tuple(tokens), tuple(tops))


def run(completions: Sequence[Completion], *, mjolnir: int = 0, decode: int = 10, **scheduled: int) -> Run:
    """An engine's answer; one of Mjolnir's where steps ran there."""
    counts = {"decode": decode, "speculative": 0, "mixed": 0, "prefill": 1, "preempted": 0, "cached": 0, **scheduled}
    counted = {"mjolnir": mjolnir, "non_causal": 0, "fallback": 1, "missed": 0, "reasons": {"prefill": 1}}
    return Run(tuple(completions), counts, counted if mjolnir else {}, FACTS)
