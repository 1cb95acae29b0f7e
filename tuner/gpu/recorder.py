"""The recorder: times a whole knob grid on a GPU into a recording.

First what every replay rests on (the default, A/A pairs, rebuilds, canaries), then the grid, binary by binary in an
order that is random but fixed, so that a recording cut short by its time still covers the space. Settings whose binary
and plan are known at a point share that cell. Then, where it is asked for, further instances of the cells near the best
of their point, each on fresh inputs and graphs; a share of the time is kept for them. Everything is kept as it comes;
the same call goes on where the last one stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import resolve
from mjolnir.tuner.bench import BenchFailure, Outcome, Status
from mjolnir.tuner.gpu.cost import GATE_SECONDS, cell_seconds, estimate
from mjolnir.tuner.gpu.grids import EXTENTS, Extent, in_order
from mjolnir.tuner.gpu.measure import Policy
from mjolnir.tuner.gpu.second_look import further, look_between, prepare_between
from mjolnir.tuner.gpu.sitting import Broken, RecorderBench, Sitting
from mjolnir.tuner.recorder import RecordingWriter, Source
from mjolnir.tuner.recording import RecordingError
from mjolnir.tuner.space import grid as full_factorial
from mjolnir.tuner.workload import Workload

RECORDER_POLICY = Policy(empty_every=3)

PROCESSES = 3
"""How many processes the rebuilds are spread over."""

KEPT_SHARE = 0.35
"""The share of the time after the foundations that is kept for further instances."""

FOUNDATIONS_SHARE = 0.4
"""The share of the whole time after which no rebuild is begun, if there is one."""


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
        return _Recorder(bench, folder, name, extent, begin, budget, say).run()
    finally:
        bench.close()


class _Recorder:
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
        self._default = resolve(Setting(), bench.geometry, bench.device)
        self._order = in_order(full_factorial(bench.geometry, bench.device, extent.values), self._default)
        source = Source(name, bench.device, bench.geometry, bench.placement, bench.workload, bench.environment)
        self._writer = RecordingWriter(folder, source, settings=len(self._order))
        self._sitting = Sitting(bench, self._writer, begin, budget, say)
        self._guesses = [cell_seconds(bench, point) for point in range(len(bench.workload.points))]
        self._seconds: dict[tuple[str, str, int], tuple[float, float]] = {}

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
        except (Broken, BenchFailure) as error:
            reason = str(error)
        except KeyboardInterrupt:
            reason = "interrupted"
        folder = self._writer.finish()
        done, seconds = len(self._writer.done), self._sitting.now()
        self._say(f"recorded {done} of {len(self._order)} settings in {seconds:.0f} s ({reason}): {folder}")
        return Recorded(folder, done, len(self._order), seconds, reason)

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
        sitting, rebuilds = self._sitting, self._extent.rebuilds
        if not self._writer.has_pairs:
            self._say(f"{self._extent.pairs} A/A pairs per point")
            self._writer.add_pairs(sitting.compare(None, self._extent.pairs))
        for fault in self._bench.canaries:
            if fault not in self._writer.canaries:
                outcome = self._bench.measure_at(None, self._default, fault=fault)
                self._say(f"canary {fault}: {outcome.status}: {outcome.reason}")
                self._writer.add_canary(fault, self._default, outcome)
        each = -(-rebuilds // PROCESSES)
        while (number := self._writer.rebuilds) < rebuilds:
            if number and sitting.now() > FOUNDATIONS_SHARE * sitting.budget:
                return
            if number and number % each == 0:
                self._bench.renew_process()
            self._writer.add_rebuild(sitting.compare(number))
            sitting.report(f"rebuild {number + 1} of {rebuilds}")

    def _stages(self) -> str:
        """The grid, then the second look; returns "complete", or "time" where that was over.

        Raises:
            Broken, BenchFailure: the bench failed.
        """
        sitting, instances = self._sitting, self._extent.instances
        kept = KEPT_SHARE if instances else 0.0
        reasons = [self._cells((1 - kept) * sitting.budget + kept * sitting.now())]
        if instances:
            between = prepare_between(sitting) if self._extent.between else []
            reasons.append(further(sitting, instances))
            if between:
                reasons.append(look_between(sitting, between))
        return "time" if "time" in reasons else "complete"

    def _cells(self, until: float) -> str:
        """The grid, until so many seconds of the sitting; returns as `_stages` does."""
        measured = 0
        todo = [setting for setting in self._order if setting not in self._writer.done]
        for number, setting in enumerate(todo):
            if self._sitting.now() > until:
                return "time"
            outcome = self._measure(setting)
            if self._sitting.at_fault(setting, outcome):
                continue
            measured += len(outcome.timings)
            if outcome.status is not Status.MEASURED:
                self._say(f"{setting}: {outcome.status}: {outcome.reason}")
            self._writer.add(setting, outcome)
            self._sitting.report(f"{number + 1} of {len(todo)} settings, {measured} cells", (number + 1) / len(todo))
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
