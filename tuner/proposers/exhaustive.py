"""Every setting of the space, one after the other."""

from __future__ import annotations

from collections.abc import Set

from mjolnir.tuner.proposers import Gain
from mjolnir.tuner.space import Coordinates, Space


class ExhaustiveProposer:
    """Proposes the first setting that is not taken, in the order of the space."""

    name = "exhaustive"

    def __init__(self, space: Space) -> None:
        self._space = space

    def ask(self, bucket: int, number: int, taken: Set[Coordinates]) -> Coordinates:
        """See `Proposer`; when all are taken, the last one."""
        members = (self._space.member(index) for index in range(self._space.size))
        return next((found for found in members if found not in taken), self._space.member(self._space.size - 1))

    def gain(self, bucket: int, number: int, taken: Set[Coordinates]) -> Gain | None:
        """See `Proposer`; it does not know."""
        return None

    def tell(self, bucket: int, coordinates: Coordinates, value: float | None) -> None:
        """See `Proposer`."""
