"""What a recording takes of a device, guessed before it is begun."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.gpu.measure import CHAIN_SECONDS, chain_seconds, passes_of, sets_of
from mjolnir.tuner.gpu.plans import kv_bytes_of
from mjolnir.tuner.gpu.sitting import RecorderBench

GATE_SECONDS = 2.5e-3
"""What the gate of one cell is taken to cost: a replay, a comparison, a checksum of the KV pool."""


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
