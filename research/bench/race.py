"""The run of the kernel bench: every contender at every spot, and the kernel in its chain.

First each contender finds its fastest way; then those are timed for the rows, by turns: a card that draws all the power
that it may have grows slower from second to second, and nobody is to be timed later than the others.

What a contender cannot run is told in `not_run` under its name, or under its name and the spot; nothing is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Placement
from mjolnir.kernel.rule import built_in
from mjolnir.kernel.sources import kernel_hash
from mjolnir.research.bench import rows as files
from mjolnir.research.bench import table
from mjolnir.research.bench.peers.contender import Best, Contender, DeviceLost, Heats, brief
from mjolnir.research.bench.points import EIGHT, MAIN, Spot, spot
from mjolnir.research.bench.rows import CHAIN, HEAD_MAJOR, TOKEN_MAJOR
from mjolnir.research.bench.tuning import Choice, search
from mjolnir.research.tell import tell

if TYPE_CHECKING:
    from mjolnir.research.bench.chain import Served
    from mjolnir.research.bench.clock import Clock
    from mjolnir.research.bench.pool import Pool, Sets
    from mjolnir.research.bench.tuning import Tuned

REST = "the rest"
"""Names in `not_run` what came after the device had failed."""

TURNS = 4
"""Turns of each contender for a row, forth and back (A-B-B-A)."""

KERNELS = ("mjolnir", "mjolnir-default", "flashinfer-tc", "flashinfer-xqa", "fa3", "vllm-triton", "ceiling")
"""Those of the rows; `CHAIN` beside them is the kernel in the chain in which it is served."""


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked for.

    Attributes:
        geometries, points, kernels: what is timed; empty means all.
        tuned: a file of settings, see `tuning.read`.
        tune: settings that a search may time at a spot; 0 = none.
        repeats: replays of a row.
        append: result files whose rows are kept where they are not measured anew.
        merge_only: time nothing.
        minutes: no spot is begun after this long; 0 = no limit.
        out: the result file; without it the first of `append`.
    """

    geometries: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    tuned: Path | None = None
    tune: int = 0
    repeats: int = 30
    append: tuple[Path, ...] = ()
    merge_only: bool = False
    minutes: float = 0.0
    out: Path | None = None

    @property
    def target(self) -> Path | None:
        """Where results go."""
        return self.out or next(iter(self.append), None)

    def wants(self, kernel: str) -> bool:
        """Whether rows of `kernel` are asked for."""
        return not self.kernels or kernel in self.kernels


@dataclass(slots=True)
class Bench:
    """All that a run needs of the machine; tests put others in its place.

    Attributes:
        device: facts of the card.
        contenders: what is timed, in order.
        pool: KV sets.
        clock: times.
        tuned: settings of `mjolnir`.
        served: makes the chain of a spot.
        versions: of what times depend on.
        began: when, on the monotonic clock; what was compiled ahead counts into the minutes.
    """

    device: Device
    contenders: Sequence[Contender]
    pool: Pool
    clock: Clock
    tuned: Tuned
    served: Callable[[Spot], Served]
    versions: dict[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)


def run(
    spots: Sequence[Spot],
    options: Options,
    bench: Bench,
    not_run: dict[str, str],
    keep: Callable[[Sequence[files.Row]], None] = lambda rows: None,
) -> list[files.Row]:
    """Time `spots`.

    Args:
        spots: in order.
        options: what is asked for.
        bench: with what.
        not_run: gets what was not timed, and why.
        keep: called with all rows after each spot, so that what was measured outlives what comes after.
    """
    found: list[files.Row] = []
    try:
        for place in spots:
            begin = time.monotonic()
            if options.minutes and begin - bench.began > 60 * options.minutes:
                not_run[str(place)] = f"the {options.minutes:g} minutes were over"
                continue
            _race(place, options, bench, found, not_run)
            bench.clock.tidy()
            tell(f"{place}: {time.monotonic() - begin:.1f} s")
            keep(found)
        served = spot(MAIN, *EIGHT[0])
        if options.wants(CHAIN) and served in spots:
            found += _served(served, options, bench, not_run)
    except DeviceLost as error:
        not_run[REST] = str(error)
        tell(f"stopped: {error}")
    return found


class NoWay(Exception):
    """A contender has no way to run at a spot; the message says why."""


