"""Proposals from a scrambled Sobol sequence, which covers the space more evenly than random draws do."""

from __future__ import annotations

from collections.abc import Set

from scipy.stats import qmc

from mjolnir.tuner.proposers import Gain
from mjolnir.tuner.space import Coordinates, Space


class QmcProposer:
    """Trial n takes point n of the sequence (Sobol 1967, scrambled after Matousek 1998), cut to the ranges."""

    name = "qmc"

    def __init__(self, space: Space, seed: int) -> None:
        self._space = space
        self._seed = seed

    def ask(self, bucket: int, number: int, taken: Set[Coordinates]) -> Coordinates:
        """See `Proposer`; where a recording does not hold the point, the nearest one in the order of the space."""
        sequence = qmc.Sobol(len(self._space.dimensions), rng=self._seed)
        place = sequence.random(number + 1)[-1]
        point = tuple(int(x * len(d.values)) for x, d in zip(place, self._space.dimensions, strict=True))
        return self._space.nearest(point)

    def gain(self, bucket: int, number: int, taken: Set[Coordinates]) -> Gain | None:
        """See `Proposer`; it does not know."""
        return None

    def tell(self, bucket: int, coordinates: Coordinates, value: float | None) -> None:
        """See `Proposer`."""
