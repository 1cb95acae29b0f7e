"""Recordings of a card that does not exist: a speed model in place of a GPU, with known truth.

They test the tuner: planted gains have to be found and promoted, planted ties must not be.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from mjolnir.kernel.device import H200, Device
from mjolnir.kernel.engine import engine_for
from mjolnir.kernel.geometry import TILE, Geometry, Placement
from mjolnir.kernel.knobs import FAULTS, Setting
from mjolnir.kernel.plan import make_plan
from mjolnir.kernel.variant import Variant, resolve
from mjolnir.tuner.bench import Outcome, Status, Timing
from mjolnir.tuner.builder import RecordingBuilder, Source
from mjolnir.tuner.recording import Recording
from mjolnir.tuner.space import grid
from mjolnir.tuner.workload import DECODE8, Point, Workload

Truth = Callable[[Setting, Point], float]
"""Nanoseconds of decode by setting (resolved) and point, on a H200 with the geometry below."""

GEOMETRY = Geometry(32, 8)
GRID: Mapping[str, Sequence[int]] = {
    "ctas_per_sm": (1, 2, 3, 4),
    "kv_stages": (2, 3, 4, 5, 6, 8, 12),
    "max_splits": (0, 1, 4, 16, 64),
    "pdl": (0, 1),
    "l2_prefetch": (0, 1, 2, 4),
    "kv_evict_first": (0, 1),
}
"""The grid of a synthetic recording, unless another is asked for; the default joins it."""

CHAIN = 9000.0
"""Nanoseconds of the chain around decode."""

BANDWIDTH = 4680.0
"""Bytes a nanosecond that a H200 reads at most."""

ROUNDS, EMPTIES, PAIRS, REBUILDS = 12, 6, 200, 10


@lru_cache(maxsize=4096)
def _balance(point: Point, ctas_per_sm: int, max_splits: int) -> tuple[int, int, str]:
    """Tiles of the longest run, number of partial chunks, and digest of the plan."""
    capacity = TILE * max(1, -(-max(point.contexts) // TILE))
    plan = make_plan(point.contexts, GEOMETRY.heads_kv, H200.sm_count * ctas_per_sm, max_splits, capacity=capacity)
    runs: dict[int, int] = {}
    partials = 0
    for chunk in plan.chunks():
        runs[chunk.cta] = runs.get(chunk.cta, 0) + chunk.last - chunk.first
        partials += chunk.slot is not None
    return max(runs.values()), partials, plan.digest()


def speed_model(setting: Setting, point: Point) -> float:
    """A memory-bound decode: the longest run at a bandwidth that grows with the bytes in flight, launches, merge."""
    tiles, partials, _ = _balance(point, setting.ctas_per_sm, setting.max_splits)
    tile_bytes = 2 * TILE * GEOMETRY.head_dim
    flight = setting.ctas_per_sm * setting.kv_stages * tile_bytes + setting.l2_prefetch * tile_bytes / 2
    share = BANDWIDTH / H200.sm_count * (1 - np.exp(-flight / 40_000))
    stream = tiles * setting.ctas_per_sm * tile_bytes / share
    contention = 1 + 0.02 * max(0, setting.ctas_per_sm * setting.kv_stages - 9) + 0.004 * setting.l2_prefetch
    evict = 1.0 if setting.kv_evict_first else 1.012
    launch = 2400 + 300 * setting.ctas_per_sm - 700 * setting.pdl
    merge = (1200 + 0.9 * partials) if setting.max_splits != 1 else 0.0
    return float(stream * contention * evict + launch + merge)


def flat(setting: Setting, point: Point) -> float:
    """The null: every setting is as fast as every other."""
    return speed_model(resolve(Setting(), GEOMETRY, H200), point)


def planted(winner: Setting, gain: float, base: Truth = flat) -> Truth:
    """`base`, but `winner` is faster by `gain` (0.05: the default's time is 1.05 times its own)."""
    resolved = resolve(winner, GEOMETRY, H200)

    def truth(setting: Setting, point: Point) -> float:
        return base(setting, point) / (1 + gain if setting == resolved else 1.0)

    return truth


def make(
    truth: Truth = speed_model,
    *,
    name: str = "synthetic",
    seed: int = 0,
    noise: float = 0.004,
    rebuild_noise: float = 0.002,
    compile_seconds: float = 0.4,
    values: Mapping[str, Sequence[int]] = GRID,
    extra: Sequence[Setting] = (),
    workload: Workload = DECODE8,
    device: Device = H200,
) -> Recording:
    """A recording of `truth`.

    Args:
        truth: the time of a setting at a point.
        name: the recording's name.
        seed: of its noise.
        noise: standard deviation of one sample, a fraction.
        rebuild_noise: standard deviation of what a fresh process adds, a fraction.
        compile_seconds: what a compile takes, on average.
        values: the grid, by knob; knobs left out take their default.
        extra: settings beside the grid.
        workload: the points.
        device: where it was "taken".
    """
    environment = {
        "engine": engine_for(GEOMETRY, device.arch).name,
        "kernel_hash": "synthetic",
        "policy": "synthetic",
        "versions": {},
    }
    builder = RecordingBuilder(Source(name, device, GEOMETRY, Placement(), workload, environment))
    builder.open_chunk(synthetic=True)
    rng = np.random.default_rng(seed)
    default = resolve(Setting(), GEOMETRY, device)
    chosen = {*grid(GEOMETRY, device, values), default, *(resolve(s, GEOMETRY, device) for s in extra)}
    base = np.array([truth(default, point) for point in workload.points])
    card = _Card(truth, base, noise, compile_seconds)
    for setting in sorted(chosen):
        builder.add(setting, _outcome(builder, setting, card, rng))
    builder.add_pairs(_timings(base, base, noise, (PAIRS, PAIRS // 4), rng))
    for _ in range(REBUILDS):
        biased = base * np.exp(rng.normal(0, rebuild_noise, len(base)))
        builder.add_rebuild(_timings(biased, base, noise / 4, (ROUNDS, EMPTIES), rng))
    for fault in FAULTS[1:]:
        builder.add_canary(fault, default, Outcome(Status.INCORRECT, f"synthetic: the gate sees {fault}"))
    return builder.build()


@dataclass(frozen=True, slots=True)
class _Card:
    """What the card that does not exist is like."""

    truth: Truth
    base: npt.NDArray[np.float64]
    noise: float
    compile_seconds: float


def _outcome(builder: RecordingBuilder, setting: Setting, card: _Card, rng: np.random.Generator) -> Outcome:
    """The outcome of one setting, without the points that an equal binary and plan was timed at."""
    source = builder.source
    binary = Variant.of(setting, source.geometry, source.device).key()
    times = np.array([card.truth(setting, point) for point in source.workload.points])
    plans = tuple(_digest(setting, *pair) for pair in zip(source.workload.points, times.tolist(), strict=True))
    timings = _timings(times, card.base, card.noise, (ROUNDS, EMPTIES), rng)
    fresh = tuple(t for t in timings if not builder.has_cell(binary, plans[t.point], t.point))
    seconds = card.compile_seconds * (0.75 + 0.5 * (int(binary[:4], 16) / 0xFFFF))
    phases = {"compile": seconds, "gate": 0.35, "measure": 1.1}
    return Outcome(Status.MEASURED, "", fresh, {}, binary, plans, {"compile_seconds": seconds}, phases)


def _digest(setting: Setting, point: Point, time: float) -> str:
    """A plan's digest, told apart by the truth, so that only settings which are equally fast share a cell."""
    plan = _balance(point, setting.ctas_per_sm, setting.max_splits)[2]
    return hashlib.sha256(f"{plan} {time}".encode()).hexdigest()[:16]


def _timings(
    candidate: npt.NDArray[np.float64],
    baseline: npt.NDArray[np.float64],
    noise: float,
    counts: tuple[int, int],
    rng: np.random.Generator,
) -> tuple[Timing, ...]:
    """Paired samples with common drift and noise of their own."""
    rounds, empties = counts
    shape = (len(baseline), rounds)
    drift = rng.normal(0, noise, shape)
    rows = [
        np.rint(CHAIN + level[:, None] * np.exp(drift + rng.normal(0, noise, shape))).astype(int).tolist()
        for level in (candidate, baseline)
    ]
    empty = np.rint(CHAIN * np.exp(rng.normal(0, noise / 2, (len(baseline), empties)))).astype(int).tolist()
    return tuple(
        Timing(point, tuple(c), tuple(b), tuple(e), {"synthetic": True})
        for point, (c, b, e) in enumerate(zip(*rows, empty, strict=True))
    )
