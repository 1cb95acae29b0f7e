"""A Gaussian process per bucket over all settings of the space, asked for the largest expected improvement.

It begins with a star: each knob is varied alone around the default, as far as its partners allow (see `_make_star`), so
that every later guess rests on what each knob does. From then on it proposes only what was not tried; what is under way
counts with the value that is expected of it. What a bucket could not make its row teaches the process, and no more: it
is neither the best nor proposed (see `uneven`).
Values are logarithms of ratios, cut at `CUT` above the best: how slow a slow setting is does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from mjolnir.tuner.features import Features
from mjolnir.tuner.proposers import Gain
from mjolnir.tuner.space import Coordinates, Dimension, Space
from mjolnir.tuner.surrogate import Array, Belief, Shape, believe, fit
from mjolnir.tuner.uneven import serves
from mjolnir.tuner.workload import Workload

CUT = 0.25
"""Above the best, a value counts as this much above it; so does a trial without a value."""

STAR_VALUES = 3
"""Values of one knob that the star tries, at most, spread evenly; what lies between is the process's to guess."""

FIRST_FIT, GROWTH = 8, 1.25
"""The kernel is fitted to the first 8 trials, and anew whenever there are a quarter more."""

CANDIDATES = 4096
"""Settings that an ask judges; a larger space is sampled."""

LIKELY = 4
"""Settings of a bucket that may be proposed soon."""

DEVIATIONS = 2.0
"""How optimistic `Gain.optimistic` is."""


@dataclass(slots=True)
class Study:
    """What one bucket was told, and the kernel that was fitted to the first so many of it."""

    told: list[tuple[Coordinates, float | None]] = field(default_factory=list)
    fitted: int = 0
    shape: Shape | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """Settings that were not tried, and what is believed of them."""

    settings: tuple[Coordinates, ...]
    belief: Belief


