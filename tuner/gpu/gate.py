"""The correctness gate: nothing is timed before its output was right.

Each binary runs the emulator's small cases. Each setting and point then has the output of the very graph that is
timed compared with an f32 reference on the device. Every output is filled with NaN first, so that what is not written
is seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.bench import Status
from mjolnir.tuner.gpu.card import Card, Graph
from mjolnir.tuner.gpu.chain import blaming_kernel
from mjolnir.tuner.gpu.expected import KeptCase, load_inputs
from mjolnir.tuner.gpu.inputs import PointInputs

if TYPE_CHECKING:
    from mjolnir.kernel.cases import Case, Inputs


READERS = 4
"""Files that are read at once; most of that time is their digests'."""


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison.

    Attributes:
        name: the case, or the point.
        status: measured when it passed, else nan or incorrect.
        excess: the largest error over its bound, right up to 1; None when it is not finite.
        error: the error of that element.
        bound: the bound of that element.
        seed: of the inputs.
        note: what else is wrong.
    """

    name: str
    status: Status
    excess: float | None
    error: float | None
    bound: float | None
    seed: int
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether the output was right."""
        return self.status is Status.MEASURED

    @property
    def reason(self) -> str:
        """One line that says what was wrong."""
        if self.note:
            return f"{self.name}: {self.note}"
        if self.status is Status.NAN:
            return f"{self.name}: the output holds NaN or infinity, or was not written"
        return f"{self.name}: an output is off by {self.error:.3g}, the bound is {self.bound:.3g}"

    def as_dict(self) -> dict[str, Any]:
        """JSON form, to six digits; a check that passed says no more than how close it was."""
        numbers = {"excess": self.excess, "error": self.error, "bound": self.bound}
        shown = {name: None if number is None else float(f"{number:.6g}") for name, number in numbers.items()}
        values: dict[str, Any] = {**shown, "seed": self.seed}
        return values if self.passed else {**values, "status": str(self.status), "reason": self.reason}


def judge(name: str, out: Tensor, reference: Tensor, allowed: Tensor, seed: int) -> Check:
    """Compare `out` with `reference`, element by element within `allowed`; all of one shape."""
    value, right = out.float(), reference.float()
    error = torch.where(value == right, 0.0, (value - right).abs())
    ratio = torch.where(error == 0, 0.0, error / allowed).nan_to_num(nan=torch.inf, posinf=torch.inf).flatten()
    worst = ratio.argmax()
    numbers = torch.stack([ratio[worst], error.flatten()[worst], allowed.flatten()[worst].float()])
    finite = torch.isfinite(value).all().float()
    excess, off, bound, all_finite = torch.cat([numbers, finite[None]]).tolist()
    status = Status.NAN if not all_finite else Status.MEASURED if excess <= 1 else Status.INCORRECT
    return Check(name, status, _finite(excess), _finite(off), _finite(bound), seed)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class CaseOnCard:
    """A small case with its inputs, the emulator's output and how far one may be from it, on the device."""

    case: Case
    inputs: Inputs
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
    return [CaseOnCard(kept.case, placed[kept.inputs], kept.out.to(device), kept.allowed.to(device)) for kept in cases]


def check_cases(card: Card, setting: Setting, cases: Sequence[CaseOnCard], fault: str) -> list[Check]:
    """Run a binary on the small cases; stops at the first that fails.

    Raises:
        LaunchError: the kernel could not be launched, or the device failed.
    """
    checks: list[Check] = []
    for placed in cases:
        checks.append(_check_case(card, setting, placed, fault))
        if not checks[-1].passed:
            break
    return checks


def _check_case(card: Card, setting: Setting, placed: CaseOnCard, fault: str) -> Check:
    case, inputs, device = placed.case, placed.inputs, card.torch_device
    batch, tokens = len(case.lengths), len(inputs.q)
    rows = torch.full((tokens + 1, *inputs.q.shape[1:]), torch.nan, dtype=inputs.q.dtype, device=device)
    planned = torch.tensor(case.planned, dtype=torch.int32, device=device)
    with blaming_kernel():
        same_binary = replace(setting, max_splits=case.max_splits)
        decoder = card.decoder(same_binary, max_batch=batch, capacity=case.capacity, fault=fault)
        decoder.plan(planned, case.margin)
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
        card.synchronize()
    check = judge(f"case {case.name}", rows[:tokens], placed.out, placed.allowed, case.seed)
    if check.passed and not rows[tokens].isnan().all():
        return replace(check, status=Status.INCORRECT, note="rows beyond the batch were written")
    return check


def check_point(card: Card, name: str, inputs: PointInputs, graph: Graph) -> Check:
    """Replay the timed graph once and compare what it left in every set's output with the reference.

    Raises:
        LaunchError: the device failed.
    """
    reference, allowed = inputs.reference()
    inputs.out.fill_(torch.nan)
    with blaming_kernel():
        graph.replay()
        card.synchronize()
    check = judge(f"point {name}", inputs.out, reference, allowed, inputs.seed)
    changed = inputs.changed() if check.passed else ""
    if changed:
        return replace(check, status=Status.INCORRECT, note=f"inputs were written to: {changed}")
    return check


def check_fresh(card: Card, name: str, inputs: PointInputs, graph: Graph) -> Check:
    """Replay the graph on other queries than it has seen so far: an output kept from an earlier launch is now wrong.

    Raises:
        LaunchError: the device failed.
    """
    seed = inputs.seed + 1
    inputs.out.fill_(torch.nan)
    with inputs.other_queries(seed) as (reference, allowed):
        with blaming_kernel():
            graph.replay()
            card.synchronize()
        return judge(f"other queries at {name}", inputs.out[-1], reference, allowed, seed)


def repeats(card: Card, inputs: PointInputs, graph: Graph) -> bool:
    """Whether two launches on equal inputs leave the same bits.

    Raises:
        LaunchError: the device failed.
    """
    left = []
    for _ in range(2):
        inputs.out.fill_(torch.nan)
        with blaming_kernel():
            graph.replay()
            card.synchronize()
        left.append(inputs.out.view(torch.int16).clone())
    return torch.equal(*left)


def summary(checks: Mapping[str, Sequence[Check]]) -> dict[str, Any]:
    """The `correctness` of an outcome: by kind of check how many there were, the worst, and the one that failed."""
    result: dict[str, Any] = {}
    for kind, made in checks.items():
        if not made:
            continue
        worst = max(made, key=lambda check: math.inf if check.excess is None else check.excess)
        failed = next((check for check in made if not check.passed), worst)
        result[kind] = {"checked": len(made), "worst": {"name": failed.name, **failed.as_dict()}}
        result[kind]["seeds"] = sorted({check.seed for check in made})
    return result
