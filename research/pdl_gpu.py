"""The chain of the PDL stress test: graphs in which the kernel is served, with PDL on and off, over changing inputs.

One replay is one step of a model of some layers:

1. Lengths grow by one in place; every `PLAN_EVERY` replays they are drawn anew, and planned.
2. A KV row of each sequence is written in every layer, and Q, by kernels that let the next one start before they write.
3. The layers follow one another with PDL on, without anything between them: the query of a layer is the output of the
   one before, so the output is both written by a kernel and read by the next, as are partials and counters.
4. A reader copies the outputs. The same layers and reader run with PDL off, and the bits are compared on the device.

Everything changes from replay to replay, by a counter on the device, so that what is read too early is old and wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mjolnir.kernel.device import Device
from mjolnir.kernel.formats import DTYPES, FORMATS
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.reference import attention_f32
from mjolnir.kernel.runner import Runner
from mjolnir.kernel.timing import capture, random_inputs
from mjolnir.kernel.tolerance import excess

WHERE = "cuda"
LAYERS = 3
PLAN_EVERY = 8
"""Replays of one plan, whose margin they use up."""

TINY_EVERY, TINY = 7, 3
"""One of so many drawn lengths is below that many tokens: zero, too."""

SPARE_WORDS = 4093
STRIDE_OF_LENGTHS, STRIDE_OF_SEQUENCES, STRIDE_OF_WORDS = 7919, 104_729, 6007
"""Primes: by how much what is drawn moves from replay to replay, and from sequence to sequence."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What is served.

    Attributes:
        name: in words.
        geometry, batch: the problem.
        context: most tokens of a sequence.
        setting: the knobs; PDL is switched by the test.
    """

    name: str
    geometry: Geometry
    batch: int
    context: int
    setting: Setting = Setting()  # noqa: RUF009 (frozen)


SHAPES = (
    Shape("one sequence in many chunks", Geometry(32, 8), 1, 16384),
    Shape("eight sequences", Geometry(32, 8), 8, 2048),
    Shape("never split", Geometry(32, 8), 64, 512, Setting(max_splits=1)),
    Shape("wgmma, q_len 8", Geometry(32, 8, q_len=8), 8, 1024),
    Shape("eight computing warps", Geometry(32, 8), 8, 2048, Setting(ctas_per_sm=1, consumer_warps=8)),
)


class Step:
    """One shape with its inputs, which `advance` changes, and outputs of both chains.

    Args:
        shape: what is served.
        device: the GPU.
        write: writes words to places of a target.
        seed: of all numbers.

    Attributes:
        mismatches, changes: replays in which the chains differ, and in which the output is not that of the one before.
        first: the number of the first replay that differs, counted from 1; 0 = none.
    """

    def __init__(self, shape: Shape, device: Device, write: Callable[..., None], seed: int) -> None:
        self.shape, self._write = shape, write
        geometry, batch = shape.geometry, shape.batch
        inputs = [random_inputs(geometry, batch, shape.context, "BHN2D", seed + n, device=WHERE) for n in range(LAYERS)]
        # V's scale makes outputs as large as queries, so that a layer's scores depend on the one before
        v_scale = torch.tensor((shape.context / 4) ** 0.5, device=WHERE)
        table, lengths = inputs[0].block_table, inputs[0].seq_lens
        self.layers = [replace(item, block_table=table, seq_lens=lengths, v_scale=v_scale) for item in inputs]
        self.query, self.table, self.lengths = inputs[0].q, table, lengths
        self.runners = {pdl: self._runner(device, pdl) for pdl in (1, 0)}
        shape_of_outputs = (LAYERS, *self.query.shape)
        empty = torch.zeros(shape_of_outputs, dtype=self.query.dtype, device=WHERE)
        self.outputs, self._seen = ({pdl: empty.clone() for pdl in (1, 0)} for _ in range(2))
        self._before = empty.clone()
        self.counter, self.mismatches, self.changes, self.first = (
            torch.zeros((), dtype=torch.int64, device=WHERE) for _ in range(4)
        )
        self._stage(seed)

    def _runner(self, device: Device, pdl: int) -> Runner:
        shape = self.shape
        setting = replace(shape.setting, pdl=pdl)
        capacity = self.table.shape[1] * shape.geometry.page_size
        return Runner(setting, shape.geometry, device, max_batch=shape.batch, capacity=capacity)

    def _stage(self, seed: int) -> None:
        """What is written in the next replay, and where: words of Q, of a KV row in each layer, and lengths."""
        geometry, batch = self.shape.geometry, self.shape.batch
        draw = torch.Generator(device=WHERE).manual_seed(seed + LAYERS)
        self._row_words = geometry.head_dim // 2
        rows, words = batch * geometry.heads_kv * self._row_words, self.query.view(torch.int32).numel()

        def normal(count: int) -> Tensor:
            return torch.randn(count, device=WHERE, generator=draw)

        self._query_bank = normal(2 * (words + SPARE_WORDS)).to(DTYPES[geometry.dtype]).view(torch.int32)
        self._row_bank = FORMATS["fp8"].quantise(normal(4 * (LAYERS * rows + SPARE_WORDS))).view(torch.int32)
        self._next_query = torch.zeros(words, dtype=torch.int32, device=WHERE)
        self._next_rows = torch.zeros(LAYERS, rows, dtype=torch.int32, device=WHERE)
        self._next_lengths = torch.zeros(batch, dtype=torch.int32, device=WHERE)
        self._query_places = torch.arange(words, dtype=torch.int32, device=WHERE)
        self._length_places = torch.arange(batch, dtype=torch.int32, device=WHERE)
        self._row_places = torch.zeros(rows, dtype=torch.int32, device=WHERE)

    def advance(self, planned: bool) -> None:
        """One replay; `planned` draws lengths anew and plans with them, else they grow by one."""
        self._prepare(planned)
        self._write(self._next_lengths, self._length_places, self.lengths)
        if planned:
            for runner in self.runners.values():
                runner.plan(self.lengths, PLAN_EVERY)
        for words, item in zip(self._next_rows, self.layers, strict=True):
            self._write(words, self._row_places, item.cache.view(torch.int32).view(-1))
        self._write(self._next_query, self._query_places, self.query.view(torch.int32).view(-1))
        for pdl in (1, 0):
            self._attend(pdl)
        self._compare()

    def _prepare(self, planned: bool) -> None:
        """Stage the next inputs, of which nothing that is served sees anything yet."""
        self.counter.add_(1)
        for bank, target in ((self._query_bank, self._next_query), (self._row_bank, self._next_rows)):
            place = torch.arange(target.numel(), device=WHERE) + self.counter * STRIDE_OF_WORDS
            torch.index_select(bank, 0, place % len(bank), out=target.view(-1))
        self._next_lengths.copy_(self._drawn() if planned else self.lengths + 1)
        self._row_places.copy_(self._places(self._next_lengths))

    def _drawn(self) -> Tensor:
        """Lengths of this replay, from the longest that can still grow down to half of it, and some tiny ones."""
        batch, context = self.shape.batch, self.shape.context
        number = self.counter * STRIDE_OF_LENGTHS + torch.arange(batch, device=WHERE) * STRIDE_OF_SEQUENCES
        number = number % (context // 2 - PLAN_EVERY)
        return torch.where(number % TINY_EVERY == 0, number % TINY, context // 2 + number)

    def _places(self, lengths: Tensor) -> Tensor:
        """The words of each sequence's last row, K and V of all heads, in a cache (pages, heads, page_size, 2D)."""
        geometry = self.shape.geometry
        token = (lengths.long() - 1).clamp(min=0)
        page = self.table.long().gather(1, (token // geometry.page_size)[:, None])
        row = page * geometry.heads_kv + torch.arange(geometry.heads_kv, device=WHERE)
        row = row * geometry.page_size + (token % geometry.page_size)[:, None]
        return (row[..., None] * self._row_words + torch.arange(self._row_words, device=WHERE)).flatten()

    def _attend(self, pdl: int) -> None:
        """All layers, each with the output of the one before as its query, and the reader of their outputs."""
        query = self.query
        for item, out in zip(self.layers, self.outputs[pdl].unbind(), strict=True):
            self.runners[pdl].run(
                query, item.k, item.v, self.table, self.lengths, out, item.k_scale, item.v_scale, item.scale
            )
            query = out
        # a kernel: a copy would be captured as a memcpy node
        torch.mul(self.outputs[pdl], 1, out=self._seen[pdl])

    def _compare(self) -> None:
        """Count this replay's differences by their bits."""
        seen, off, before = (x.view(torch.int32) for x in (self._seen[1], self._seen[0], self._before))
        wrong = (seen != off).any()
        self.mismatches.add_(wrong)
        self.changes.add_((seen != before).any())
        self.first.copy_(torch.where(wrong & (self.first == 0), self.counter, self.first))
        self._before.copy_(self._seen[1])

    def error(self) -> float:
        """The last layer's largest error over its bound, against an f32 reference with the query that it had."""
        last = replace(self.layers[-1], q=self._seen[1][-2])
        wanted, _ = attention_f32(**last.arguments())
        return excess(self._seen[1][-1], wanted, self.shape.geometry)

    def reset(self) -> None:
        """Count from zero."""
        for value in (self.counter, self.mismatches, self.changes, self.first):
            value.zero_()


def stress(shape: Shape, replays: int, device: Device, write: Callable[..., None], seed: int) -> dict[str, Any]:
    """Replay the chains of a shape.

    Returns:
        replays, mismatches, changes, the first mismatch (0 = none), and the error of the last output over its bound.
    """
    step = Step(shape, device, write, seed)
    graphs = {planned: capture(lambda _, now=planned: step.advance(now), 1) for planned in (True, False)}  # type: ignore[misc]
    step.reset()
    for number in range(replays):
        graphs[number % PLAN_EVERY == 0].replay()
    return {
        "replays": int(step.counter),
        "mismatches": int(step.mismatches),
        "changes": int(step.changes),
        "first_mismatch": int(step.first),
        "excess": step.error(),
    }
