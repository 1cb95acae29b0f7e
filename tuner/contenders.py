"""Which cells of a grid are worth a second look: those near the best of their point."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MARGIN = 0.03
"""How much slower than its point's best a cell may be."""

MOST = 150
"""Contenders at one point, at most: the fastest of them."""


def contenders(
    cells: npt.NDArray[np.int64], ratios: npt.NDArray[np.float64], margin: float = MARGIN, most: int = MOST
) -> dict[int, list[int]]:
    """The contenders of all points.

    Args:
        cells: shape (settings, points), the cell of a setting at a point, -1 where it has none.
        ratios: of each cell, its time over the default's.
        margin, most: see `MARGIN` and `MOST`.

    Returns:
        Points by setting, both ascending; a cell that several settings share is there once, with the first of them.
    """
    found: dict[int, list[int]] = {}
    for point in range(cells.shape[1]):
        known, first = np.unique(cells[:, point], return_index=True)
        known, first = known[known >= 0], first[known >= 0]
        values = ratios[known]
        fastest = np.argsort(values, kind="stable")[:most]
        for place in first[fastest[values[fastest] <= values.min() * (1 + margin)]].tolist():
            found.setdefault(place, []).append(point)
    return dict(sorted(found.items()))
