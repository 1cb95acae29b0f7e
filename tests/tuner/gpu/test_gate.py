"""The gate by itself: everything is enqueued before the one wait, and checks end with the first that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mjolnir.kernel.geometry import Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.bench import Status
from mjolnir.tuner.gpu.card import Graph
from mjolnir.tuner.gpu.chain import LaunchError
from mjolnir.tuner.gpu.comparison import Check, Comparison, compared
from mjolnir.tuner.gpu.gate import PointOnCard, check_fresh, check_points, repeats
from mjolnir.tuner.gpu.inputs import PointInputs
from mjolnir.tuner.gpu.session import Session
from mjolnir.tuner.workload import Point
from tests.tuner.gpu.conftest import GEOMETRY

WAITS = ("aten._local_scalar_dense", "aten.equal", "aten.is_nonzero", "aten.nonzero")
"""What reads the device from the host: `.item()`, `torch.equal`, a condition, an index by a mask."""


class Waits(TorchDispatchMode):
    """Notes in `events` whatever would wait for a device."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self._events = events

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func).startswith(WAITS):
            self._events.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is enqueued and waited for, in order."""
    noted: list[str] = []
    tolist = Tensor.tolist

    def told(self: Tensor) -> Any:
        noted.append("tolist")
        return tolist(self)

    with Waits(noted):
        monkeypatch.setattr(Tensor, "tolist", told)
        yield noted


@dataclass
class Noted:
    """A graph, and a card as far as the gate needs one, that note what is asked of them."""

    events: list[str]
    name: str
    body: Callable[[], object]

    def replay(self) -> None:
        self.events.append(f"replay {self.name}")
        self.body()

    def synchronize(self) -> None:
        self.events.append("synchronize")


def leave_right(inputs: PointInputs) -> None:
    inputs.out.copy_(inputs.reference()[0])


class Bed:
    """Points with graphs that leave what is right, unless told otherwise."""

    def __init__(self, events: list[str], names: str) -> None:
        self.events, self.card = events, Noted(events, "card", lambda: None)
        self.inputs = {name: self._inputs(number) for number, name in enumerate(names)}
        self.bodies: dict[str, Callable[[], object]] = {
            name: partial(leave_right, inputs) for name, inputs in self.inputs.items()
        }
        events.clear()

    def _inputs(self, number: int) -> PointInputs:
        inputs = PointInputs(GEOMETRY, Placement(), Point(2, (70, 9)), width=5, sets=2, device="cpu", seed=number)
        inputs.renew(30 + number, move=True)
        inputs.reference()
        return inputs

    def also(self, name: str, then: Callable[[PointInputs], object]) -> None:
        """After what is right, do that to the point's inputs."""
        before, inputs = self.bodies[name], self.inputs[name]

        def body() -> None:
            before()
            then(inputs)

        self.bodies[name] = body

    def points(self) -> list[PointOnCard]:
        def ready(name: str) -> Graph:
            self.events.append(f"plan {name}")
            return Noted(self.events, name, self.bodies[name])

        return [PointOnCard(name, inputs, partial(ready, name)) for name, inputs in self.inputs.items()]

    def check(self) -> list[Check]:
        return check_points(self.card, self.points())  # type: ignore[arg-type]


def test_all_points_are_enqueued_and_then_waited_for_once(events: list[str]) -> None:
    checks = Bed(events, "ab").check()
    assert events == ["plan a", "replay a", "plan b", "replay b", "synchronize", "tolist"]
    assert [(check.name, check.status, check.seed) for check in checks] == [
        ("point a", Status.MEASURED, 30), ("point b", Status.MEASURED, 31),
    ]  # fmt: skip
    # The reference is f32, what a launch leaves bf16: off by its rounding, within the bound, and never by nothing.
    assert all(check.excess is not None and 0 < check.excess < 1 for check in checks)
    events.clear()
    assert Bed(events, "").check() == []
    assert events == []


def test_checks_end_with_the_first_that_is_wrong_and_say_by_how_much(events: list[str]) -> None:
    bed = Bed(events, "abc")
    bed.also("b", lambda inputs: inputs.out[1, 0, 2, 5].add_(0.5))
    bed.also("c", lambda inputs: inputs.out.fill_(torch.inf))
    right, wrong = bed.check()
    assert right.passed
    reference, allowed = (float(part[1, 0, 2, 5]) for part in bed.inputs["b"].reference())
    left = float(bed.inputs["b"].out[1, 0, 2, 5])
    assert wrong.status is Status.INCORRECT
    assert wrong.error == pytest.approx(abs(left - reference), rel=1e-6)
    assert wrong.bound == pytest.approx(allowed, rel=1e-6)
    assert wrong.excess == pytest.approx(abs(left - reference) / allowed, rel=1e-6)
    assert wrong.reason == f"point b: an output is off by {wrong.error:.3g}, the bound is {wrong.bound:.3g}"


def test_what_a_replay_does_not_write_is_seen_though_it_was_right_before(events: list[str]) -> None:
    bed = Bed(events, "a")
    assert bed.check()[0].passed
    bed.bodies["a"] = lambda: bed.inputs["a"].out[0].copy_(bed.inputs["a"].reference()[0][0])
    (check,) = bed.check()
    assert (check.status, check.excess, check.error) == (Status.NAN, None, None)


