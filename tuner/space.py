"""The search space: every setting that can run here, as coordinates of independent ranges.

How many stages fit depends on how many CTAs share an SM, and both on how many warps each computes with, so these three
knobs make one ordinal, `ring`, over what is feasible of them (`kv_stages = 0` folds to the depth it stands for). No
range then depends on another knob, which is what samplers want. The other knobs are a range each, over the values that
`KNOBS` says a search proposes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

import numpy as np

from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import KNOBS, Setting, knob
from mjolnir.kernel.variant import infeasible, resolve

RING = ("ctas_per_sm", "consumer_warps", "kv_stages")
"""The knobs that share one dimension."""

Coordinates = tuple[int, ...]
"""One index per dimension."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """One range of the space.

    Attributes:
        name: "ring", or the knob's name.
        knobs: the knobs that it sets.
        values: what it sets them to, by index; ascending.
    """

    name: str
    knobs: tuple[str, ...]
    values: tuple[tuple[int, ...], ...]


def candidates(name: str, pins: Mapping[str, int]) -> tuple[int, ...]:
    """The values of one knob that a search may propose, given the pins."""
    return (pins[name],) if name in pins else knob(name).search


def grid(geometry: Geometry, device: Device, values: Mapping[str, Sequence[int]]) -> list[Setting]:
    """Full factorial of `values` (knobs left out take their default), resolved, feasible, each once, ascending.

    Raises:
        ValueError: an unknown knob, or a value outside its domain.
    """
    lists = [tuple(values.get(item.name, (item.default,))) for item in KNOBS]
    for name in values:
        knob(name)
    settings = (Setting(*choice) for choice in product(*lists))
    return sorted({resolve(s, geometry, device) for s in settings if not infeasible(s, geometry, device)})


class Space:
    """The settings that a search may propose.

    Args:
        geometry: the problem.
        device: where it runs.
        pins: knobs held at one value.
        allowed: the resolved settings that a recording holds; None when every feasible one can be measured.

    Attributes:
        dimensions: the ranges, in the order of coordinates.
        excluded: values of the domain that cannot run here whatever the other knobs are, with the reason.
        default: the built-in default, resolved; it may lie outside the pins.

    Raises:
        ValueError: nothing is left to search; the message says why.
    """

    def __init__(
        self,
        geometry: Geometry,
        device: Device,
        pins: Mapping[str, int] | None = None,
        allowed: Sequence[Setting] | None = None,
    ) -> None:
        self.geometry = geometry
        self.device = device
        self.pins = {name: knob(name).check(value) for name, value in (pins or {}).items()}
        self.default = resolve(Setting(), geometry, device)
        self._allowed = None if allowed is None else frozenset(allowed)
        self.excluded, rings = self._rings()
        if not rings:
            raise ValueError(f"no setting with {_words(self.pins)} can run: {next(iter(self.excluded.values()))}")
        dimensions = [Dimension("ring", RING, rings)]
        for item in KNOBS:
            if item.name not in RING:
                values = tuple((value,) for value in candidates(item.name, self.pins))
                dimensions.append(Dimension(item.name, (item.name,), values))
        self.dimensions = tuple(dimensions)
        if self._allowed is not None:
            self._restrict(self._allowed)
        self._members = self._list_members()

    def _rings(self) -> tuple[dict[str, str], tuple[tuple[int, ...], ...]]:
        """Reasons by value that cannot run with any partners, and the feasible values of `RING`, resolved."""
        reasons: dict[str, list[str | None]] = {}
        rings: set[tuple[int, ...]] = set()
        for choice in product(*(candidates(name, self.pins) for name in RING)):
            setting = Setting(**dict(zip(RING, choice, strict=True)))
            reason = infeasible(setting, self.geometry, self.device)
            for name, value in zip(RING, choice, strict=True):
                reasons.setdefault(f"{name}={value}", []).append(reason)
            if reason is None:
                resolved = resolve(setting, self.geometry, self.device)
                rings.add(tuple(getattr(resolved, name) for name in RING))
        excluded = {text: found[0] or "" for text, found in reasons.items() if all(found)}
        return excluded, tuple(sorted(rings))

    def _restrict(self, allowed: frozenset[Setting]) -> None:
        """Keep only the values that some allowed setting has."""
        kept = []
        for dimension in self.dimensions:
            present = {tuple(getattr(setting, name) for name in dimension.knobs) for setting in allowed}
            values = tuple(value for value in dimension.values if value in present)
            if not values:
                held = sorted(present)
                raise ValueError(
                    f"the recording holds no setting with {_words(self.pins)}: its values of "
                    f"{', '.join(dimension.knobs)} are {', '.join(' '.join(map(str, value)) for value in held)}"
                )
            kept.append(Dimension(dimension.name, dimension.knobs, values))
        self.dimensions = tuple(kept)

    def _list_members(self) -> tuple[Coordinates, ...] | None:
        """The coordinates that are allowed, or None when the whole product is."""
        if self._allowed is None:
            return None
        inside = sorted(found for setting in self._allowed if (found := self.coordinates(setting)) is not None)
        if not inside:
            raise ValueError(f"the recording holds no setting with {_words(self.pins)}")
        return None if len(inside) == self._product else tuple(inside)

    @cached_property
    def _product(self) -> int:
        return prod(len(dimension.values) for dimension in self.dimensions)

    @cached_property
    def _places(self) -> tuple[dict[tuple[int, ...], int], ...]:
        return tuple({value: index for index, value in enumerate(d.values)} for d in self.dimensions)

    @property
    def size(self) -> int:
        """Number of settings."""
        return self._product if self._members is None else len(self._members)

    def member(self, index: int) -> Coordinates:
        """The coordinates of the setting with this index, from 0 to `size` - 1."""
        if self._members is not None:
            return self._members[index]
        found = []
        for dimension in reversed(self.dimensions):
            index, place = divmod(index, len(dimension.values))
            found.append(place)
        return tuple(reversed(found))

    def setting(self, coordinates: Sequence[int]) -> Setting:
        """The setting at these coordinates, resolved.

        Raises:
            ValueError: not one index per dimension.
            IndexError: an index outside its range.
        """
        values: dict[str, int] = {}
        for dimension, index in zip(self.dimensions, coordinates, strict=True):
            values.update(zip(dimension.knobs, dimension.values[index], strict=True))
        return Setting(**values)

    def coordinates(self, setting: Setting) -> Coordinates | None:
        """Where a setting lies (0 stages folded), or None when it is outside the space."""
        resolved = resolve(setting, self.geometry, self.device)
        found = []
        for dimension, places in zip(self.dimensions, self._places, strict=True):
            place = places.get(tuple(getattr(resolved, name) for name in dimension.knobs))
            if place is None:
                return None
            found.append(place)
        return tuple(found) if self._allowed is None or resolved in self._allowed else None

    def unmeasurable(self, setting: Setting) -> str | None:
        """Why a setting cannot be measured on this bench, or None; pins do not matter. Known without compiling."""
        reason = infeasible(setting, self.geometry, self.device)
        if reason:
            return reason
        return "the recording does not hold this setting" if self.unrecorded(setting) else None

    def unrecorded(self, setting: Setting) -> bool:
        """Whether the device could run a setting, and only the recording lacks it."""
        if self._allowed is None or infeasible(setting, self.geometry, self.device):
            return False
        return resolve(setting, self.geometry, self.device) not in self._allowed

    def random(self, rng: np.random.Generator) -> Coordinates:
        """Coordinates drawn evenly."""
        return self.member(int(rng.integers(self.size)))

    def neighbours(self, coordinates: Coordinates) -> Iterator[Coordinates]:
        """Coordinates one step away in one dimension; with a recording, those that it holds."""
        for axis, dimension in enumerate(self.dimensions):
            for place in (coordinates[axis] - 1, coordinates[axis] + 1):
                if 0 <= place < len(dimension.values):
                    near = (*coordinates[:axis], place, *coordinates[axis + 1 :])
                    if self.holds(near):
                        yield near

    def holds(self, coordinates: Coordinates) -> bool:
        """Whether coordinates inside the ranges are a setting of the space: a recording may lack some."""
        return self._members is None or self.setting(coordinates) in (self._allowed or ())

    def nearest(self, coordinates: Coordinates) -> Coordinates:
        """These coordinates, or the setting of the space with the least sum of squared steps to them."""
        if self._members is None or self.holds(coordinates):
            return coordinates
        steps = np.square(np.array(self._members) - np.array(coordinates)).sum(axis=1)
        return self._members[int(steps.argmin())]


def _words(pins: Mapping[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in pins.items()) or "any values"
