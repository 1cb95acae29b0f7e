"""Which steps run on Mjolnir: rules on one step's facts that the host knows, without waiting for the device.

A step runs on Mjolnir when it decodes only: every request has the same few query tokens. Everything else is built and
run by the fallback, unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol


class Step(Protocol):
    """What is read of vLLM's `CommonAttentionMetadata`; counts may be those that a CUDA graph was padded to.

    Attributes:
        num_reqs: requests.
        num_actual_tokens: query tokens.
        max_query_len: no request has more.
        query_start_loc_cpu: (num_reqs + 1,) int32 on the host, where each request's tokens begin.
        causal: True, False, or a tensor that says it for each request.
    """

    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    query_start_loc_cpu: Any
    causal: Any


class Decode(NamedTuple):
    """A step that runs on Mjolnir.

    Attributes:
        batch: requests that the kernel is given: all, or those with tokens where there are too few rows for all.
        q_len: query tokens of each.
        causal: whether each query token sees only the keys up to its own.
    """

    batch: int
    q_len: int
    causal: bool


class Refused(NamedTuple):
    """A step that runs on the fallback, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Limits:
    """What a group can run.

    Attributes:
        q_len: most query tokens of a request, min(1 + num_speculative_tokens, MJOLNIR_ATTN_MAX_QLEN).
        requests: most requests.
        non_causal: whether blocks that are not causal may run.
    """

    q_len: int
    requests: int
    non_causal: bool = True


CASCADE = Refused("a cascade over a common prefix")
PER_REQUEST = Refused("causality that differs by request")
NON_CAUSAL = Refused("a non-causal block, and MJOLNIR_ATTN_NONCAUSAL is off")
LONG = Refused("requests with more query tokens than decoding has")
RAGGED = Refused("requests that differ in query tokens")
EMPTY = Refused("no query tokens")
SCATTERED = Refused("requests without tokens before others")
MANY = Refused("more requests than planned for")


def route(step: Step, common_prefix_len: int, limits: Limits) -> Decode | Refused:
    """Where a step runs."""
    if common_prefix_len > 0:
        return CASCADE
    causal = step.causal
    if causal is not True:
        if causal is not False:
            return PER_REQUEST
        if not limits.non_causal:
            return NON_CAUSAL
    shape = uniform(step)
    if isinstance(shape, Refused):
        return shape
    requests, q_len = shape
    if q_len > limits.q_len:
        return LONG
    batch = step.num_reqs if step.num_actual_tokens >= step.num_reqs * q_len else requests
    return MANY if batch > limits.requests else Decode(batch, q_len, causal)


def uniform(step: Step) -> tuple[int, int] | Refused:
    """Requests that have tokens, and how many each has; padding requests without any may only follow them.

    Where no request has more than one token and there are rows for all, that is known without a look at the tensor,
    which would cost more than all the rest: vLLM schedules no request without tokens, and its padding comes last.
    """
    if step.max_query_len == 1 and step.num_actual_tokens >= step.num_reqs:
        return step.num_reqs, 1
    starts: list[int] = step.query_start_loc_cpu.tolist()
    tokens, q_len = starts[step.num_reqs], starts[1]
    if tokens == 0:
        return EMPTY
    if q_len == 0:
        return SCATTERED
    requests, rest = divmod(tokens, q_len)
    if rest or requests > step.num_reqs:
        return RAGGED
    lengths = {end - start for start, end in pairwise(starts[: requests + 1])}
    if lengths == {q_len}:
        return requests, q_len
    return SCATTERED if 0 in lengths else RAGGED


def decodes(step: Step, q_len: int) -> bool:
    """Whether a step that Mjolnir does not run has no prompt in it, so that it might have."""
    prefilling = getattr(step, "is_prefilling", None)
    return step.max_query_len <= q_len and not (prefilling is not None and bool(prefilling.any()))
