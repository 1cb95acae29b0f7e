"""Proposals drawn evenly from the space: the yardstick of the other proposers."""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from mjolnir.tuner.proposers import Gain
from mjolnir.tuner.space import Coordinates, Space


class RandomProposer:
    """Draws each proposal from (seed, number) alone; what it is told does not matter to it."""

    name = "random"

    def __init__(self, space: Space, seed: int) -> None:
        self._space = space
        self._seed = seed

    def ask(self, bucket: int, number: int, taken: Set[Coordinates]) -> Coordinates:
        """See `Proposer`."""
        return self._space.random(np.random.default_rng((self._seed, number)))

    def gain(self, bucket: int, number: int, taken: Set[Coordinates]) -> Gain | None:
        """See `Proposer`; it does not know."""
        return None

    def tell(self, bucket: int, coordinates: Coordinates, value: float | None) -> None:
        """See `Proposer`."""
