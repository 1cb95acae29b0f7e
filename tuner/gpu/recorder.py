"""The recorder: times a whole knob grid on a GPU into a recording.

First what every replay rests on (the default, A/A pairs, rebuilds, canaries), then the grid, binary by binary in an
order that is random but fixed, so that a recording cut short by its time still covers the space. Settings whose binary
and plan are known at a point share that cell. Then, where it is asked for, further instances of the cells near the best
of their point, each on fresh inputs and graphs; a share of the time is kept for them. Everything is kept as it comes;
the same call goes on where the last one stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import resolve
from mjolnir.tuner.bench import Bench, BenchFailure, Outcome, Status, Timing
from mjolnir.tuner.contenders import contenders
from mjolnir.tuner.gpu import between
from mjolnir.tuner.gpu.grids import EXTENTS, Extent, in_order
from mjolnir.tuner.gpu.measure import CHAIN_SECONDS, Policy, chain_seconds, passes_of, sets_of
from mjolnir.tuner.gpu.plans import kv_bytes_of
from mjolnir.tuner.recorder import RecordingWriter, Source
from mjolnir.tuner.recording import RecordingError
from mjolnir.tuner.space import grid as full_factorial
from mjolnir.tuner.workload import Workload

PROCESSES = 3
"""How many processes the rebuilds are spread over."""

KEPT_SHARE = 0.35
"""The share of the time after the foundations that is kept for further instances."""

FOUNDATIONS_SHARE = 0.4
"""The share of the whole time after which no rebuild is begun, if there is one."""

RENEWED = 1000
"""Number of the first comparison that renews inputs for further instances; those before are rebuilds."""

ATTEMPTS = 3
"""How often a comparison of the default is asked for that fails, in a dirty window say."""

RECORDER_POLICY = Policy(empty_every=3)
GATE_SECONDS = 2.5e-3
"""What the gate of one cell is taken to cost: a replay, a comparison, a checksum of the KV pool."""

TROUBLES = 3
"""How many failures of the bench in a row end a sitting."""

REPORT_SECONDS = 5.0


class RecorderBench(Bench, Protocol):
    """What the recorder asks of a bench beyond `Bench`; `GpuBench` has it."""

    policy: Policy

    def measure_at(
        self,
        trial: int | None,
        setting: Setting,
        *,
        fault: str = "none",
        points: Sequence[int] | None = None,
        rounds: int | None = None,
    ) -> Outcome: ...

    def compare_default(self, number: int | None, rounds: int | None = None) -> tuple[Timing, ...]: ...

    def plans(self, setting: Setting) -> list[str]: ...

    def binary(self, setting: Setting) -> str: ...

    def renew_process(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Recorded:
    """What came of a sitting.

    Attributes:
        folder: the recording's folder.
        settings: settings in the recording.
        planned: settings of the grid.
        seconds: what the sitting took.
        reason: "complete", or why it stopped before ("time").
    """

    folder: Path
    settings: int
    planned: int
    seconds: float
    reason: str


def record(
    geometry: Geometry,
    placement: Placement,
    workload: Workload,
    folder: Path,
    name: str,
    extent: Extent = EXTENTS["coarse"],
    *,
    index: int = 0,
    budget: float | None = None,
    processes: int | None = None,
    cache: Path | None = None,
    say: Callable[[str], None] = print,
    bench: RecorderBench | None = None,
) -> Recorded:
    """Record a grid on CUDA device `index`.

    Args:
        geometry, placement, workload: the problem.
        folder: where the recording goes; one that was begun there, of the same name and environment, is continued.
        name: of the recording.
        extent: what is recorded.
        budget: seconds after which no setting is begun; what there is by then is a valid recording.
        processes: compile processes.
        cache: the compile cache, None = the user's.
        say: takes one line of progress.
        bench: measures; None = a `GpuBench`.

    Raises:
        DeviceUnavailable: no device, or the default cannot be measured on it.
        RecordingError: the folder holds another recording.
    """
    begin = time.monotonic()
    if bench is None:
        from mjolnir.tuner.gpu.gpu_bench import GpuBench

        bench = GpuBench(
            geometry, placement, workload, index=index, folder=cache, policy=RECORDER_POLICY, processes=processes
        )
    try:
        return _Sitting(bench, folder, name, extent, begin, budget, say).run()
    finally:
        bench.close()


class _Sitting:
    def __init__(
        self,
        bench: RecorderBench,
        folder: Path,
        name: str,
        extent: Extent,
        begin: float,
        budget: float | None,
        say: Callable[[str], None],
    ) -> None:
        self._bench, self._say, self._extent = bench, say, extent
        self._begin, self._budget = begin, math.inf if budget is None else budget
        self._default = resolve(Setting(), bench.geometry, bench.device)
        self._order = in_order(full_factorial(bench.geometry, bench.device, extent.values), self._default)
        source = Source(name, bench.device, bench.geometry, bench.placement, bench.workload, bench.environment)
        self._writer = RecordingWriter(folder, source, settings=len(self._order))
        self._said = -REPORT_SECONDS
        self._guesses = [cell_seconds(bench, point) for point in range(len(bench.workload.points))]
        self._seconds: dict[tuple[str, str, int], tuple[float, float]] = {}
        self._troubles = 0

    def run(self) -> Recorded:
        for setting in self._order:
            self._bench.submit(setting)
        left = estimate(self._bench, [s for s in self._order if s not in self._writer.done])
        self._say(
            f"recording {len(self._order)} settings at {len(self._bench.workload.points)} points "
            f"({len(self._writer.done)} are there already); about {left:.0f} s of measuring"
        )
        self._must_measure(self._default)
        self._foundations()
        try:
            reason = self._stages()
        except KeyboardInterrupt:
            reason = "interrupted"
        folder = self._writer.finish()
        done, seconds = len(self._writer.done), self._now()
        self._say(f"recorded {done} of {len(self._order)} settings in {seconds:.0f} s ({reason}): {folder}")
        return Recorded(folder, done, len(self._order), seconds, reason)

    def _now(self) -> float:
        return time.monotonic() - self._begin

    def _must_measure(self, setting: Setting) -> None:
        if setting in self._writer.done:
            return
        outcome = self._measure(setting)
        if outcome.status is not Status.MEASURED:
            raise RecordingError(
                f"the built-in default ({setting}) was not measured: {outcome.status}: {outcome.reason}"
            )
        self._writer.add(setting, outcome)

    def _foundations(self) -> None:
        """A/A pairs, canaries, and rebuilds over several processes."""
        if not self._writer.has_pairs:
            self._say(f"{self._extent.pairs} A/A pairs per point")
            self._writer.add_pairs(self._compare(None, self._extent.pairs))
        for fault in self._bench.canaries:
            if fault not in self._writer.canaries:
                outcome = self._bench.measure_at(None, self._default, fault=fault)
                self._say(f"canary {fault}: {outcome.status}: {outcome.reason}")
                self._writer.add_canary(fault, self._default, outcome)
        rebuilds = self._extent.rebuilds
        each = -(-rebuilds // PROCESSES)
        while (number := self._writer.rebuilds) < rebuilds:
            if number and self._now() > FOUNDATIONS_SHARE * self._budget:
                return
            if number and number % each == 0:
                self._bench.renew_process()
            self._writer.add_rebuild(self._compare(number))
            self._report(f"rebuild {number + 1} of {rebuilds}")

    def _compare(self, number: int | None, rounds: int | None = None) -> tuple[Timing, ...]:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._bench.compare_default(number, rounds)
            except BenchFailure as error:
                if attempt == ATTEMPTS:
                    raise
                self._say(f"{error}; once more")
        raise AssertionError("the last attempt returns or raises")

    def _stages(self) -> str:
        """The grid, then what is taken of its best; the reason why it ended."""
        until = self._budget
        if self._extent.instances and math.isfinite(until):
            until -= KEPT_SHARE * max(0.0, until - self._now())
        try:
            reason = self._cells(until)
            if reason in ("complete", "time") and self._extent.instances:
                near = self._near() if self._extent.between else []
                later = self._further()
                if later == "complete" and near:
                    later = self._between(near)
                reason = later if later != "complete" else reason
        except BenchFailure as error:
            return str(error)
        return reason

    def _cells(self, until: float) -> str:
        measured = 0
        todo = [setting for setting in self._order if setting not in self._writer.done]
        for number, setting in enumerate(todo):
            if self._now() > until:
                return "time"
            outcome = self._measure(setting)
            if self._is_trouble(setting, outcome):
                if self._troubles >= TROUBLES:
                    return f"{TROUBLES} failures of the bench in a row"
                continue
            measured += len(outcome.timings)
            if outcome.status is not Status.MEASURED:
                self._say(f"{setting}: {outcome.status}: {outcome.reason}")
            self._writer.add(setting, outcome)
            self._report(f"{number + 1} of {len(todo)} settings, {measured} cells", (number + 1) / len(todo))
        return "complete"

    def _is_trouble(self, setting: Setting, outcome: Outcome) -> bool:
        """Whether the bench failed and not the setting; counts how often that was in a row."""
        if outcome.status not in (Status.INFRASTRUCTURE, Status.DIRTY):
            self._troubles = 0
            return False
        self._troubles += 1
        self._say(f"{setting}: {outcome.status}: {outcome.reason}; it stays out of the recording")
        return True

    def _further(self) -> str:
        """Further instances of the cells near the best of their point."""
        cells, ratios = self._writer.table()
        near, settings = contenders(cells, ratios), list(self._writer.done)
        self._say(
            f"{self._extent.instances} further instances of {sum(map(len, near.values()))} cells "
            f"near the best, of {len(near)} settings"
        )
        for number in range(self._extent.instances):
            lacking = {
                place: [point for point in points if self._writer.further(int(cells[place, point])) <= number]
                for place, points in near.items()
            }
            todo = [(settings[place], points) for place, points in lacking.items() if points]
            if todo and self._now() <= self._budget:
                self._compare(RENEWED + number)  # all points get fresh inputs, which graphs must be captured for
            for setting, points in todo:
                if self._now() > self._budget:
                    return "time"
                outcome = self._bench.measure_at(None, setting, points=points)
                if self._is_trouble(setting, outcome):
                    if self._troubles >= TROUBLES:
                        return f"{TROUBLES} failures of the bench in a row"
                elif outcome.status is Status.MEASURED:
                    self._writer.add_further(outcome)
                else:
                    self._say(f"{setting}, further instance: {outcome.status}: {outcome.reason}")
                self._report(f"instance {number + 1} of {self._extent.instances}")
        return "complete"

    def _near(self) -> list[Setting]:
        """What `between` looks at, compiled meanwhile; nothing where that has been done."""
        if self._writer.noted("between"):
            return []
        cells, ratios = self._writer.table()
        settings, points = list(self._writer.done), self._largest()
        places = np.flatnonzero((cells >= 0).all(axis=1))
        near = between.chosen([settings[place] for place in places], ratios[cells[np.ix_(places, points)]])
        for setting in near:
            self._bench.submit(setting)
        return near

    def _largest(self) -> list[int]:
        """The points that read most, in order."""
        reads = [sum(point.contexts) for point in self._bench.workload.points]
        return sorted(sorted(range(len(reads)), key=lambda point: -reads[point])[: between.POINTS])

    def _between(self, near: Sequence[Setting]) -> str:
        points = self._largest()
        found: dict[Setting, list[float]] = {}
        for number, setting in enumerate(near):
            if self._now() > self._budget:
                return "time"
            outcome = self._bench.measure_at(None, setting, points=points)
            if outcome.status is Status.MEASURED:
                found[setting] = [ratio(timing) for timing in outcome.timings]
            self._report(f"{number + 1} of {len(near)} prefetch distances")
        summary = between.told(found, self._writer.rebuild_noise()[points].tolist(), points)
        self._writer.note(between=summary)
        for entry in summary["points"]:
            self._say(f"prefetch distances at point {entry['point']}: {entry['distances']}, noise {entry['noise']}")
        return "complete"

    def _measure(self, setting: Setting) -> Outcome:
        """Measure a setting where its binary and plan are not known yet."""
        binary, plans = self._bench.binary(setting), self._bench.plans(setting)
        keys = [(binary, plan, point) for point, plan in enumerate(plans)]
        new = [point for point, key in enumerate(keys) if not self._writer.has_cell(*key)]
        outcome = Outcome(Status.MEASURED, binary=binary, plans=tuple(plans))
        if new:
            outcome = self._bench.measure_at(None, setting, points=new)
        if outcome.status is not Status.MEASURED:
            return outcome
        guesses = self._guesses
        total = sum(guesses[point] for point in new)
        for point in new:
            share = guesses[point] / total
            gate, measure = (share * outcome.phases.get(name, 0.0) for name in ("gate", "measure"))
            self._seconds[keys[point]] = gate, measure
        # A campaign would have measured all points of this setting: its phases are those of all its cells.
        phases = [self._seconds.get(key, (GATE_SECONDS, guesses[point])) for point, key in enumerate(keys)]
        gate, measure = (sum(seconds) for seconds in zip(*phases, strict=True))
        return replace(outcome, phases={**outcome.phases, "gate": gate, "measure": measure})

    def _report(self, text: str, share: float = 0.0) -> None:
        now = self._now()
        if now - self._said < REPORT_SECONDS:
            return
        self._said = now
        left = f", about {now / share - now:.0f} s left" if share else ""
        self._say(f"{now:5.0f} s: {text}{left}")


def ratio(timing: Timing) -> float:
    """The candidate's time over the baseline's, both medians without the empty chain's."""
    candidate, baseline, empty = (float(np.median(part)) for part in (timing.candidate, timing.baseline, timing.empty))
    return (candidate - empty) / (baseline - empty)


