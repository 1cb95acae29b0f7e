"""Which cells are near the best of their point."""

from __future__ import annotations

import numpy as np

from mjolnir.tuner.contenders import contenders

CELLS = np.array([[0, 1], [2, 1], [3, 4], [-1, -1], [5, 6]])
RATIOS = np.array([1.00, 0.90, 1.02, 0.99, 0.95, 1.03, 0.92])


def test_contenders_are_within_the_margin_of_their_point_and_each_cell_is_there_once() -> None:
    assert contenders(CELLS, RATIOS) == {0: [0, 1], 2: [0], 4: [1]}
    assert contenders(CELLS, RATIOS, margin=0.1) == {0: [0, 1], 1: [0], 2: [0, 1], 4: [0, 1]}


def test_the_fastest_are_kept_where_there_are_too_many() -> None:
    assert contenders(CELLS, RATIOS, margin=0.1, most=1) == {0: [1], 2: [0]}
