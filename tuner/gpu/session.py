"""What a device worker keeps between requests: the card, the inputs of each point, and kernels with their graphs."""

from __future__ import annotations

import hashlib
import statistics
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import Variant
from mjolnir.tuner.gpu.canaries import Replaying, baked, require_binary
from mjolnir.tuner.gpu.card import Card
from mjolnir.tuner.gpu.chain import PLANS, Arm, Chains, blaming_kernel
from mjolnir.tuner.gpu.comparison import Check
from mjolnir.tuner.gpu.expectation import Expectation
from mjolnir.tuner.gpu.expected import load_expected
from mjolnir.tuner.gpu.gate import (
    CaseOnCard,
    PointOnCard,
    check_cases,
    check_fresh,
    check_points,
    place_cases,
    repeats,
)
from mjolnir.tuner.gpu.inputs import PointInputs
from mjolnir.tuner.gpu.measure import Block, Job, Policy, sets_of, take
from mjolnir.tuner.gpu.plans import capacity_of, kv_bytes_of, plan_digests
from mjolnir.tuner.workload import Workload

if TYPE_CHECKING:
    from mjolnir.kernel.cases import Inputs

KEPT_ARMS = 24
"""Binaries whose graphs are kept, for settings that differ in splits alone, or come again. On the H200 each takes 1 to
2 MB of buffers, and graphs of 600 kernels over eight points. Of 300 trials searched live, with 67 binaries, 90 would
have found theirs with 8 kept, 191 with 24, 213 with 32 and 233 with all."""

PLAN_REPLAYS = 5