def estimate(bench: RecorderBench, settings: Sequence[Setting]) -> float:
    """Seconds of measuring on an H200: every distinct cell's replays at the roof, and its gate.

    Settings with few splits of long contexts leave SMs idle and take longer than that.
    """
    plans: dict[tuple[int, int], list[str]] = {}
    cells: set[tuple[Setting, int, str]] = set()
    for setting in settings:
        shape = setting.ctas_per_sm, setting.max_splits
        if shape not in plans:
            plans[shape] = bench.plans(setting)
        binary = replace(setting, max_splits=int(setting.max_splits == 1))
        cells |= {(binary, point, plan) for point, plan in enumerate(plans[shape])}
    seconds = [cell_seconds(bench, point) for point in range(len(bench.workload.points))]
    return sum(seconds[point] for _, point, _ in cells)


def cell_seconds(bench: RecorderBench, point: int) -> float:
    """Seconds of one cell on an H200: candidate and default `rounds` times, the empty chain, a warm-up, the gate."""
    policy, geometry = bench.policy, bench.geometry
    read = kv_bytes_of(bench.workload.points[point], geometry)
    sets = sets_of(read, policy)
    chains = sets * passes_of(read, sets, policy)
    full, empty = chains * 1.15 * chain_seconds(read), chains * CHAIN_SECONDS
    rounds, empties = policy.rounds + policy.warmups, policy.rounds / policy.empty_every + policy.warmups
    return 2 * rounds * full + empties * empty + GATE_SECONDS
