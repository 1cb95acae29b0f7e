"""Comparisons on the device: enqueued one after another, waited for together, and told as the checks of a record."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mjolnir.tuner.bench import Status
from mjolnir.tuner.gpu.card import Card
from mjolnir.tuner.gpu.chain import blaming_kernel


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


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison that is enqueued; it becomes a `Check` once the device has made it.

    Attributes:
        name, seed: of the check.
        numbers: of `compared`, on the device.
        note: what else is wrong, from the flags behind those numbers; "" where nothing is.
    """

    name: str
    seed: int
    numbers: Tensor
    note: Callable[[Sequence[float]], str] = lambda flags: ""

    def check(self, numbers: Sequence[float]) -> Check:
        """The check, from `numbers` as the host has them."""
        excess, off, bound, finite, *flags = numbers
        status = Status.NAN if not finite else Status.MEASURED if excess <= 1 else Status.INCORRECT
        note = self.note(flags) if status is Status.MEASURED else ""
        return Check(
            self.name,
            Status.INCORRECT if note else status,
            _finite(excess),
            _finite(off),
            _finite(bound),
            self.seed,
            note,
        )


def compared(out: Tensor, reference: Tensor, allowed: Tensor, *flags: Tensor) -> Tensor:
    """Enqueue the comparison of `out` with `reference`, element by element within `allowed`, all of one shape.

    Args:
        flags: what else is to be told, bool, one axis each.

    Returns:
        On the device, f32: the largest error over its bound, error and bound of that element, whether all elements are
        finite, then the flags. Nothing is waited for.
    """
    value, right = out.float(), reference.float()
    same = value == right
    error = torch.where(same, 0.0, (value - right).abs())
    ratio = torch.where(same, 0.0, error / allowed).nan_to_num(nan=torch.inf, posinf=torch.inf)
    worst = ratio.argmax().reshape(1)  # an index on the device is waited for by [], not by index_select
    numbers = torch.stack((ratio, error, allowed.float())).flatten(1).index_select(1, worst).flatten()
    return torch.cat((numbers, value.isfinite().all().reshape(1), *flags))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def finished(card: Card, comparisons: Sequence[Comparison]) -> list[Check]:
    """Wait for what is enqueued, once; checks up to and with the first that is wrong.

    Raises:
        LaunchError: the device failed.
    """
    if not comparisons:
        return []
    with blaming_kernel():
        told = torch.stack([comparison.numbers for comparison in comparisons])
        card.synchronize()
    checks: list[Check] = []
    for comparison, numbers in zip(comparisons, told.tolist(), strict=True):
        checks.append(comparison.check(numbers))
        if not checks[-1].passed:
            break
    return checks


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
