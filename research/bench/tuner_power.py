"""How often a true gain is promoted.

Whole campaigns in replay, over a recording in which every setting is made as fast as the default but one, which is
faster by the planted gain at every point; noise and the biases of processes are those recorded. The search is handed
the setting, since what it finds by itself is another figure; noise floor, shoot-out, confirmation and promotion have
the default options. Counted are the buckets in which the setting is promoted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner import coordinator
from mjolnir.tuner.bench import Status
from mjolnir.tuner.journal import MemoryJournal
from mjolnir.tuner.options import Options
from mjolnir.tuner.recording import Recording
from mjolnir.tuner.replay import ReplayBench

TRIALS = 16
"""Trials of each search: the default, the planted setting, and others that are as fast as the default."""


@dataclass(frozen=True, slots=True)
class Power:
    """What became of a planted gain.

    Attributes:
        promoted: share of buckets in which the setting is promoted.
        instances: instances that a promotion rests on, median.
        covered: share of promotions whose interval holds the planted ratio; the recorded biases are not quite centred.
    """

    promoted: float
    instances: float
    covered: float


def power(source: Recording, gain: float, campaigns: int) -> Power:
    """The power at one gain.

    Args:
        source: the recording.
        gain: 0.03 makes the default's time 1.03 times that of the planted setting.
        campaigns: each has another seed.
    """
    winner = next(
        setting
        for place, setting in enumerate(source.settings)
        if setting != source.default and source.status(place) is Status.MEASURED
    )
    recording = planted(source, winner, gain)
    decisions = [
        decision
        for seed in range(campaigns)
        for decision in coordinator.run(ReplayBench(recording, seed), MemoryJournal(), _options(seed, winner)).decisions
    ]
    promoted = [d for d in decisions if d["decision"] == "promote" and d["setting"] == winner.as_dict()]
    ratios = [decision["certificate"]["ratio_default"] for decision in promoted]
    return Power(
        promoted=len(promoted) / len(decisions),
        instances=float(np.median([d["certificate"]["instances"] for d in promoted])) if promoted else 0.0,
        covered=sum(r["low"] <= 1 / (1 + gain) <= r["high"] for r in ratios) / max(1, len(ratios)),
    )


def _options(seed: int, winner: Setting) -> Options:
    return Options(trials=TRIALS, minutes=1e6, proposer="random", seed=seed, enqueued=(winner,))


def planted(source: Recording, winner: Setting, gain: float) -> Recording:
    """`source` with every measured setting exactly as fast as the default, but `winner` faster by `gain`."""
    arrays = dict(source.arrays)
    cells = arrays["cell"][:1, source.index[source.default]]
    empty = np.median(arrays["empty"][cells[0]], axis=1)[:, None]
    faster = empty + (arrays["baseline"][cells[0]] - empty) / (1 + gain)
    count = len(arrays["candidate"])
    added = {"candidate": (arrays["baseline"][cells[0]], np.rint(faster))}
    for name in ("candidate", "baseline", "empty", "cell_plan", "cell_window", "cell_chunk"):
        same = arrays[name][cells[0]]
        rows = added.get(name, (same, same))
        arrays[name] = np.concatenate([arrays[name], *(np.asarray(row, dtype=arrays[name].dtype) for row in rows)])
    points = np.arange(len(source.workload.points), dtype=arrays["cell"].dtype)
    cell = np.where(arrays["cell"] >= 0, count + points, arrays["cell"]).astype(arrays["cell"].dtype)
    cell[:, source.index[winner]] = count + len(points) + points
    return replace(source, name=f"{source.name}, planted", arrays={**arrays, "cell": cell})