def test_inputs_are_looked_at_after_the_replay_that_wrote_to_them(events: list[str]) -> None:
    bed = Bed(events, "abc")
    bed.also("b", lambda inputs: (inputs.tables[0, 0, 4].sub_(1), inputs.q[1, 0, 0, 0].add_(1)))
    right, wrong = bed.check()
    assert right.passed
    assert wrong.reason == "point b: inputs were written to: block table, queries"
    assert wrong.status is Status.INCORRECT
    assert bed.inputs["b"].changed() == "block table, queries"
    assert bed.inputs["a"].changed() == bed.inputs["c"].changed() == ""


def test_references_are_made_before_any_replay_can_write_to_what_they_are_made_of(events: list[str]) -> None:
    bed = Bed(events, "ab")
    later = bed.inputs["b"]
    bed.bodies["b"] = partial(later.out.copy_, later.reference()[0].clone())
    later.renew(later.seed, move=True)  # the same again, and its reference is still to be made
    bed.also("a", lambda _: later.pool.view(torch.uint8).bitwise_xor_(0x80))
    assert [check.note for check in bed.check()] == ["", "inputs were written to: KV cache"]


def test_a_device_that_fails_is_laid_on_the_kernel(events: list[str]) -> None:
    def fails() -> None:
        raise RuntimeError("CUDA error: illegal")

    bed = Bed(events, "ab")
    bed.card.synchronize = fails  # type: ignore[method-assign]
    with pytest.raises(LaunchError, match="CUDA error: illegal"):
        bed.check()
    with pytest.raises(LaunchError, match="CUDA error: illegal"):
        repeats(bed.card, bed.points())  # type: ignore[arg-type]
    bed.bodies["a"] = fails
    with pytest.raises(LaunchError, match="CUDA error: illegal"):
        bed.check()


def test_other_queries_are_put_back_before_they_are_waited_for(events: list[str]) -> None:
    bed = Bed(events, "a")
    inputs, before = bed.inputs["a"], bed.inputs["a"].q_source.clone()
    check = check_fresh(bed.card, bed.points()[0])  # type: ignore[arg-type]
    assert events[-2:] == ["synchronize", "tolist"]
    assert events.count("synchronize") == 1
    assert (check.name, check.seed, check.status) == ("other queries at a", 31, Status.INCORRECT)
    assert torch.equal(inputs.q_source, before)
    assert inputs.changed() == ""


def test_bits_of_all_points_are_compared_and_then_waited_for_once(events: list[str]) -> None:
    bed = Bed(events, "abc")
    ticks = iter(range(9))
    bed.also("b", lambda inputs: inputs.out[0, 0, 0, 0].copy_(torch.tensor(float(next(ticks)))))
    assert repeats(bed.card, bed.points()) == [True, False, True]  # type: ignore[arg-type]
    assert events[-2:] == ["synchronize", "tolist"]
    assert [event for event in events if event in ("synchronize", "tolist", *WAITS)] == ["synchronize", "tolist"]


def test_a_note_counts_only_where_the_output_is_right() -> None:
    right, bound = torch.tensor([1.0, -2.0, 0.0]), torch.tensor([0.5, 0.5, 0.0])
    written = torch.tensor([True])

    def check(out: list[float], *flags: Tensor) -> Check:
        comparison = Comparison(
            "x", 3, compared(torch.tensor(out), right, bound, *flags), lambda flags: f"{flags}" if flags else ""
        )
        return comparison.check(comparison.numbers.tolist())

    assert check([1.25, -2.0, 0.0], written).note == "[1.0]"
    assert check([1.25, -2.0, 0.0], written).status is Status.INCORRECT
    assert (check([1.25, -2.0, 0.0], written).excess, check([1.25, -2.0, 0.0]).error) == (0.5, 0.25)
    wrong = check([1.0, -3.0, 0.0], written)
    assert (wrong.status, wrong.note, wrong.excess, wrong.error, wrong.bound) == (Status.INCORRECT, "", 2.0, 1.0, 0.5)
    nothing_allowed = check([1.0, -2.0, 1e-9])
    assert (nothing_allowed.status, nothing_allowed.excess, nothing_allowed.bound) == (Status.INCORRECT, None, 0.0)
    for value in (torch.nan, torch.inf):
        assert (check([value, -2.0, 0.0], written).status, check([value, -2.0, 0.0], written).note) == (Status.NAN, "")


def test_the_small_cases_of_a_binary_are_waited_for_once(
    session: Callable[..., Session], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = session(trouble={"2": "wrong"})
    waits: list[int] = []
    monkeypatch.setattr(made.card, "synchronize", lambda: waits.append(1))

    def names(checks: Sequence[Check]) -> list[str]:
        return [check.name for check in checks]

    checks = made.gate_binary(Setting(), expected)
    cases = ("edges", "one-long", "halves", "fifths", "grown", "clamped", "crowd", "loud")
    assert names(checks) == [f"case {name}" for name in cases]
    assert all(check.passed for check in checks)
    assert len(waits) == 1
    assert names(made.gate_binary(Setting(l2_prefetch=2), expected)) == ["case edges"]
    assert len(waits) == 2
