"""The second look: further instances of the cells near the best of their point, and prefetch distances in between.

One instance is taken of all such cells before the next is begun, each on inputs drawn anew, which have other addresses,
so that every graph is captured anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.bench import Status, Timing
from mjolnir.tuner.contenders import contenders
from mjolnir.tuner.gpu import between
from mjolnir.tuner.gpu.sitting import Sitting

RENEWED = 1000
"""Number of the first comparison that renews inputs for further instances; those before are rebuilds."""


def further(sitting: Sitting, instances: int) -> str:
    """Take what is lacking of so many further instances; returns "complete", or "time" where that was over.

    Raises:
        Broken, BenchFailure: the bench failed.
    """
    cells, ratios = sitting.writer.table()
    near, settings = contenders(cells, ratios), list(sitting.writer.done)
    count = sum(map(len, near.values()))
    sitting.say(f"{instances} further instances of {count} cells near the best, of {len(near)} settings")
    for number in range(instances):
        lacking = {
            place: [point for point in points if sitting.writer.further(int(cells[place, point])) <= number]
            for place, points in near.items()
        }
        todo = [(settings[place], points) for place, points in lacking.items() if points]
        if todo and not sitting.over:
            sitting.compare(RENEWED + number)  # all points get fresh inputs
        for done, (setting, points) in enumerate(todo):
            if sitting.over:
                return "time"
            _take(sitting, setting, points)
            sitting.report(f"instance {number + 1} of {instances}, {done + 1} of {len(todo)} settings")
    return "complete"


def _take(sitting: Sitting, setting: Setting, points: Sequence[int]) -> None:
    outcome = sitting.bench.measure_at(None, setting, points=points)
    if sitting.at_fault(setting, outcome):
        return
    if outcome.status is Status.MEASURED:
        sitting.writer.add_further(outcome)
    else:
        sitting.say(f"{setting}, further instance: {outcome.status}: {outcome.reason}")


def prepare_between(sitting: Sitting) -> list[Setting]:
    """The settings that `look_between` takes, being compiled from now on; none where it has been done."""
    if sitting.writer.noted("between"):
        return []
    cells, ratios = sitting.writer.table()
    settings = list(sitting.writer.done)
    places = np.flatnonzero((cells >= 0).all(axis=1))
    values = ratios[cells[places][:, _largest(sitting)]]
    found = between.chosen([settings[place] for place in places], values)
    for setting in found:
        sitting.bench.submit(setting)
    return found


def look_between(sitting: Sitting, settings: Sequence[Setting]) -> str:
    """Time prefetch distances between those of the grid, and note what came of it; returns as `further` does.

    Raises:
        Broken: the bench failed.
    """
    points = _largest(sitting)
    found: dict[Setting, list[float]] = {}
    for number, setting in enumerate(settings):
        if sitting.over:
            return "time"
        outcome = sitting.bench.measure_at(None, setting, points=points)
        if not sitting.at_fault(setting, outcome) and outcome.status is Status.MEASURED:
            found[setting] = [_ratio(timing) for timing in outcome.timings]
        sitting.report(f"{number + 1} of {len(settings)} prefetch distances")
    summary = between.told(found, sitting.writer.rebuild_noise()[points].tolist(), points)
    if summary["settings"]:
        sitting.writer.note(between=summary)
    for entry in summary["points"]:
        sitting.say(f"prefetch distances at point {entry['point']}: {entry['distances']}, noise {entry['noise']}")
    return "complete"


def _largest(sitting: Sitting) -> list[int]:
    """The points that read most, in order."""
    reads = [sum(point.contexts) for point in sitting.bench.workload.points]
    return sorted(sorted(range(len(reads)), key=lambda point: -reads[point])[: between.POINTS])


def _ratio(timing: Timing) -> float:
    """The candidate's time over the baseline's, both medians without the empty chain's."""
    candidate, baseline, empty = (float(np.median(part)) for part in (timing.candidate, timing.baseline, timing.empty))
    return (candidate - empty) / (baseline - empty)
