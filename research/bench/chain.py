"""The kernel in the chain in which it is served, by the tuner's own machinery: `us_1x4096`.

The chain is a writer of Q and of a KV row, decode, and a reader of O; its time is less that of the same chain without
decode, taken in the same rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from mjolnir.kernel.cache import CompileError
from mjolnir.kernel.geometry import Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.research.bench.points import Spot
from mjolnir.tuner.gpu.card import Card
from mjolnir.tuner.gpu.chain import Arm, Chains, LaunchError
from mjolnir.tuner.gpu.inputs import PointInputs
from mjolnir.tuner.gpu.measure import Job, Policy, sets_of, take
from mjolnir.tuner.workload import Point

QUICK = 8
"""Rounds by which settings are compared with one another."""


class Served:
    """One spot on a card, with a chain on each of its sets.

    Args:
        card: the device.
        spot: what is timed.
        policy: how.
        seed: of KV contents, queries and pages.

    Attributes:
        window: what was seen of the device while the last samples were taken.
    """

    def __init__(self, card: Card, spot: Spot, policy: Policy | None = None, seed: int = 0) -> None:
        policy = policy or Policy()
        self.window: dict[str, Any] = {}
        self._card, self._spot, self._policy = card, spot, policy
        self._inputs = PointInputs(
            spot.geometry, Placement(), Point(spot.batch, spot.contexts), width=spot.width,
            sets=sets_of(spot.kv_bytes, policy), device=card.torch_device, seed=seed,
        )  # fmt: skip
        self._inputs.renew(seed + 1, move=True)
        self._chains = Chains(card, {0: self._inputs}, policy)

    def quick(self, setting: Setting) -> float | None:
        """Median microseconds of a setting over a few rounds, None where it cannot run."""
        try:
            return median(self.samples([setting], QUICK)[0])
        except (LaunchError, CompileError, ValueError):
            self._card.synchronize()  # raises when it is the device that fails
            return None

    def samples(self, settings: Sequence[Setting], rounds: int) -> list[list[float]]:
        """Microseconds of each setting in each round, all timed in the same rounds.

        Raises:
            LaunchError, CompileError, ValueError: a setting cannot run.
        """
        arms = [self._arm(setting) for setting in settings]

        def ready() -> Job:
            graphs = tuple(arm.ready(0) for arm in arms)
            return Job(graphs, self._chains.empty(0), self._chains.count(0))

        (block,) = take(self._card, [ready], self._policy, rounds)
        self.window = dict(block.window)
        return [[nanoseconds / 1e3 for nanoseconds in arm] for arm in block.net]

    def error(self, setting: Setting) -> float:
        """Largest difference of the outputs from an f32 reference, over its RMS, over all sets."""
        self._inputs.out.fill_(float("nan"))
        self._arm(setting).ready(0).replay()
        self._card.synchronize()
        wanted, _ = self._inputs.reference()
        return float((self._inputs.out.float() - wanted).abs().max() / wanted.square().mean().sqrt())

    def _arm(self, setting: Setting) -> Arm:
        capacity = self._spot.width * self._spot.geometry.page_size
        decoder = self._card.decoder(setting, max_batch=self._spot.batch, capacity=capacity, fault="none")
        return Arm(self._chains, setting, decoder)
