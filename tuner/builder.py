"""Putting a recording together: outcomes of a bench in, `Recording` out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import resolve
from mjolnir.tuner.bench import Outcome, Status, Timing
from mjolnir.tuner.cells import ARRAYS
from mjolnir.tuner.recording import Recording, RecordingError
from mjolnir.tuner.workload import Workload


@dataclass(frozen=True, slots=True)
class Source:
    """What a recording is of: the facts that a bench knows of itself."""

    name: str
    device: Device
    geometry: Geometry
    placement: Placement
    workload: Workload
    environment: Mapping[str, Any]


@dataclass(slots=True)
class _Cell:
    timing: Timing
    plan: int
    window: int
    chunk: int


@dataclass(slots=True)
class RecordingBuilder:
    """Collects outcomes in memory.

    Attributes:
        source: what the recording is of.
        done: the settings added so far, resolved, with their place.
        rebuilds: number of rebuilds added so far.
    """

    source: Source
    done: dict[Setting, int] = field(default_factory=dict)
    _rows: list[tuple[Status, int, int, int]] = field(default_factory=list)
    _reasons: dict[int, str] = field(default_factory=dict)
    _binaries: dict[str, int] = field(default_factory=dict)
    _compile_ms: list[int] = field(default_factory=list)
    _places: list[list[int]] = field(default_factory=list)
    _cells: list[_Cell] = field(default_factory=list)
    _known: dict[tuple[str, str, int], int] = field(default_factory=dict)
    _further: dict[int, list[int]] = field(default_factory=dict)
    _windows: dict[str, int] = field(default_factory=dict)
    _chunks: list[dict[str, Any]] = field(default_factory=list)
    _canaries: list[dict[str, Any]] = field(default_factory=list)
    _pairs: tuple[Timing, ...] = ()
    _rebuilds: list[tuple[Timing, ...]] = field(default_factory=list)

    @property
    def rebuilds(self) -> int:
        """Rebuilds added so far."""
        return len(self._rebuilds)

    @property
    def has_pairs(self) -> bool:
        """Whether the A/A pairs are there."""
        return bool(self._pairs)

    @property
    def canaries(self) -> tuple[str, ...]:
        """The faults whose gate outcome is there."""
        return tuple(canary["fault"] for canary in self._canaries)

    def open_chunk(self, **facts: Any) -> None:
        """Begin a sitting; what is added from here on belongs to it."""
        self._chunks.append(dict(facts))

    def has_cell(self, binary: str, plan: str, point: int) -> bool:
        """Whether a binary has been timed at a point with this plan: then another setting with both need not be."""
        return (binary, plan, point) in self._known

    def add(self, setting: Setting, outcome: Outcome) -> None:
        """Add what `Bench.measure` said of a setting.

        Args:
            setting: which; folded to its resolved form.
            outcome: with `plans` for all points when measured, and timings for those that `has_cell` does not know.

        Raises:
            RecordingError: the setting is there already, or a point has neither timing nor known cell.
        """
        resolved = resolve(setting, self.source.geometry, self.source.device)
        if resolved in self.done:
            raise RecordingError(f"{resolved} was added already")
        points = len(self.source.workload.points)
        places = self._find_cells(resolved, outcome) if outcome.status is Status.MEASURED else [-1] * points
        binary = self._binary(outcome) if outcome.binary else -1
        gate, measure = (round(1e3 * outcome.phases.get(name, 0.0)) for name in ("gate", "measure"))
        place = len(self._rows)
        self.done[resolved] = place
        self._rows.append((outcome.status, binary, gate, measure))
        self._places.append(places)
        if outcome.reason:
            self._reasons[place] = outcome.reason[:500]

    def _find_cells(self, setting: Setting, outcome: Outcome) -> list[int]:
        timed = {timing.point: timing for timing in outcome.timings}
        points = len(self.source.workload.points)
        if len(outcome.plans) != points or not outcome.binary:
            raise RecordingError(
                f"{setting}: a measured outcome needs its binary and a plan for each of {points} points"
            )
        keys = [(outcome.binary, plan, point) for point, plan in enumerate(outcome.plans)]
        for point, key in enumerate(keys):
            if point not in timed and key not in self._known:
                raise RecordingError(f"{setting}: point {point} was not timed, and no equal binary and plan was")
        for point, key in enumerate(keys):
            if key not in self._known:
                self._known[key] = self._new_cell(timed[point], key[1])
        return [self._known[key] for key in keys]

    def _new_cell(self, timing: Timing, plan: str) -> int:
        self._cells.append(_Cell(timing, int(plan, 16), self._window(timing.window), self._chunk()))
        return len(self._cells) - 1

    def further(self, cell: int) -> int:
        """How many further instances a cell of `table` has."""
        return len(self._further.get(cell, ()))

    def add_further(self, outcome: Outcome) -> None:
        """Add one more instance of cells that are there: taken on fresh inputs, with graphs captured anew.

        Args:
            outcome: measured, with `plans` for all points, and timings of known cells.

        Raises:
            RecordingError: it was not measured, or no setting with such a cell has been added.
        """
        keys = [(outcome.binary, outcome.plans[timing.point], timing.point) for timing in outcome.timings]
        if outcome.status is not Status.MEASURED or any(key not in self._known for key in keys):
            raise RecordingError(
                f"{outcome.status}, binary {outcome.binary}: no further instance of cells that are there"
            )
        for key, timing in zip(keys, outcome.timings, strict=True):
            self._further.setdefault(self._known[key], []).append(self._new_cell(timing, key[1]))

    def table(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """The cells of each setting, in the order of `done`, at each point, -1 where it has none; and of each cell the
        ratio of its time to the default's, both without the empty chain."""
        candidate, baseline, empty = (
            np.median([getattr(cell.timing, name) for cell in self._cells], axis=1)
            for name in ("candidate", "baseline", "empty")
        )
        return np.array(self._places), (candidate - empty) / (baseline - empty)

    def rebuild_noise(self) -> npt.NDArray[np.float64]:
        """Root mean square of the rebuilds' logarithms, by point."""
        chains = [
            [np.median([t.candidate, t.baseline], axis=1) - np.median(t.empty) for t in rebuild]
            for rebuild in self._rebuilds
        ]
        logs = np.log(np.array(chains))
        found: npt.NDArray[np.float64] = np.sqrt(np.square(logs[..., 0] - logs[..., 1]).mean(axis=0))
        return found

    def _binary(self, outcome: Outcome) -> int:
        if outcome.binary not in self._binaries:
            self._binaries[outcome.binary] = len(self._binaries)
            self._compile_ms.append(round(1e3 * float(outcome.facts.get("compile_seconds", 0.0))))
        return self._binaries[outcome.binary]

    def _window(self, window: Mapping[str, Any]) -> int:
        return self._windows.setdefault(json.dumps(dict(window), sort_keys=True), len(self._windows))

    def _chunk(self) -> int:
        if not self._chunks:
            self.open_chunk()
        return len(self._chunks) - 1

    def add_pairs(self, timings: Sequence[Timing]) -> None:
        """Add the A/A pairs: the default against itself, one timing per point."""
        self._pairs = self._by_point(timings)

    def add_rebuild(self, timings: Sequence[Timing]) -> None:
        """Add an A/A comparison of two builds in a fresh process, one timing per point."""
        self._rebuilds.append(self._by_point(timings))

    def _by_point(self, timings: Sequence[Timing]) -> tuple[Timing, ...]:
        if [timing.point for timing in timings] != list(range(len(self.source.workload.points))):
            raise RecordingError("an A/A comparison needs one timing per point, in order")
        return tuple(timings)

    def add_canary(self, fault: str, setting: Setting, outcome: Outcome) -> None:
        """Add what the gate said of a faulty kernel."""
        self._canaries.append(
            {
                "fault": fault,
                "setting": setting.as_dict(),
                "status": str(outcome.status),
                "reason": outcome.reason,
                "correctness": dict(outcome.correctness),
            }
        )

    def build(self) -> Recording:
        """The recording.

        Raises:
            RecordingError: something is missing, or the timings are not of equal length.
        """
        if not self._cells or not self._pairs or not self._rebuilds:
            raise RecordingError("a recording needs measured settings, the A/A pairs and at least one rebuild")
        source = self.source
        return Recording(
            name=source.name,
            device=source.device,
            geometry=source.geometry,
            placement=source.placement,
            workload=source.workload,
            environment=source.environment,
            binaries=tuple(self._binaries),
            reasons=dict(self._reasons),
            windows=tuple(json.loads(text) for text in self._windows),
            chunks=tuple(self._chunks),
            canaries=tuple(self._canaries),
            arrays=self._arrays(),
        )

    def _by_instance(self) -> npt.NDArray[np.int64]:
        """The cells by instance, setting and point; see `cells.ARRAYS`."""
        first = np.array(self._places)
        count = 1 + max(map(len, self._further.values()), default=0)
        copies = np.tile(np.arange(len(self._cells)), (count, 1))
        for cell, further in self._further.items():
            own = [cell, *further]
            copies[:, cell] = [own[number % len(own)] for number in range(count)]
        return np.where(first >= 0, copies[:, first], -1)

    def note(self, **facts: Any) -> None:
        """Add facts to the sitting at hand."""
        self._chunk()
        self._chunks[-1].update(facts)

    def noted(self, name: str) -> bool:
        """Whether a sitting has a fact of this name."""
        return any(name in chunk for chunk in self._chunks)

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        statuses = list(Status)
        columns: dict[str, Any] = {
            "setting": [list(setting.as_dict().values()) for setting in self.done],
            "setting_status": [statuses.index(row[0]) for row in self._rows],
            "setting_binary": [row[1] for row in self._rows],
            "setting_ms": [row[2:] for row in self._rows],
            "binary_ms": self._compile_ms,
            "cell": self._by_instance(),
            "cell_plan": [cell.plan for cell in self._cells],
            "cell_window": [cell.window for cell in self._cells],
            "cell_chunk": [cell.chunk for cell in self._cells],
        }
        for name in ("candidate", "baseline", "empty"):
            columns[name] = [getattr(cell.timing, name) for cell in self._cells]
            columns[f"pair_{name}"] = [getattr(timing, name) for timing in self._pairs]
            columns[f"rebuild_{name}"] = [
                [getattr(t, name) for t in point] for point in zip(*self._rebuilds, strict=True)
            ]
        arrays = {}
        for name, (dtype, _) in ARRAYS.items():
            try:
                arrays[name] = np.array(columns[name], dtype=dtype)
            except (ValueError, OverflowError) as error:
                raise RecordingError(f"{name}: timings of unequal length, or out of range ({error})") from error
        return arrays
