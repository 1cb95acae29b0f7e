"""What a step that runs on Mjolnir hands to its layers, and its plan, which the first of them makes.

The plan is a kernel on the step's lengths, so that it can be made wherever these are on the device. It is launched by
the step's first layer and not when the step is built: a CUDA graph that was captured from the layers holds it then, and
finds the plan for its own lengths on every replay, while the host launches nothing but the graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mjolnir.backend import resolve

if TYPE_CHECKING:
    from torch import Tensor

    from mjolnir.backend.launcher import Launcher


@dataclass(eq=False)
class DecodeMetadata:
    """One step of one KV group. It takes the place of the fallback's metadata, whose usual members it has, since vLLM
    looks at some of them; vLLM subclasses it and sets members of its own, so it is an open dataclass.

    Attributes:
        launcher: plans the step and runs a layer.
        batch, q_len: requests that the kernel is given, and query tokens of each.
        num_actual_tokens, max_query_len, max_seq_len: as vLLM counts them; the last may be a bound.
        query_start_loc: (requests + 1,) int32 on the device.
        seq_lens: (batch,) int32 on the device, before the plan may have more; may grow in place by the plan's margin.
        block_table: (batch, width) int32 on the device, likewise.
        slot_mapping: (tokens,) int64, where new tokens go in the cache.
        causal: as the step has it.
        margin: tokens by which lengths may grow after the plan.
        page_size: tokens of a page of the table.
        use_cascade: never.
        planned: None before the plan was made, then whether that was within a capture.
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
    margin: int
    page_size: int
    use_cascade: bool = False
    planned: bool | None = None

    def make_plan(self) -> None:
        """Plan the step for all layers, unless that is done: once, and once more in a capture, since what ran before it
        (vLLM may warm up with the same metadata) is not part of the graph.
        """
        capturing = resolve.is_capturing()
        if self.planned is not capturing:
            self.planned = capturing
            self.seq_lens, self.block_table = _cut(self.seq_lens, self.batch), _cut(self.block_table, self.batch)
            self.launcher.plan(self.seq_lens, self.margin, capacity=self.block_table.shape[1] * self.page_size)


def _cut(tensor: Tensor, batch: int) -> Tensor:
    return tensor if tensor.shape[0] == batch else tensor[:batch]
