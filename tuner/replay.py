"""A bench that draws from a recording: campaigns without a GPU, on a simulated clock.

**Times.** A replayed sample is the recorded cell's median times an A/A residual. Residuals are the recorded A/A pairs
over their medians, drawn in blocks of neighbouring rounds (a circular block bootstrap, Politis and Romano 1992), both
arms of a pair together, so that drift and common noise stay. A fresh process adds a bias to each arm that it builds
anew: the logarithm of a recorded rebuild, the same rebuild at all points. The baseline is the reference and has none.
Where cells were recorded on several instances, a trial and an instance each draw one of them, the same for all points
and arms, as all were timed against the same default there; what a setting truly takes is the mean over them.

**Clock.** Whole microseconds. A compile begins when a worker of the pool is free and takes what was recorded; a trial
waits for its compile, then takes its recorded gate and measuring time. All draws depend on the seed and on the number
of the trial, A/A instance or process, never on what was asked before.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import FAULTS, Setting
from mjolnir.kernel.variant import resolve
from mjolnir.tuner.bench import CANARIES, RACED, Instance, InstanceRequest, OneByOne, Outcome, Race, Status, Timing
from mjolnir.tuner.recording import Recording
from mjolnir.tuner.statistics import Weights
from mjolnir.tuner.workload import Workload

Floats = npt.NDArray[np.float64]

BLOCK = 4
"""Rounds of one bootstrap block."""

PROCESS_START = 4.0
"""Simulated seconds until a fresh process is ready to time: interpreter, CUDA context, loaded binaries, KV pools."""

SAMPLE_REPEATS = 40
"""Simulated chain runs behind one sample of an instance or an A/A comparison."""

TRIAL, NOISE, ROUNDS, PROCESS = range(4)
"""What a random stream is for; part of its seed."""


class ReplayBench(OneByOne):
    """`Bench` over a recording.

    Args:
        recording: what is replayed.
        seed: of all noise.
        workers: processes of the simulated compile pool.
    """

    simulated = True

    def __init__(self, recording: Recording, seed: int = 0, *, workers: int = 4) -> None:
        self.recording = recording
        self._seed = seed
        self._clock = 0
        self._free = [0] * workers
        self._ready: dict[int, int] = {}
        arrays = recording.arrays
        self._cell_candidate = np.median(arrays["candidate"], axis=1)
        self._cell_baseline = np.median(arrays["baseline"], axis=1)
        self._cell_empty = np.median(arrays["empty"], axis=1)
        self._residuals = (_residual(arrays["pair_candidate"]), _residual(arrays["pair_baseline"]))
        self._pair_level = np.median(arrays["pair_baseline"], axis=1)
        self._empty_level = np.median(arrays["pair_empty"], axis=1)
        self._rebuilds = _rebuild_logs(arrays)
        self._points = np.arange(len(recording.workload.points))
        self._windows = [{**window, "replayed": True} for window in recording.windows]
        self._gate = {canary["fault"]: canary for canary in recording.canaries}

    @property
    def device(self) -> Device:
        """See `Bench`."""
        return self.recording.device

    @property
    def geometry(self) -> Geometry:
        """See `Bench`."""
        return self.recording.geometry

    @property
    def placement(self) -> Placement:
        """See `Bench`."""
        return self.recording.placement

    @property
    def workload(self) -> Workload:
        """See `Bench`."""
        return self.recording.workload

    @property
    def environment(self) -> Mapping[str, Any]:
        """See `Bench`; what was recorded, and the recording's name."""
        return {**self.recording.environment, "recording": self.recording.name}

    @property
    def deviation(self) -> float:
        """Standard deviation of the recorded rebuilds' values, a fraction, the noisiest bucket's: for `estimate`."""
        weights = Weights(self.workload)
        values = [[weights.of_bucket(bucket, row) for row in self._rebuilds] for bucket in self.workload.buckets]
        return float(np.sqrt(np.mean(np.square(values), axis=1)).max())

    @property
    def trial_seconds(self) -> float:
        """Recorded seconds of gate and measuring of a measured setting, on average: for `estimate`."""
        measured = self.recording.arrays["setting_ms"][self.recording.arrays["cell"][0, :, 0] >= 0]
        return float(measured.sum(axis=1).mean()) / 1e3

    @property
    def compile_seconds(self) -> float:
        """Recorded seconds of a compile over the workers of the pool, what a trial waits for it: for `estimate`."""
        return float(self.recording.arrays["binary_ms"].mean()) / 1e3 / len(self._free)

    @property
    def noise_seconds(self) -> float:
        """Simulated seconds of one A/A comparison."""
        rounds: int = self.recording.arrays["candidate"].shape[1]
        return PROCESS_START + 2 * SAMPLE_REPEATS * rounds * float(self._pair_level.sum()) / 1e9

    @property
    def canaries(self) -> Sequence[str]:
        """See `Bench`; the kernel's faults, and of the others those whose outcome was recorded."""
        return tuple(fault for fault in CANARIES if fault in FAULTS or fault in self._gate)

    def settings(self) -> Sequence[Setting]:
        """See `Bench`."""
        return self.recording.settings

    def now(self) -> float:
        """See `Bench`; simulated seconds since it was made."""
        return self._clock / 1e6

    def advance(self, seconds: float) -> None:
        """See `Bench`."""
        self._clock += round(seconds * 1e6)

    def close(self) -> None:
        """See `Bench`."""

    def submit(self, setting: Setting) -> None:
        """See `Bench`; takes the first free worker of the simulated pool."""
        place = self.recording.index.get(self._resolve(setting))
        if place is None:
            return
        binary = int(self.recording.arrays["setting_binary"][place])
        if binary >= 0 and binary not in self._ready:
            begin = max(self._clock, heapq.heappop(self._free))
            self._ready[binary] = begin + 1000 * int(self.recording.arrays["binary_ms"][binary])
            heapq.heappush(self._free, self._ready[binary])

    def measure(self, trial: int, setting: Setting, fault: str = "none", race: Race | None = None) -> Outcome:
        """See `Bench`; every point takes an equal share of the recorded measuring time."""
        place = self.recording.index.get(self._resolve(setting))
        if place is None:
            return Outcome(Status.INFEASIBLE, "the recording does not hold this setting")
        if fault != "none":
            return self._canary(fault, place)
        self.submit(setting)
        binary = int(self.recording.arrays["setting_binary"][place])
        key = self.recording.binaries[binary] if binary >= 0 else ""
        status = self.recording.status(place)
        if status is not Status.MEASURED:
            phases = self._spend(place, binary)
            return Outcome(status, self.recording.reasons.get(place, ""), binary=key, phases=phases)
        rng = np.random.default_rng((self._seed, TRIAL, trial))
        cells = self.recording.arrays["cell"][self._drawn(rng), place]
        plans = tuple(f"{plan:016x}" for plan in self.recording.arrays["cell_plan"][cells].tolist())
        facts = {"compile_seconds": int(self.recording.arrays["binary_ms"][binary]) / 1e3}
        timings = self._timings(cells, rng)
        if race and race.points and not race(first := tuple(timings[point] for point in race.points)):
            phases = self._spend(place, binary, len(first) / len(timings))
            return Outcome(Status.RACED, RACED, first, {}, key, plans, facts, phases)
        return Outcome(Status.MEASURED, "", timings, {}, key, plans, facts, self._spend(place, binary))

    def noise(self, number: int) -> tuple[Timing, ...]:
        """See `Bench`; a bootstrapped A/A comparison with the bias of one rebuild."""
        rng = np.random.default_rng((self._seed, NOISE, number))
        rounds = self.recording.arrays["candidate"].shape[1]
        bias = self._rebuilds[int(rng.integers(len(self._rebuilds)))]
        net = self._pair_level - self._empty_level
        candidate = self._draw(self._empty_level + net * np.exp(bias), 0, rounds, rng)
        rows = (candidate[0], self._draw(self._pair_level, 1, rounds, rng, candidate[1])[0], self._empties(rng))
        self.advance(self.noise_seconds)
        return _pack(rows, [{"replayed": True}] * len(self._points))

    def instance(self, request: InstanceRequest) -> Instance:
        """See `Bench`; samples are on the level of the recorded A/A baseline, less its empty chain."""
        places = [self.recording.index.get(self._resolve(arm)) for arm in request.arms]
        for arm, place in zip(request.arms, places, strict=True):
            if place is None or self.recording.status(place) is not Status.MEASURED:
                return Instance(Status.INFEASIBLE, f"the recording has no timings of {arm}")
        rng = np.random.default_rng((self._seed, ROUNDS, request.number))
        drawn = self._drawn(rng)
        points = np.array(request.points)
        empty = self._empty_level[points]
        net = self._pair_level[points] - empty
        shared = self._residuals[1][points[:, None], self._blocks(points, request.rounds, rng)]
        arms = []
        for place, arm in zip(places, request.arms, strict=True):
            if self._resolve(arm) == self.recording.default:
                arms.append(self._pair_level[points, None] * np.exp(shared) - empty[:, None])
                continue
            index = self._blocks(points, request.rounds, rng)
            own = (self._residuals[0] - self._residuals[1])[points[:, None], index]
            bias = self._process_bias(request.process, self._resolve(arm))[points]
            chain = empty + net * self._ratios(int(place or 0), drawn)[points] * np.exp(bias)
            arms.append(chain[:, None] * np.exp(shared + own) - empty[:, None])
        table = np.rint(np.stack(arms, axis=1)).astype(np.int64)
        self.advance(PROCESS_START / 4 + SAMPLE_REPEATS * float(table.sum()) / 1e9)
        samples = tuple(tuple(tuple(row) for row in point) for point in table.tolist())
        return Instance(Status.MEASURED, "", samples, {"replayed": True}, {"replayed": True})

    def _resolve(self, setting: Setting) -> Setting:
        return setting if setting.kv_stages else resolve(setting, self.geometry, self.device)

    def _spend(self, place: int, binary: int, share: float = 1.0) -> dict[str, float]:
        """Let the time of a trial pass that is timed at this share of the points; compiling is what it waited for."""
        wait = max(0, self._ready.get(binary, 0) - self._clock)
        gate, measure = self.recording.arrays["setting_ms"][place].tolist()
        measure = round(measure * share)
        self._clock += wait + 1000 * (gate + measure)
        return {"compile": wait / 1e6, "gate": gate / 1e3, "measure": measure / 1e3}

    def _canary(self, fault: str, place: int) -> Outcome:
        """What the recorded gate said; a fault that was not recorded is modelled as caught."""
        phases = {"compile": 0.5, "gate": int(self.recording.arrays["setting_ms"][place, 0]) / 1e3, "measure": 0.0}
        self.advance(sum(phases.values()))
        if fault not in self._gate:
            return Outcome(
                Status.INCORRECT, f"modelled: the recording has no gate outcome of fault {fault!r}", phases=phases
            )
        canary = self._gate[fault]
        facts = {"status": Status(canary["status"]), "reason": str(canary.get("reason", ""))}
        return Outcome(**facts, correctness=dict(canary.get("correctness", {})), phases=phases)  # type: ignore[arg-type]

    def _timings(self, cells: npt.NDArray[Any], rng: np.random.Generator) -> tuple[Timing, ...]:
        arrays = self.recording.arrays
        rounds = arrays["candidate"].shape[1]
        candidate, index = self._draw(self._cell_candidate[cells], 0, rounds, rng)
        baseline, _ = self._draw(self._cell_baseline[cells], 1, rounds, rng, index)
        empty = arrays["empty"][cells]
        empty = empty[:, rng.integers(empty.shape[1], size=empty.shape[1])]
        windows = [self._windows[window] for window in arrays["cell_window"][cells].tolist()]
        return _pack((candidate, baseline, empty), windows)

    def _draw(
        self, levels: Floats, arm: int, rounds: int, rng: np.random.Generator, index: npt.NDArray[Any] | None = None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """Samples around `levels` at all points, and which rounds they came from."""
        if index is None:
            index = self._blocks(self._points, rounds, rng)
        residual = self._residuals[arm][self._points[:, None], index]
        return np.rint(levels[:, None] * np.exp(residual)).astype(np.int64), index

    def _blocks(self, points: npt.NDArray[Any], rounds: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """Indices of A/A rounds, shape (points, rounds): blocks of neighbours, around the end."""
        pairs = self._residuals[0].shape[1]
        starts = rng.integers(pairs, size=(len(points), -(-rounds // BLOCK)))
        index: npt.NDArray[np.int64] = (starts[:, :, None] + np.arange(BLOCK)) % pairs
        return index.reshape(len(points), -1)[:, :rounds]

    def _empties(self, rng: np.random.Generator) -> npt.NDArray[Any]:
        empty = self.recording.arrays["pair_empty"]
        return empty[:, rng.integers(empty.shape[1], size=min(empty.shape[1], 12))]

    def _drawn(self, rng: np.random.Generator) -> int:
        """One of the recorded instances."""
        count = len(self.recording.arrays["cell"])
        return int(rng.integers(count)) if count > 1 else 0

    def _ratios(self, place: int, drawn: int) -> Floats:
        """Recorded ratio to the default at each point, chain-free, of one recorded instance."""
        cells = self.recording.arrays["cell"][drawn, place]
        empty = self._cell_empty[cells]
        ratios: Floats = (self._cell_candidate[cells] - empty) / (self._cell_baseline[cells] - empty)
        return ratios

    def _process_bias(self, process: int, setting: Setting) -> Floats:
        """The bias of one arm in one process, by point, as a logarithm."""
        place = self.recording.index[setting]
        rng = np.random.default_rng((self._seed, PROCESS, process, place))
        bias: Floats = self._rebuilds[int(rng.integers(len(self._rebuilds)))]
        return bias


def _residual(samples: npt.NDArray[Any]) -> Floats:
    """Logarithms of samples over their row's median."""
    residual: Floats = np.log(samples / np.median(samples, axis=1, keepdims=True))
    return residual


def _rebuild_logs(arrays: Mapping[str, npt.NDArray[Any]]) -> Floats:
    """log(candidate / baseline) of each rebuild at each point, chain-free; shape (rebuilds, points)."""
    candidate, baseline, empty = (np.median(arrays[f"rebuild_{n}"], axis=2) for n in ("candidate", "baseline", "empty"))
    logs: Floats = np.log((candidate - empty) / (baseline - empty)).T
    return logs


def _pack(rows: Sequence[npt.NDArray[Any]], windows: Sequence[Mapping[str, Any]]) -> tuple[Timing, ...]:
    lists = zip(*(array.tolist() for array in rows), windows, strict=True)
    return tuple(
        Timing(point, tuple(candidate), tuple(baseline), tuple(empty), window)
        for point, (candidate, baseline, empty, window) in enumerate(lists)
    )
