"""What a step that runs on Mjolnir hands to its layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from mjolnir.backend.launcher import Launcher


@dataclass(eq=False)
class DecodeMetadata:
    """One step of one KV group. It takes the place of the fallback's metadata, whose usual members it has, since vLLM
    looks at some of them; vLLM subclasses it and sets members of its own, so it is an open dataclass.

    Attributes:
        launcher: runs a layer; its plan for this step is made.
        batch, q_len: requests that the kernel is given, and query tokens of each.
        num_actual_tokens, max_query_len, max_seq_len: as vLLM counts them; the last may be a bound.
        query_start_loc: (requests + 1,) int32 on the device.
        seq_lens: (batch,) int32 on the device; may grow in place by the plan's margin.
        block_table: (batch, width) int32 on the device.
        slot_mapping: (tokens,) int64, where new tokens go in the cache.
        causal: as the step has it.
        use_cascade: never.
    """

    launcher: Launcher
    batch: int
    q_len: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    query_start_loc: Tensor
    seq_lens: Tensor
    block_table: Tensor
    slot_mapping: Tensor
    causal: bool
    use_cascade: bool = False
