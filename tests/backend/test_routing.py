"""Routing: steps that only decode run on Mjolnir, whatever they were padded to; all else goes to the fallback."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mjolnir.backend import routing
from mjolnir.backend.routing import Decode, Limits, decodes, route
from tests.fakes.serving import step

LIMITS = Limits(q_len=4, requests=8)

TAKEN: dict[str, tuple[dict[str, Any], Decode]] = {
    "one token each": ({"q_lens": [1, 1, 1]}, Decode(3, 1, True)),
    "verification": ({"q_lens": [4, 4]}, Decode(2, 4, True)),
    "fewer drafts than allowed": ({"q_lens": [2, 2], "max_query_len": 4}, Decode(2, 2, True)),
    "a non-causal block": ({"q_lens": [4, 4], "causal": False}, Decode(2, 4, False)),
    "padding requests of a graph": ({"q_lens": [1, 1, 0, 0], "tokens": 4}, Decode(4, 1, True)),
    "the same of verification": ({"q_lens": [4, 4, 0], "tokens": 12}, Decode(3, 4, True)),
    "padding requests without rows": ({"q_lens": [1, 1, 0, 0]}, Decode(2, 1, True)),
    "more rows than tokens": ({"q_lens": [1, 1], "tokens": 8}, Decode(2, 1, True)),
    "one-token prompts": ({"q_lens": [1, 1], "is_prefilling": torch.tensor([True, True])}, Decode(2, 1, True)),
}

LEFT: dict[str, tuple[dict[str, Any], int, routing.Refused]] = {
    "a prompt": ({"q_lens": [17]}, 0, routing.LONG),
    "decoding beside a prompt": ({"q_lens": [1, 1, 17]}, 0, routing.RAGGED),
    "a prompt before decoding": ({"q_lens": [17, 1, 1]}, 0, routing.RAGGED),
    "ragged verification": ({"q_lens": [4, 2, 4]}, 0, routing.RAGGED),
    "ragged, with the sum of a uniform one": ({"q_lens": [2, 1, 3]}, 0, routing.RAGGED),
    "five tokens": ({"q_lens": [5, 5]}, 0, routing.LONG),
    "padding in between": ({"q_lens": [1, 0, 1]}, 0, routing.SCATTERED),
    "padding in between of verification": ({"q_lens": [2, 0, 2, 0]}, 0, routing.SCATTERED),
    "padding first": ({"q_lens": [0, 1, 1]}, 0, routing.SCATTERED),
    "nothing": ({"q_lens": [0, 0], "max_query_len": 1}, 0, routing.EMPTY),
    "too many": ({"q_lens": [1] * 9}, 0, routing.MANY),
    "ragged verification with padding rows": ({"q_lens": [4, 2, 4], "tokens": 12}, 0, routing.RAGGED),
    "too many with padding": ({"q_lens": [1] * 8 + [0], "tokens": 9}, 0, routing.MANY),
    "a cascade": ({"q_lens": [1, 1]}, 64, routing.CASCADE),
    "causality by request": ({"q_lens": [4, 4], "causal": torch.tensor([True, False])}, 0, routing.PER_REQUEST),
}


@pytest.mark.parametrize("case", TAKEN)
def test_steps_that_decode_run_on_mjolnir(case: str) -> None:
    facts, decode = TAKEN[case]
    assert route(step(**facts), 0, LIMITS) == decode


@pytest.mark.parametrize("case", LEFT)
def test_other_steps_are_left_with_a_reason(case: str) -> None:
    facts, prefix, refused = LEFT[case]
    assert route(step(**facts), prefix, LIMITS) == refused


def test_non_causal_blocks_can_be_switched_off() -> None:
    block = step([4, 4], causal=False)
    assert route(block, 0, Limits(4, 8, non_causal=False)) == routing.NON_CAUSAL
    assert route(step([4, 4]), 0, Limits(4, 8, non_causal=False)) == Decode(2, 4, True)


def test_starts_beyond_the_requests_are_not_looked_at() -> None:
    starts = torch.tensor([0, 1, 2, 99, 99], dtype=torch.int32)
    assert route(step([1, 1], query_start_loc_cpu=starts), 0, LIMITS) == Decode(2, 1, True)


def test_a_step_without_prompts_could_have_been_decoded() -> None:
    assert decodes(step([4, 2]), 4)
    assert not decodes(step([5, 5]), 4)
    assert not decodes(step([1, 2], is_prefilling=torch.tensor([False, True])), 4)
    assert decodes(step([1, 2], is_prefilling=torch.tensor([False, False])), 4)
