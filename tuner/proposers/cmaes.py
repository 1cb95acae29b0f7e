"""CMA-ES over the space, from the package `cmaes`, one optimiser per bucket.

What is told is taken in generations, whoever proposed it, so a generation is complete after so many trials whichever
bucket asked for them. Asks draw from a copy: the optimiser itself only ever changes with what it is told.
"""

from __future__ import annotations

from collections.abc import Set
from copy import deepcopy
from typing import Any

import numpy as np

from mjolnir.tuner.proposers import Gain, ProposerError
from mjolnir.tuner.space import Coordinates, Space

SIGMA = 0.3
"""First step size, in units of each range."""

WORST = 2.0
"""How many times slower than the worst of its generation a trial without a value counts."""


class CmaesProposer:
    """Proposes the nearest setting to a draw from the search distribution (Hansen 2016, The CMA Evolution Strategy)."""

    name = "cmaes"

    def __init__(self, space: Space, seed: int) -> None:
        try:
            import cmaes
        except ImportError as error:
            raise ProposerError("the proposer cmaes needs a package: pip install cmaes") from error
        self._make = cmaes.CMA
        self._space = space
        self._seed = seed
        self._spans = np.array([len(dimension.values) for dimension in space.dimensions])
        self._studies: dict[int, Any] = {}
        self._waiting: dict[int, list[tuple[Coordinates, float | None]]] = {}

    def ask(self, bucket: int, number: int, taken: Set[Coordinates]) -> Coordinates:
        """See `Proposer`."""
        optimiser = deepcopy(self._study(bucket))
        optimiser.reseed_rng(int(np.random.SeedSequence((self._seed, number)).generate_state(1)[0]))
        drawn = optimiser.ask()
        places = np.clip((drawn * self._spans).astype(int), 0, self._spans - 1)
        return self._space.nearest(tuple(places.tolist()))

    def gain(self, bucket: int, number: int, taken: Set[Coordinates]) -> Gain | None:
        """See `Proposer`; it does not know."""
        return None

    def tell(self, bucket: int, coordinates: Coordinates, value: float | None) -> None:
        """See `Proposer`; a generation is handed over when it is complete."""
        waiting = self._waiting.setdefault(bucket, [])
        waiting.append((coordinates, value))
        study = self._study(bucket)
        if len(waiting) == study.population_size:
            known = [value for _, value in waiting if value is not None]
            worst = WORST * max(known, default=1.0)
            study.tell([(self._place(at), worst if value is None else value) for at, value in waiting])
            waiting.clear()

    def _place(self, coordinates: Coordinates) -> Any:
        """The middle of a setting's cell in the unit cube."""
        return (np.array(coordinates) + 0.5) / self._spans

    def _study(self, bucket: int) -> Any:
        if bucket not in self._studies:
            count = len(self._spans)
            bounds = np.tile([0.0, 1.0], (count, 1))
            seed = int(np.random.SeedSequence((self._seed, bucket)).generate_state(1)[0])
            self._studies[bucket] = self._make(mean=np.full(count, 0.5), sigma=SIGMA, bounds=bounds, seed=seed)
        return self._studies[bucket]
