"""Whether prefetch distances that a grid leaves out differ from what their neighbours in it say.

The best settings at the points that read most are timed with every distance from 2 to 8, and each distance between 2, 4
and 8 is compared with the straight line between the logarithms of its neighbours' ratios.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mjolnir.kernel.knobs import Setting

Floats = npt.NDArray[np.float64]

ENDS = (2, 4, 8)
INNER = (3, 5, 6, 7)
SETTINGS = 20
"""How many settings are looked at."""

POINTS = 2
"""At how many points: those that read most."""

NOISES = 2.0
"""How many standard deviations of a rebuild a difference has to exceed."""


def chosen(settings: Sequence[Setting], ratios: Floats, count: int = SETTINGS) -> list[Setting]:
    """The best settings, each with all distances from 2 to 8.

    Args:
        settings: that were measured.
        ratios: shape (settings, points that are looked at), times over the default's.
        count: how many; settings that differ in their distance alone are one.
    """
    order = np.argsort(np.log(ratios).mean(axis=1), kind="stable").tolist()
    bases = list(dict.fromkeys(replace(settings[place], l2_prefetch=0) for place in order))
    return [replace(base, l2_prefetch=value) for base in bases[:count] for value in sorted((*ENDS, *INNER))]


def told(ratios: Mapping[Setting, Sequence[float]], noise: Sequence[float], points: Sequence[int]) -> dict[str, Any]:
    """What came of it, in words of a record.

    Args:
        ratios: of each setting at each of the points; bases of which a distance is missing are left out.
        noise: standard deviation of a rebuild at each of the points, a fraction.
        points: indices into the workload.

    Returns:
        By point and distance the mean difference from the line over the settings (a fraction), how many settings
        differ by more than `NOISES` standard deviations, and whether that is most of them; and all ratios.
    """
    values = sorted((*ENDS, *INNER))
    bases = list(dict.fromkeys(replace(setting, l2_prefetch=0) for setting in ratios))
    whole = [base for base in bases if all(replace(base, l2_prefetch=value) in ratios for value in values)]
    rows = [[ratios[replace(base, l2_prefetch=value)] for value in values] for base in whole]
    found: list[dict[str, Any]] = []
    for place, point in enumerate(points if whole else ()):
        logs = np.log(np.array(rows)[:, :, place])
        ends = logs[:, [values.index(value) for value in ENDS]]
        entry: dict[str, Any] = {"point": point, "noise": round(noise[place], 6), "distances": {}}
        for value in INNER:
            line = np.array([np.interp(value, ENDS, row) for row in ends])
            off = logs[:, values.index(value)] - line
            beyond = int((abs(off) > NOISES * noise[place]).sum())
            entry["distances"][str(value)] = {
                "mean": round(float(off.mean()), 6), "beyond": beyond, "differs": 2 * beyond > len(whole),
            }  # fmt: skip
        found.append(entry)
    table = [
        {"setting": base.as_dict(), "ratios": np.round(np.array(row).T, 5).tolist()}
        for base, row in zip(whole, rows, strict=True)
    ]
    return {"settings": len(whole), "values": values, "points": found, "table": table}
