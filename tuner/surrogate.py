"""A Gaussian process over settings: what a study believes of the settings that it has not seen.

The kernel is a product over features of (1 + s_f k_f) / (1 + s_f), k_f(a, b) = exp(-|a - b| / `REACH`): multiplied out
it is a sum over all sets of features, so main effects, pairs and so on each have their share (the ANOVA kernel of
Durrande et al., J. Multivariate Analysis 115, 2013). What a knob does alone is thus carried over to settings that
combine it with others. The strengths s_f and the noise maximise the marginal likelihood (Rasmussen and Williams,
Gaussian Processes for Machine Learning, eq. 5.8-5.9) under wide normal priors on their logarithms; the variance of
the process has a closed form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular
from scipy.optimize import minimize
from scipy.special import ndtr

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

REACH = 2.0
"""Steps of a feature over which correlation falls to 1/e."""

STRENGTH_PRIOR = 1.5
"""Standard deviation of log s_f around 0."""

NOISE_PRIOR = (-8.0, 2.0)
"""Mean and standard deviation of the logarithm of noise variance over process variance."""

BOUNDS = ((-5.0, 5.0), (-14.0, -2.0))
"""Of the logarithms of strengths and noise."""

MOST_STEPS = 30
"""Of the optimiser."""

TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Shape:
    """The parameters of a kernel: strengths s_f, one per feature, and noise variance over process variance."""

    strengths: Array
    noise: float

    @classmethod
    def prior(cls, features: int) -> Shape:
        """What is assumed before anything is known."""
        return cls(np.ones(features), float(np.exp(NOISE_PRIOR[0])))

    def kernel(self, a: Array, b: Array) -> Array:
        """Correlations of settings `a` (n, features) with `b` (m, features), shape (n, m)."""
        found = np.ones((len(a), len(b)))
        for strength, left, right in zip(self.strengths, a.T, b.T, strict=True):
            found *= _near(left, right, float(strength))
        return found


def _near(left: Array, right: Array, strength: float | None = None) -> Array:
    """k_f, or its share of the kernel, by value: a feature has few values, so they are looked up."""
    rows, row_of = np.unique(left, return_inverse=True)
    columns, column_of = np.unique(right, return_inverse=True)
    table: Array = np.exp(-np.abs(rows[:, None] - columns[None, :]) / REACH)
    if strength is not None:
        table = (1 + strength * table) / (1 + strength)
    return table[row_of].take(column_of, axis=1)


def fit(settings: Array, values: Array) -> Shape:
    """The shape that fits `values` (n, centred) at `settings` (n, features) best."""
    near = [_near(column, column) for column in settings.T]
    start = np.zeros(len(near) + 1)
    start[-1] = NOISE_PRIOR[0]
    bounds = [BOUNDS[0]] * len(near) + [BOUNDS[1]]
    found = minimize(
        _loss, start, args=(near, values), jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": MOST_STEPS}
    )
    best = np.exp(found.x)
    return Shape(best[:-1], float(best[-1]))


def _loss(logs: Array, near: list[Array], values: Array) -> tuple[float, Array]:
    """Negative log posterior of a shape, the process variance maximised out, and its gradient."""
    strengths, noise = np.exp(logs[:-1]), float(np.exp(logs[-1]))
    factors = [(1 + s * k) / (1 + s) for s, k in zip(strengths, near, strict=True)]
    kernel = np.prod(factors, axis=0)
    count = len(values)
    lower = np.linalg.cholesky(kernel + noise * np.eye(count))
    inverse = np.linalg.inv(lower)
    inverse = inverse.T @ inverse
    weights = inverse @ values
    variance = float(values @ weights) / count + TINY
    outer = 0.5 * (inverse - np.outer(weights, weights) / variance)
    pull = outer * kernel
    gradient = np.array(
        [
            float((pull / factor * (k - 1)).sum()) * s / (1 + s) ** 2
            for s, k, factor in zip(strengths, near, factors, strict=True)
        ]
        + [float(np.trace(outer)) * noise]
    )
    centre = np.zeros(len(logs))
    centre[-1] = NOISE_PRIOR[0]
    spread = np.full(len(logs), STRENGTH_PRIOR)
    spread[-1] = NOISE_PRIOR[1]
    away = (logs - centre) / spread
    loss = 0.5 * count * np.log(variance) + float(np.log(np.diag(lower)).sum()) + 0.5 * float(away @ away)
    return loss, gradient + away / spread


@dataclass(frozen=True, slots=True)
class Belief:
    """What is believed of some settings: mean and standard deviation of each, and the best value that is expected."""

    mean: Array
    deviation: Array
    best: float

    @property
    def improvement(self) -> Array:
        """Expected improvement on the best (Jones, Schonlau and Welch 1998, eq. 15); smaller values are better."""
        ahead = self.best - self.mean
        scaled = ahead / self.deviation
        density = np.exp(-(scaled**2) / 2) / math.sqrt(2 * math.pi)
        found: Array = ahead * ndtr(scaled) + self.deviation * density
        return np.maximum(found, 0.0)

    def optimistic_gap(self, deviations: float) -> float:
        """How far a setting lies below the best at most, when each is so many deviations better than believed."""
        return max(0.0, float((self.best - self.mean + deviations * self.deviation).max()))


def believe(
    shape: Shape, told: Array, values: Array, pending: Array, asked: Array, counted: Flags | None = None
) -> Belief:
    """Condition the process on what was told.

    Args:
        shape: its kernel.
        told: settings with a value, shape (n, features).
        values: theirs.
        pending: settings that are being measured: they take uncertainty away at once, with the value that is expected
            of them (the kriging believer of Ginsbourger et al. 2010).
        asked: the settings to judge.
        counted: which of those told, then of those pending, may be the best; None = all of them.
    """
    count, centre = len(told), float(values.mean())
    known = np.concatenate([told, pending])
    kernel = shape.kernel(known, np.concatenate([known, asked]))
    lower = np.linalg.cholesky(kernel[:, : len(known)] + shape.noise * np.eye(len(known)))
    projected = solve_triangular(lower[:count, :count], values - centre, lower=True)
    scale = float(np.sqrt(np.mean(projected**2))) + TINY
    shares = solve_triangular(lower, kernel[:, len(known) :], lower=True)
    mean = centre + shares[:count].T @ projected
    deviation = scale * np.sqrt(np.maximum(1 - np.square(shares).sum(axis=0), TINY))
    expected = centre + lower[count:, :count] @ projected
    # The best by what is believed, not by what was measured: a lucky measurement would leave nothing to gain.
    weights = solve_triangular(lower[:count, :count], projected, lower=True, trans="T")
    smoothed = values - shape.noise * weights
    values_there = np.concatenate([smoothed, expected])
    return Belief(mean, deviation, float((values_there if counted is None else values_there[counted]).min()))
