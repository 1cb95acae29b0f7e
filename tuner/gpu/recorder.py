"""The recorder: times a whole knob grid on a GPU into a recording.

First what every replay rests on (the default, A/A pairs, rebuilds, canaries), then the grid, binary by binary in an
order that is random but fixed, so that a recording cut short by its time still covers the space. Settings whose binary
and plan are known at a point share that cell. Everything is on disk as it comes; the same call goes on where the last
one stopped.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import resolve
from mjolnir.tuner.bench import Bench, Outcome, Status, Timing
from mjolnir.tuner.gpu.measure import CHAIN_SECONDS, Policy, chain_seconds, passes_of, sets_of
from mjolnir.tuner.gpu.plans import kv_bytes_of
from mjolnir.tuner.recorder import RecordingWriter, Source
from mjolnir.tuner.recording import RecordingError
from mjolnir.tuner.space import grid as full_factorial
from mjolnir.tuner.workload import Workload

COARSE: Mapping[str, Sequence[int]] = {
    "ctas_per_sm": (1, 2, 3),
    "kv_stages": (0, 2, 4, 6),
    "consumer_warps": (4, 8),
    "max_splits": (0, 1, 2, 4, 8, 16, 32, 64, 128),
    "pdl": (0, 1),
    "l2_prefetch": (0, 1, 4),
    "kv_evict_first": (0, 1),
}
"""The coarse grid: on an H200, with what cannot fit left out, 156 combinations of baked knobs, each with a merge and
without (312 binaries), and 1404 settings."""

PAIRS = 200
REBUILDS = 10
PROCESSES = 3
"""A/A pairs per point, rebuilds of the default, and how many processes the rebuilds are spread over."""

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
    grid: Mapping[str, Sequence[int]] | None = None,
    *,
    index: int = 0,
    budget: float | None = None,
    processes: int | None = None,
    pairs: int = PAIRS,
    rebuilds: int = REBUILDS,
    cache: Path | None = None,
    say: Callable[[str], None] = print,
    bench: RecorderBench | None = None,
) -> Recorded:
    """Record a grid on CUDA device `index`.

    Args:
        geometry, placement, workload: the problem.
        folder: where the recording goes; one that was begun there, of the same name and environment, is continued.
        name: of the recording.
        grid: values by knob, `COARSE` when None; the built-in default is always recorded.
        budget: seconds after which no setting is begun; what there is by then is a valid recording.
        processes: compile processes.
        pairs, rebuilds: A/A pairs per point and rebuilds.
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
        return _Sitting(bench, folder, name, grid or COARSE, begin, budget, say).run(pairs, rebuilds)
    finally:
        bench.close()


class _Sitting:
    def __init__(
        self,
        bench: RecorderBench,
        folder: Path,
        name: str,
        grid: Mapping[str, Sequence[int]],
        begin: float,
        budget: float | None,
        say: Callable[[str], None],
    ) -> None:
        self._bench, self._say = bench, say
        self._begin, self._budget = begin, budget
        self._default = resolve(Setting(), bench.geometry, bench.device)
        self._order = in_order(full_factorial(bench.geometry, bench.device, grid), self._default)
        source = Source(name, bench.device, bench.geometry, bench.placement, bench.workload, bench.environment)
        self._writer = RecordingWriter(folder, source, settings=len(self._order))
        self._said = -REPORT_SECONDS
        self._seconds: dict[tuple[str, str, int], tuple[float, float]] = {}

    def run(self, pairs: int, rebuilds: int) -> Recorded:
        for setting in self._order:
            self._bench.submit(setting)
        left = estimate(self._bench, [s for s in self._order if s not in self._writer.done])
        self._say(
            f"recording {len(self._order)} settings at {len(self._bench.workload.points)} points "
            f"({len(self._writer.done)} are there already); about {left:.0f} s of measuring"
        )
        self._must_measure(self._default)
        self._foundations(pairs, rebuilds)
        reason = self._cells()
        folder = self._writer.finish()
        seconds = time.monotonic() - self._begin
        done = len(self._writer.done)
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

    def _foundations(self, pairs: int, rebuilds: int) -> None:
        """A/A pairs, canaries, and rebuilds over several processes."""
        if not self._writer.has_pairs:
            self._say(f"{pairs} A/A pairs per point")
            self._writer.add_pairs(self._bench.compare_default(None, pairs))
        for fault in self._bench.canaries:
            if fault not in self._writer.canaries:
                outcome = self._bench.measure_at(None, self._default, fault=fault)
                self._say(f"canary {fault}: {outcome.status}: {outcome.reason}")
                self._writer.add_canary(fault, self._default, outcome)
        each = -(-rebuilds // PROCESSES)
        while self._writer.rebuilds < rebuilds:
            number = self._writer.rebuilds
            if number and number % each == 0:
                self._bench.renew_process()
            self._writer.add_rebuild(self._bench.compare_default(number))
            self._report(f"rebuild {number + 1} of {rebuilds}")

    def _cells(self) -> str:
        troubles, measured = 0, 0
        todo = [setting for setting in self._order if setting not in self._writer.done]
        for number, setting in enumerate(todo):
            if self._budget is not None and time.monotonic() - self._begin > self._budget:
                return "time"
            outcome = self._measure(setting)
            if outcome.status in (Status.INFRASTRUCTURE, Status.DIRTY):
                troubles += 1
                self._say(f"{setting}: {outcome.status}: {outcome.reason}; it stays out of the recording")
                if troubles >= TROUBLES:
                    return f"{TROUBLES} failures of the bench in a row"
                continue
            troubles = 0
            measured += len(outcome.timings)
            if outcome.status is not Status.MEASURED:
                self._say(f"{setting}: {outcome.status}: {outcome.reason}")
            self._writer.add(setting, outcome)
            self._report(f"{number + 1} of {len(todo)} settings, {measured} cells", (number + 1) / len(todo))
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
        guesses = [cell_seconds(self._bench, point) for point in range(len(plans))]
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
        now = time.monotonic() - self._begin
        if now - self._said < REPORT_SECONDS:
            return
        self._said = now
        left = f", about {now / share - now:.0f} s left" if share else ""
        self._say(f"{now:5.0f} s: {text}{left}")


def in_order(settings: Sequence[Setting], default: Setting) -> list[Setting]:
    """The default first, then all settings by binary, binaries in an order that is random but always the same."""

    def place(setting: Setting) -> tuple[str, int]:
        baked = {name: value for name, value in setting.as_dict().items() if name != "max_splits"}
        return hashlib.sha256(repr(baked).encode()).hexdigest(), setting.max_splits

    return [default, *sorted(set(settings) - {default}, key=place)]


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
    return sum(cell_seconds(bench, point) for _, point, _ in cells)


def cell_seconds(bench: RecorderBench, point: int) -> float:
    """Seconds of one cell on an H200: candidate and default `rounds` times, the empty chain, a warm-up, the gate."""
    policy, geometry = bench.policy, bench.geometry
    read = kv_bytes_of(bench.workload.points[point], geometry)
    sets = sets_of(read, policy)
    chains = sets * passes_of(read, sets, policy)
    full, empty = chains * 1.15 * chain_seconds(read), chains * CHAIN_SECONDS
    rounds, empties = policy.rounds + policy.warmups, policy.rounds / policy.empty_every + policy.warmups
    return 2 * rounds * full + empties * empty + GATE_SECONDS