class GpProposer:
    """Proposes by expected improvement; see the module."""

    name = "gp"

    def __init__(self, space: Space, seed: int, workload: Workload | None = None) -> None:
        self._space = space
        self._seed = seed
        self._features = Features(space, workload)
        self._members = tuple(map(space.member, range(space.size))) if space.size <= CANDIDATES else ()
        self._star = self._make_star()
        self._studies: dict[int, Study] = {}
        self._serving: dict[int, dict[Coordinates, bool]] = {}
        self._judged: dict[tuple[int, int, int, int], Judged | None] = {}

    def ask(self, bucket: int, number: int, taken: Set[Coordinates]) -> Coordinates:
        """See `Proposer`."""
        for coordinates in self._star:
            if coordinates not in taken:
                return coordinates
        judged = self._judge(bucket, number, taken)
        if judged is None:
            return self._space.random(np.random.default_rng((self._seed, number)))
        return judged.settings[int(judged.belief.improvement.argmax())]

    def gain(self, bucket: int, number: int, taken: Set[Coordinates]) -> Gain | None:
        """See `Proposer`; not known before what the star asked for was told."""
        told = {coordinates for coordinates, _ in self._studies.setdefault(bucket, Study()).told}
        if not told.issuperset(self._star):
            return None
        judged = self._judge(bucket, number, taken)
        if judged is None:
            return None
        return Gain(float(judged.belief.improvement.max()), judged.belief.optimistic_gap(DEVIATIONS))

    def likely(self, bucket: int, number: int, taken: Set[Coordinates]) -> Sequence[Coordinates]:
        """See `Foresight`: what is left of the star, then the settings of the largest expected improvement."""
        left = [coordinates for coordinates in self._star if coordinates not in taken]
        judged = None if left else self._judge(bucket, number, taken)
        if judged is None:
            return left
        best = judged.belief.improvement.argsort()[::-1][:LIKELY]
        return [judged.settings[place] for place in best.tolist()]

    def tell(self, bucket: int, coordinates: Coordinates, value: float | None) -> None:
        """See `Proposer`."""
        self._studies.setdefault(bucket, Study()).told.append((coordinates, value))

    def _make_star(self) -> tuple[Coordinates, ...]:
        """The settings that differ from the default in one knob, in an order drawn from the seed.

        A knob that shares its dimension takes the place at which the others change least. What no bucket can tell from
        an earlier one is left out.
        """
        space = self._space
        centre = space.coordinates(space.default) or space.member(space.size // 2)
        found = {self._features.alike(centre): centre}
        for axis, dimension in enumerate(space.dimensions):
            for place in _spokes(dimension, centre[axis]):
                point = (*centre[:axis], place, *centre[axis + 1 :])
                if space.holds(point):
                    found.setdefault(self._features.alike(point), point)
        star = list(found.values())[1:]
        return tuple(star[i] for i in np.random.default_rng(self._seed).permutation(len(star)))

    def _judge(self, bucket: int, number: int, taken: Set[Coordinates]) -> Judged | None:
        """What is believed of the settings that are not taken; None when none is left or nothing was measured."""
        study = self._studies.setdefault(bucket, Study())
        key = (bucket, number, len(study.told), len(taken))
        if key not in self._judged:
            if self._judged and next(iter(self._judged))[1] != number:
                self._judged.clear()
            self._judged[key] = self._look(study, bucket, number, taken)
        return self._judged[key]

    def _look(self, study: Study, bucket: int, number: int, taken: Set[Coordinates]) -> Judged | None:
        asked = self._candidates(bucket, number, taken)
        if not asked or all(value is None for _, value in study.told):
            return None
        told = [coordinates for coordinates, _ in study.told]
        pending = sorted(taken - set(told))
        counted = np.array([self._serves(bucket, coordinates) for coordinates in (*told, *pending)])
        belief = believe(
            self._shape(study, bucket),
            self._features.table(bucket, told),
            _values(study.told),
            self._features.table(bucket, pending),
            self._features.table(bucket, asked),
            counted if counted.any() else None,
        )
        return Judged(tuple(asked), belief)

    def _candidates(self, bucket: int, number: int, taken: Set[Coordinates]) -> list[Coordinates]:
        """What is not taken and could be the bucket's row; of many, an even draw and neighbours of what is taken."""
        members = self._members or self._sample(number, taken)
        return [each for each in members if each not in taken and self._serves(bucket, each)]

    def _serves(self, bucket: int, coordinates: Coordinates) -> bool:
        known, space = self._serving.setdefault(bucket, {}), self._space
        if coordinates not in known:
            known[coordinates] = serves(space.setting(coordinates), bucket, space.geometry, space.device)
        return known[coordinates]

    def _sample(self, number: int, taken: Set[Coordinates]) -> list[Coordinates]:
        space = self._space
        rng = np.random.default_rng((self._seed, number, 2))
        drawn = [space.member(int(index)) for index in rng.choice(space.size, CANDIDATES // 2, replace=False)]
        near = [step for coordinates in sorted(taken) for step in space.neighbours(coordinates)]
        return list(dict.fromkeys([*drawn, *near]))[:CANDIDATES]

    def _shape(self, study: Study, bucket: int) -> Shape:
        """The kernel in force: that of the last milestone, fitted to what was told up to it."""
        milestone = 0
        step = FIRST_FIT
        while step <= len(study.told):
            milestone, step = step, int(np.ceil(GROWTH * step))
        if milestone != study.fitted:
            first = study.told[:milestone]
            values = _values(first)
            table = self._features.table(bucket, [coordinates for coordinates, _ in first])
            study.shape = fit(table, values - values.mean()) if np.ptp(values) > 0 else None
            study.fitted = milestone
        return study.shape or Shape.prior(self._features.count)


def _spokes(dimension: Dimension, centre: int) -> list[int]:
    """Places at which one knob of a dimension has another value and its partners are as near to those of `centre`."""
    found = []
    for number in range(len(dimension.knobs)):
        levels = [sorted({value[knob] for value in dimension.values}) for knob in range(len(dimension.knobs))]
        steps = [
            [abs(own.index(value[knob]) - own.index(dimension.values[centre][knob])) for knob, own in enumerate(levels)]
            for value in dimension.values
        ]
        count = min(STAR_VALUES, len(levels[number]))
        for index in np.linspace(0, len(levels[number]) - 1, count).round().astype(int).tolist():
            there = [p for p, value in enumerate(dimension.values) if value[number] == levels[number][index]]
            found.append(min(there, key=lambda place: sum(steps[place])))
    return list(dict.fromkeys(place for place in found if place != centre))


def _values(told: list[tuple[Coordinates, float | None]]) -> Array:
    """Logarithms of the ratios, cut."""
    values = np.array([np.inf if value is None else np.log(value) for _, value in told])
    found: Array = np.minimum(values, (values.min() if np.isfinite(values.min()) else 0.0) + CUT)
    return found
