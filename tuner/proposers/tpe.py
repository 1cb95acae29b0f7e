"""Optuna's tree-structured Parzen estimator over the space, in memory, one study per bucket.

The ledger is the only storage: a study is told again from it. `ask` and `tell` of Optuna change the state of its
sampler, so each ask takes a new sampler seeded from (seed, number), and the trial that Optuna opens for it is closed as
failed at once, which the sampler passes over. A setting that failed is told as pruned without values: TPE ranks such
trials behind all complete ones. Tells wait until their study is asked, so that a study nobody asks costs nothing.
What TPE holds for best is often what it holds already; an ask that would repeat is asked again, as often as `TRIES`.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np
import optuna
from optuna.distributions import IntDistribution
from optuna.samplers import TPESampler
from optuna.trial import TrialState, create_trial

from mjolnir.tuner.proposers import Gain
from mjolnir.tuner.space import Coordinates, Space

STARTUP = 10
"""Trials told before the estimator takes over from random draws."""

TRIES = 6
"""Draws before a repeated one is handed over."""


class TpeProposer:
    """Proposes with multivariate TPE; all dimensions are whole numbers on a line."""

    name = "tpe"

    def __init__(self, space: Space, seed: int, *, tries: int = TRIES) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space = space
        self._seed = seed
        self._tries = tries
        self._distributions: dict[str, Any] = {
            dimension.name: IntDistribution(0, len(dimension.values) - 1) for dimension in space.dimensions
        }
        self._studies: dict[int, optuna.Study] = {}
        self._waiting: dict[int, list[tuple[Coordinates, float | None]]] = {}

    def ask(self, bucket: int, number: int, taken: Set[Coordinates]) -> Coordinates:
        """See `Proposer`."""
        study = self._study(bucket)
        seed = int(np.random.SeedSequence((self._seed, number)).generate_state(1)[0])
        study.sampler = TPESampler(seed=seed, n_startup_trials=STARTUP)
        for _ in range(self._tries):
            trial = study.ask(self._distributions)
            study.tell(trial, state=TrialState.FAIL)
            coordinates = tuple(trial.params[dimension.name] for dimension in self._space.dimensions)
            if coordinates not in taken:
                break
        return coordinates

    def gain(self, bucket: int, number: int, taken: Set[Coordinates]) -> Gain | None:
        """See `Proposer`; its densities say where to look, not how much is there."""
        return None

    def tell(self, bucket: int, coordinates: Coordinates, value: float | None) -> None:
        """See `Proposer`."""
        self._waiting.setdefault(bucket, []).append((coordinates, value))

    def _study(self, bucket: int) -> optuna.Study:
        """The study of a bucket, with everything in it that was told so far."""
        if bucket not in self._studies:
            self._studies[bucket] = optuna.create_study(study_name=f"bucket-{bucket}")
        study = self._studies[bucket]
        for coordinates, value in self._waiting.pop(bucket, ()):
            params = {d.name: place for d, place in zip(self._space.dimensions, coordinates, strict=True)}
            state = TrialState.PRUNED if value is None else TrialState.COMPLETE
            trial = create_trial(params=params, distributions=self._distributions, value=value, state=state)
            study.add_trial(trial)
        return study
