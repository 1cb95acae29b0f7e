"""An additive model of knobs: log ratio = the level of each knob's value, added up; with a bootstrap over settings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mjolnir.tuner.statistics import Array

SAMPLES = 300
"""Bootstrap samples: the 2.5 % quantile then rests on seven of them."""

LEAST_SHARE = 0.8
"""A contrast has an interval when this share of the samples holds both values."""

RIDGE = 1e-2
"""Hundredth of an observation: levels that the data leave open come out as 0, and no solution is ill-conditioned."""

Levels = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Model:
    """A fitted model.

    Attributes:
        columns: for each column of the design, (knob's place, value).
        design: one-hot levels, shape (settings, columns).
        response: log ratios less their mean, shape (settings,).
        coefficients: shape (columns + 1,), the mean last.
        samples: those of the bootstrap samples, shape (SAMPLES, columns + 1); NaN where a sample lacks the value.
    """

    columns: tuple[tuple[int, int], ...]
    design: Array
    response: Array
    coefficients: Array
    samples: Array

    @classmethod
    def fit(cls, levels: Levels, logs: Array) -> list[Model]:
        """One model for each response, by least squares with a small ridge.

        Args:
            levels: knob values, shape (settings, knobs).
            logs: log ratios, shape (settings, responses); the responses share design and bootstrap samples.
        """
        columns = tuple(
            (place, int(value)) for place in range(levels.shape[1]) for value in np.unique(levels[:, place])
        )
        design = np.array([levels[:, place] == value for place, value in columns], dtype=np.float64).T
        response = logs - logs.mean(axis=0)
        count = len(logs)
        # The legacy generator's stream is frozen, so that a later numpy gives the same intervals.
        draws = np.random.RandomState(0).randint(count, size=(SAMPLES, count))
        weights = np.array([np.bincount(draw, minlength=count) for draw in draws], dtype=np.float64)
        samples = _solve(design, response, weights)
        samples[:, :-1][weights @ design == 0] = np.nan
        coefficients = _solve(design, response, np.ones((1, count)))[0]
        return [
            cls(columns, design, response[:, number], coefficients[:, number], samples[:, :, number])
            for number in range(logs.shape[1])
        ]

    @property
    def explained(self) -> float:
        """Share of the spread of log ratios (sum of squares) that the model explains."""
        total = float(self.response @ self.response)
        return 1 - self._unexplained(self.coefficients, self.design) / total if total else 0.0

    def importance(self, place: int) -> float:
        """Share of the spread that is no longer explained once the knob is left out and the rest fitted anew."""
        kept = [number for number, (knob, _) in enumerate(self.columns) if knob != place]
        total = float(self.response @ self.response)
        if not total:
            return 0.0
        design = self.design[:, kept]
        coefficients = _solve(design, self.response[:, None], np.ones((1, len(self.response))))[0, :, 0]
        return max(0.0, self.explained - 1 + self._unexplained(coefficients, design) / total)

    def contrast(self, place: int, value: int, base: int) -> tuple[float, float, float] | None:
        """Level of `value` less that of `base`, with its 95 % interval; None where too few samples hold both."""
        if (place, value) not in self.columns or (place, base) not in self.columns:
            return None
        first, second = self.columns.index((place, value)), self.columns.index((place, base))
        drawn = self.samples[:, first] - self.samples[:, second]
        drawn = drawn[np.isfinite(drawn)]
        if len(drawn) < LEAST_SHARE * SAMPLES:
            return None
        low, high = np.quantile(drawn, (0.025, 0.975))
        return float(self.coefficients[first] - self.coefficients[second]), float(low), float(high)

    def _unexplained(self, coefficients: Array, design: Array) -> float:
        rest = self.response - design @ coefficients[:-1] - coefficients[-1]
        return float(rest @ rest)


def _solve(design: Array, responses: Array, weights: Array) -> Array:
    """Coefficients by row of weights and response, shape (rows, columns + 1, responses); the mean, last, is free."""
    with_mean = np.column_stack([design, np.ones(len(design))])
    weighted = weights[:, :, None] * with_mean
    gram = np.matmul(with_mean.T, weighted)
    gram += RIDGE * np.diag([1.0] * design.shape[1] + [0.0])
    solution: Array = np.linalg.solve(gram, np.matmul(weighted.transpose(0, 2, 1), responses))
    return solution
