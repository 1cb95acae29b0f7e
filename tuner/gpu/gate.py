"""The correctness gate: nothing is timed before its output was right.

Each binary runs the emulator's small cases. Each setting and point then has the output of the very graph that is
timed compared with an f32 reference on the device. Every output is filled with NaN first, so that what is not written
is seen. All that is to be compared is enqueued before any of it is waited for: at each wait the device runs dry. So a
kernel that is wrong runs on to the end of the list, and counts as crashed if it takes the device down there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.gpu.card import Card, Decoder, Graph
from mjolnir.tuner.gpu.chain import blaming_kernel
from mjolnir.tuner.gpu.comparison import Check, Comparison, compared, finished
from mjolnir.tuner.gpu.expected import KeptCase, load_inputs
from mjolnir.tuner.gpu.inputs import READ_ONLY, PointInputs

if TYPE_CHECKING:
    from mjolnir.kernel.cases import Case, Inputs


READERS = 4
"""Files that are read at once; most of that time is their digests'."""


@dataclass(frozen=True, slots=True)
class CaseOnCard:
    """A small case with its inputs, the lengths that its plan is made for, the emulator's output and how far one may be
    from it, on the device."""

    case: Case
    inputs: Inputs
    planned: Tensor
    out: Tensor
    allowed: Tensor


def place_cases(card: Card, cases: Sequence[KeptCase], placed: dict[Path, Inputs]) -> list[CaseOnCard]:
    """Put cases and their expected outputs on the device; they serve every binary of a grid.

    Args:
        card: the device.
        cases: from disk.
        placed: inputs that lie on the device, by their file; those that are lacking are added.
    """
    device, new = card.torch_device, {kept.inputs: kept.case for kept in cases if kept.inputs not in placed}
    with ThreadPoolExecutor(READERS) as readers:
        for path, inputs in zip(new, readers.map(load_inputs, new.values(), new), strict=True):
            placed[path] = inputs.to(device)
    return [
        CaseOnCard(
            kept.case,
            placed[kept.inputs],
            torch.tensor(kept.case.planned, dtype=torch.int32, device=device),
            kept.out.to(device),
            kept.allowed.to(device),
        )
        for kept in cases
    ]


def check_cases(card: Card, setting: Setting, cases: Sequence[CaseOnCard], fault: str) -> list[Check]:
    """Run a binary on the small cases, and wait for all of them at once; checks up to and with the first that fails.

    Raises:
        LaunchError: the kernel could not be launched, or the device failed.
    """
    launched = [_launch_case(card, setting, placed, fault) for placed in cases]  # buffers stay until they were used
    return finished(card, [comparison for comparison, _ in launched])


def _launch_case(card: Card, setting: Setting, placed: CaseOnCard, fault: str) -> tuple[Comparison, Decoder]:
    case, inputs = placed.case, placed.inputs
    batch, tokens = len(case.lengths), len(inputs.q)
    rows = inputs.q.new_full((tokens + 1, *inputs.q.shape[1:]), torch.nan)
    with blaming_kernel():
        same_binary = replace(setting, max_splits=case.max_splits)
        decoder = card.decoder(same_binary, max_batch=batch, capacity=case.capacity, fault=fault)
        decoder.plan(placed.planned, case.margin)
        decoder.run(
            inputs.q,
            inputs.k,
            inputs.v,
            inputs.block_table,
            inputs.seq_lens,
            rows[:tokens],
            inputs.k_scale,
            inputs.v_scale,
            inputs.scale,
        )
    beyond = rows[tokens].isnan().all().logical_not().reshape(1)
    numbers = compared(rows[:tokens], placed.out, placed.allowed, beyond)
    return Comparison(f"case {case.name}", case.seed, numbers, _beyond), decoder


def _beyond(flags: Sequence[float]) -> str:
    return "rows beyond the batch were written" if any(flags) else ""


@dataclass(frozen=True, slots=True)
class PointOnCard:
    """A point that is gated.

    Attributes:
        name: of the point.
        inputs: what lies on the device for it.
        ready: makes the point's plan and returns the graph that is timed; called right before a replay, as a plan lies
            in a buffer that all points of a setting share.
    """

    name: str
    inputs: PointInputs
    ready: Callable[[], Graph]


def check_points(card: Card, points: Sequence[PointOnCard]) -> list[Check]:
    """Replay each timed graph once, compare what it left in every set's output with the reference, and see whether it
    wrote elsewhere; one wait for all. Checks up to and with the first that is wrong.

    Raises:
        LaunchError: a graph could not be made, or the device failed.
    """
    for point in points:  # before anything runs that may write where it should not
        point.inputs.reference()
    return finished(card, [_replay_point(point) for point in points])


def _replay_point(point: PointOnCard) -> Comparison:
    inputs = point.inputs
    _replay(inputs, point.ready())
    numbers = compared(inputs.out, *inputs.reference(), inputs.written())
    return Comparison(f"point {point.name}", inputs.seed, numbers, _written)


def _replay(inputs: PointInputs, graph: Graph) -> None:
    """Enqueue one replay; what it does not write stays NaN."""
    inputs.out.fill_(torch.nan)
    with blaming_kernel():
        graph.replay()


def _written(flags: Sequence[float]) -> str:
    return f"inputs were written to: {', '.join(compress(READ_ONLY, flags))}" if any(flags) else ""


def check_fresh(card: Card, point: PointOnCard) -> Check:
    """Replay the graph on other queries than it has seen so far: an output kept from an earlier launch is now wrong.

    Raises:
        LaunchError: the device failed.
    """
    inputs, graph = point.inputs, point.ready()
    seed = inputs.seed + 1
    with inputs.other_queries(seed) as (reference, allowed):
        _replay(inputs, graph)
        numbers = compared(inputs.out[-1], reference, allowed)
    return finished(card, [Comparison(f"other queries at {point.name}", seed, numbers)])[0]


def repeats(card: Card, points: Sequence[PointOnCard]) -> list[bool]:
    """Whether two launches on equal inputs leave the same bits, at each of one or more points; waits once.

    Raises:
        LaunchError: the device failed.
    """
    same = [_same_bits(point) for point in points]
    with blaming_kernel():
        told = torch.stack(same)
        card.synchronize()
    return [bool(equal) for equal in told.tolist()]


def _same_bits(point: PointOnCard) -> Tensor:
    graph, left = point.ready(), []
    for _ in range(2):
        _replay(point.inputs, graph)
        left.append(point.inputs.out.view(torch.int16).clone())
    return (left[0] == left[1]).all()
