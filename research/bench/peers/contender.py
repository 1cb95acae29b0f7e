"""What a contender is: a name, and one or several ways to run it, of which the fastest stands for it.

A way is a layout with whatever else may be chosen: number of splits, format of Q, knobs. All that a launch needs once a
step for all layers (plans, scheduler metadata) is made before; what it needs in each layer (Q in another format, a
merge) is part of the launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

from mjolnir.research.bench.clock import Clock, Graph, Launch
from mjolnir.research.bench.points import Spot
from mjolnir.research.bench.pool import Sets

QUICK = 7
"""Replays by which ways are compared with one another."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A way made ready on the sets of a spot.

    Attributes:
        launch: enqueues one launch on the set of a number.
        error: how far off the results are, once it was launched on every set; see `Sets.error`.
    """

    launch: Launch
    error: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a contender.

    Attributes:
        layout: one of `pool.LAYOUTS`.
        label: what else was chosen, in words; with the layout it names the way.
        prepare: makes it ready.
        facts: members for the row.
    """

    layout: str
    label: str
    prepare: Callable[[Sets], Entry]
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Layout and label."""
        return f"{self.layout} {self.label}".strip()


class Contender(Protocol):
    """One kernel.

    Attributes:
        name: as in the rows.
    """

    @property
    def name(self) -> str: ...

    def choose(self, spot: Spot, heats: Heats) -> None:
        """Time the ways that there are, through `heats`.

        Raises:
            ImportError: the package is not installed.
        """


class DeviceLost(RuntimeError):
    """The device fails from here on; nothing after it can be timed in this process."""


@dataclass(frozen=True, slots=True)
class Best:
    """The fastest way so far, ready to be timed again."""

    us: float
    way: Way
    graph: Graph
    entry: Entry
    sets: int


class Heats:
    """The ways of one contender at one spot, timed one by one.

    Args:
        sets: makes or finds the sets of a layout.
        clock: times.

    Attributes:
        tried: microseconds by way, or what went wrong.
        best: the fastest way.
    """

    def __init__(self, sets: Callable[[str], Sets], clock: Clock) -> None:
        self._sets, self._clock = sets, clock
        self.tried: dict[str, float | str] = {}
        self.best: Best | None = None

    def time(self, way: Way, *, aside: bool = False) -> float | None:
        """Median microseconds of a way, None where it failed; kept as the best when it is, unless `aside`.

        Raises:
            ImportError: what it needs is not installed.
            DeviceLost: the device does not answer any more.
        """
        try:
            sets = self._sets(way.layout)
            entry = way.prepare(sets)
            count = len(sets.items)
            graph = self._clock.capture(entry.launch, count)
            us = median(self._clock.time(graph, count, QUICK))
        except ImportError:
            raise
        except Exception as error:
            self.tried[way.name] = brief(error)
            self._require_device(way.name)
            return None
        self.tried[way.name] = round(us, 3)
        if not aside and (self.best is None or us < self.best.us):
            self.best = Best(us, way, graph, entry, count)
        return us

    def all(self, ways: Iterable[Way]) -> None:
        """Time each of them."""
        for way in ways:
            self.time(way)

    def failures(self) -> str:
        """What went wrong, in words."""
        words = dict.fromkeys(text for text in self.tried.values() if isinstance(text, str))
        return "; ".join(words) or "there is no way to run it"

    def _require_device(self, name: str) -> None:
        try:
            self._clock.check()
        except Exception as error:
            raise DeviceLost(f"the device fails since {name} was tried: {brief(error)}") from error


def brief(error: BaseException) -> str:
    """An error in one short line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:240]