class Session:
    """One card with the inputs and kernels on it.

    Args:
        card: the device.
        geometry, placement, workload: the problem.
        policy: how is measured.
        seed: of the KV contents; new in every process.

    Attributes:
        at_hand: by point, the arm that is timed there in turns with one of another process.
    """

    def __init__(
        self, card: Card, geometry: Geometry, placement: Placement, workload: Workload, policy: Policy, seed: int
    ) -> None:
        self.card, self.geometry, self.placement, self.workload = card, geometry, placement, workload
        self.policy, self.seed = policy, seed
        self.capacity = capacity_of(workload, geometry)
        self._max_batch = max(point.batch for point in workload.points)
        self._points: dict[int, PointInputs] = {}
        self._chains = Chains(card, self._points, policy)
        self._arms: OrderedDict[tuple[Variant, str], Arm] = OrderedDict()
        self._cases: dict[str, list[CaseOnCard]] = {}
        self._case_inputs: dict[Path, Inputs] = {}
        self._gated: dict[Variant, list[Check]] = {}
        self._binaries: dict[Variant, Mapping[str, Any]] = {}
        self.at_hand: dict[int, Arm] = {}
        self._baseline: Arm | None = None
        self._baseline_seeds: dict[int, int] = {}
        self._turns = 0

    def inputs(self, point: int, seed: int | None = None, *, move: bool = False) -> PointInputs:
        """The inputs of a point, made when first asked for, renewed from `seed` where given; with their references."""
        if point not in self._points:
            inputs = PointInputs(
                self.geometry,
                self.placement,
                self.workload.points[point],
                width=self.capacity // self.geometry.page_size,
                sets=sets_of(kv_bytes_of(self.workload.points[point], self.geometry), self.policy),
                device=self.card.torch_device,
                seed=seed_of("kv", self.seed, point),
            )
            inputs.renew(seed_of("first", self.seed, point), move=True)
            self._points[point] = inputs
        inputs = self._points[point]
        if seed is not None:
            inputs.renew(seed, move=move)
        inputs.reference()
        return inputs

    def turn(self, points: Sequence[int]) -> int:
        """The point whose inputs are renewed now: each in its turn, whichever trials come to this card."""
        self._turns += 1
        return points[self._turns % len(points)]

    def expect(self, binaries: Sequence[Mapping[str, Any]]) -> None:
        """Take in which binaries were built: "setting", "fault", "key" and "binary" (sha256 of the code) of each."""
        for built in binaries:
            self._binaries[self.variant(Setting.from_dict(built["setting"]), built["fault"])] = built

    def fresh_arm(self, setting: Setting, fault: str = "none", serve: Setting | None = None) -> Arm:
        """A kernel with a plan buffer of its own.

        Args:
            setting: the knobs.
            fault: a canary's fault.
            serve: a canary's setting whose binary is served in the place of the one asked for.

        Raises:
            StaleBinary: the binary is not the one that was built for the setting.
            LaunchError: it cannot be loaded.
        """
        with blaming_kernel():
            decoder = self.card.decoder(
                serve or setting, max_batch=self._max_batch, capacity=self.capacity, fault=baked(fault)
            )
        require_binary(setting, decoder.built, self._binaries.get(self.variant(setting, fault)))
        return Arm(self._chains, setting, Replaying(decoder) if fault == "replayed" else decoder)

    def arm(self, setting: Setting, fault: str = "none") -> Arm:
        """A kernel from those that are kept, set to `setting`."""
        key = self.variant(setting, fault), fault
        if key not in self._arms:
            self._arms[key] = self.fresh_arm(setting, fault)
            while len(self._arms) > KEPT_ARMS:
                self._arms.popitem(last=False)
        self._arms.move_to_end(key)
        self._arms[key].use(setting)
        return self._arms[key]

    def variant(self, setting: Setting, fault: str = "none") -> Variant:
        """The binary of a setting."""
        return Variant.of(setting, self.geometry, self.card.device, fault=baked(fault))

    def gate_binary(self, setting: Setting, expected: Mapping[str, str], fault: str = "none") -> list[Check]:
        """The small cases of the setting's binary, run once in this process.

        Args:
            setting: any setting of the binary.
            expected: files of the cases' outputs by `Expectation.name`.
            fault: a canary's fault.
        """
        variant = self.variant(setting, fault)
        if variant not in self._gated:
            expectation = Expectation.of(setting, self.card.device)
            name = expectation.name
            if name not in self._cases:
                cases = load_expected(Path(expected[name]), self.geometry, expectation)
                self._cases[name] = place_cases(self.card, cases, self._case_inputs)
            self._gated[variant] = check_cases(self.card, setting, self._cases[name], baked(fault))
        return self._gated[variant]

    def gate_points(self, arm: Arm, points: Sequence[int]) -> list[Check]:
        """The outputs of the graphs that are to be timed; up to and with the first that is wrong."""
        return check_points(self.card, [self._on_card(arm, point) for point in points])

    def gate_fresh(self, arm: Arm, points: Sequence[int]) -> list[Check]:
        """The outputs of a graph on queries that it has never seen, at the point that is checked soonest."""
        point = min(points, key=lambda point: self._points[point].kv_bytes)
        return [check_fresh(self.card, self._on_card(arm, point))]

    def bitwise(self, arm: Arm, points: Sequence[int]) -> dict[str, Any]:
        """Whether two launches on equal inputs give the same bits, at each point; in words of a record."""
        same = repeats(self.card, [self._on_card(arm, point) for point in points])
        return {"launches": 2, "points": len(same), "equal": all(same)}

    def _on_card(self, arm: Arm, point: int) -> PointOnCard:
        return PointOnCard(self.workload.points[point].name, self._points[point], partial(arm.ready, point))

    def spoiled(self) -> bool:
        """Whether a kernel that failed has written to inputs of any point: then this process is of no more use."""
        self._cases.clear()  # read again rather than checked
        self._case_inputs.clear()
        return any(inputs.changed() for inputs in self._points.values())

    def baseline(self, points: Sequence[int], expected: Mapping[str, str]) -> tuple[Arm, Check | None]:
        """The built-in default, gated where inputs are new to it; and the check that it failed, if any."""
        if self._baseline is None:
            self._baseline = self.fresh_arm(Setting())
        checks = list(self.gate_binary(Setting(), expected))
        new = [point for point in points if self._baseline_seeds.get(point) != self._points[point].seed]
        if all(check.passed for check in checks):
            checks += self.gate_points(self._baseline, new)
        failed = next((check for check in checks if not check.passed), None)
        if failed is None:
            self._baseline_seeds.update({point: self._points[point].seed for point in new})
        return self._baseline, failed

    def time(self, arms: Sequence[Arm], points: Sequence[int], rounds: int | None) -> list[Block]:
        """Time arms that passed the gate; each must be an object of its own, as it holds one plan."""

        def at(point: int) -> Callable[[], Job]:
            return lambda: Job(
                tuple(arm.ready(point) for arm in arms), self._chains.empty(point), self._chains.count(point)
            )

        return take(self.card, [at(point) for point in points], self.policy, rounds)

    def time_plans(self, arm: Arm, points: Sequence[int]) -> list[int]:
        """ns of the plan of each point: it is made once a step for all layers, and so no part of the chain."""
        graphs = [arm.plan_graph(point) for point in points]
        self.card.start(graphs * PLAN_REPLAYS)
        times = self.card.finish()
        return [round(statistics.median(times[n :: len(points)]) / PLANS) for n in range(len(points))]

    def plans(self, setting: Setting) -> list[str]:
        """Plan digests of a setting at all points."""
        return plan_digests(setting, self.workload, self.geometry, self.card.device)


def seed_of(*parts: Any) -> int:
    """A seed that depends on all parts and on nothing else."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "big")