@dataclass(slots=True)
class Finalist:
    """A contender at a spot.

    Attributes:
        contender: which.
        heats: the ways that it tried.
        samples: microseconds of the fastest one, of all turns so far.
    """

    contender: Contender
    heats: Heats
    samples: list[float] = field(default_factory=list)

    @property
    def best(self) -> Best:
        """The fastest way.

        Raises:
            NoWay: there is none.
        """
        if self.heats.best is None:
            raise NoWay(self.heats.failures())
        return self.heats.best

    def turn(self, clock: Clock, repeats: int) -> None:
        """Time the fastest way `repeats` times more."""
        self.samples += clock.time(self.best.graph, self.best.sets, repeats)

    def row(self, place: Spot) -> files.Row:
        """The row, once all turns are taken; looks at what the launches gave."""
        best, name = self.best, self.contender.name
        facts = {"way": best.way.label, **best.way.facts, "tried": self.heats.tried}
        if name.startswith("mjolnir"):
            facts["kernel_hash"] = short_hash()
        if name == "ceiling":
            overlapped = [us for way, us in self.heats.tried.items() if way.endswith(" pdl") and isinstance(us, float)]
            facts["us_pdl"] = min(overlapped, default=None)
        return files.make(name, place, best.way.layout, self.samples, best.entry.error(), **facts)


def _race(place: Spot, options: Options, bench: Bench, found: list[files.Row], not_run: dict[str, str]) -> None:
    """Add a row for each contender at one spot to `found`; what gives none is told in `not_run`."""
    kept: dict[str, Sets] = {}

    def sets(layout: str) -> Sets:
        if layout not in kept:
            kept[layout] = bench.pool.sets(place, layout)
        return kept[layout]

    def each(act: Callable[[Finalist], None], *, backwards: bool = False) -> None:
        for finalist in reversed(finalists) if backwards else finalists:
            _attempt(finalist, place, bench.clock, not_run, act)

    def finish(finalist: Finalist) -> None:
        found.append(finalist.row(place))
        tell(table.line(found[-1]))

    finalists = [Finalist(contender, Heats(sets, bench.clock)) for contender in bench.contenders]
    each(lambda finalist: finalist.contender.choose(place, finalist.heats))
    for turn in range(TURNS):
        repeats = (turn + 1) * options.repeats // TURNS - turn * options.repeats // TURNS
        each(partial(Finalist.turn, clock=bench.clock, repeats=repeats), backwards=turn % 2 == 1)
    each(finish)


def _attempt(
    finalist: Finalist, place: Spot, clock: Clock, not_run: dict[str, str], act: Callable[[Finalist], None]
) -> None:
    """Let a contender that has not failed yet do something; what goes wrong is told in `not_run`.

    Raises:
        DeviceLost: it is the device that fails.
    """
    contender = finalist.contender
    name = _name(contender, place)
    if name in not_run or contender.name in not_run:
        return
    try:
        act(finalist)
        return
    except DeviceLost:
        raise
    except ImportError as error:
        name = contender.name
        not_run[name] = brief(error)
    except NoWay as error:
        not_run[name] = str(error)
    except Exception as error:
        not_run[name] = brief(error)
        _require(clock, name)
    tell(f"not run: {name}: {not_run[name]}")


def _name(contender: Contender, place: Spot) -> str:
    """As `rows.name_of` names the row that there would be."""
    layout = getattr(contender, "layout", None)
    return f"{contender.name} {place}" + (f" {layout}" if layout == TOKEN_MAJOR else "")


def _require(clock: Clock, name: str) -> None:
    try:
        clock.check()
    except Exception as error:
        raise DeviceLost(f"the device fails since {name}: {brief(error)}") from error


def _served(place: Spot, options: Options, bench: Bench, not_run: dict[str, str]) -> list[files.Row]:
    """`mjolnir` and `mjolnir-default` in the chain in which they are served."""
    name = f"mjolnir {place} {CHAIN}"
    try:
        rule = built_in(place.geometry, bench.device, place.batch)
        choice = bench.tuned.choice(place, Placement(), CHAIN)
        served = bench.served(place)
        if options.tune and choice.origin != "file":
            first = [choice.setting, rule]
            best = search(first, place.geometry, bench.device, served.quick, options.tune)
            choice = Choice(best, "search") if best else choice
        settings = {"mjolnir": choice, "mjolnir-default": Choice(rule, "built-in rule")}
        samples = served.samples([one.setting for one in settings.values()], options.repeats)
        dirty = {"dirty": served.window["dirty"]} if served.window.get("dirty") else {}
        made: list[files.Row] = []
        for (kernel_name, one), times in zip(settings.items(), samples, strict=True):
            facts = {"setting": one.setting.as_dict(), "setting_from": one.origin, "kernel_hash": short_hash(), **dirty}
            error = served.error(one.setting)
            made.append(files.make(kernel_name, place, HEAD_MAJOR, times, error, CHAIN, **facts))
            tell(table.line(made[-1]))
        return made
    except Exception as error:
        not_run[name] = brief(error)
        tell(f"not run: {name}: {not_run[name]}")
        _require(bench.clock, name)
        return []


def short_hash() -> str:
    """The kernel's sources, as rows name them."""
    return str(kernel_hash())[:12]
