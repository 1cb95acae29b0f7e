"""CUDA-graph promises: as much as Mjolnir can keep, never ALWAYS, and the fallback's own where it would run."""

from __future__ import annotations

import pytest

from mjolnir.backend.promises import LEVELS, graph_support
from mjolnir.backend.routing import Limits

ONE, BATCH = LEVELS[1], LEVELS[2]


@pytest.mark.parametrize("fallback", LEVELS)
def test_a_served_group_promises_what_mjolnir_runs(fallback: str) -> None:
    def promised(q_len: int, drafts: int) -> str:
        return graph_support(
            fallback, Limits(q_len, 8), eligible=True, speculative_tokens=drafts, parallel_drafter=False
        )

    assert promised(1, 0) == ONE
    assert promised(4, 3) == BATCH


@pytest.mark.parametrize(("fallback", "promised"), [("NEVER", "NEVER"), (ONE, ONE), (BATCH, BATCH), ("ALWAYS", BATCH)])
def test_a_group_on_the_fallback_has_the_fallbacks_promise_at_most(fallback: str, promised: str) -> None:
    found = graph_support(fallback, Limits(4, 8), eligible=False, speculative_tokens=3, parallel_drafter=False)
    assert found == promised


@pytest.mark.parametrize(
    ("fallback", "q_len", "promised"),
    [("ALWAYS", 2, BATCH), (ONE, 2, ONE), ("NEVER", 2, "NEVER"), ("ALWAYS", 1, ONE), ("NEVER", 1, "NEVER")],
)
def test_with_a_lowered_length_verification_is_the_fallbacks_to_promise(
    fallback: str, q_len: int, promised: str
) -> None:
    found = graph_support(fallback, Limits(q_len, 8), eligible=True, speculative_tokens=3, parallel_drafter=False)
    assert found == promised


def test_non_causal_blocks_that_are_switched_off_are_the_fallbacks_to_promise() -> None:
    def promised(*, non_causal: bool, parallel: bool) -> str:
        limits = Limits(4, 8, non_causal)
        return graph_support(ONE, limits, eligible=True, speculative_tokens=3, parallel_drafter=parallel)

    assert promised(non_causal=False, parallel=True) == ONE
    assert promised(non_causal=True, parallel=True) == BATCH
    assert promised(non_causal=False, parallel=False) == BATCH
