"""What Mjolnir promises vLLM about CUDA graphs. A promise too much is wrong tokens, one too little is speed.

With ALWAYS vLLM captures steps that mix prompts and decoding, on whichever path the captured example took: it is never
promised, whatever the fallback says. UNIFORM_BATCH is steps in which every request has 1 + num_speculative_tokens query
tokens, UNIFORM_SINGLE_TOKEN_DECODE those with one. Both run on Mjolnir, unless a setting sends them to the fallback,
whose own promise counts then.
"""

from __future__ import annotations

from mjolnir.backend.routing import Limits

LEVELS = ("NEVER", "UNIFORM_SINGLE_TOKEN_DECODE", "UNIFORM_BATCH", "ALWAYS")
"""vLLM's names, each holding what the ones before it hold."""


def graph_support(
    fallback: str, limits: Limits, *, eligible: bool, speculative_tokens: int, parallel_drafter: bool
) -> str:
    """What to promise for a KV group.

    Args:
        fallback: what the fallback promises.
        limits: what the group can run.
        eligible: whether it runs on Mjolnir at all.
        speculative_tokens: of each request.
        parallel_drafter: whether there may be non-causal blocks.
    """
    if not eligible:
        return least(fallback, "UNIFORM_BATCH")
    ours = "UNIFORM_BATCH" if limits.q_len > 1 else "UNIFORM_SINGLE_TOKEN_DECODE"
    all_ours = limits.q_len > speculative_tokens and (limits.non_causal or not parallel_drafter)
    return ours if all_ours else least(fallback, ours)


def least(*levels: str) -> str:
    """The weakest promise."""
    return min(levels, key=LEVELS.index)
