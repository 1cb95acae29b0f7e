"""A duplicate is never run again as a new trial: it is replaced by something near that has not been tried."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mjolnir.tuner.space import Coordinates, Space

DRAWS = 32
"""Random draws before the space is walked from a random place on; walking is for a space that is nearly used up."""


def unseen(
    space: Space, proposed: Coordinates, refused: Callable[[Coordinates], bool], rng: np.random.Generator
) -> tuple[Coordinates, str] | None:
    """`proposed` if it is new, else a neighbour that is, else any new setting; `refused` says what is not.

    Returns:
        The coordinates, and "" or how they were found ("neighbour", "random"); None when the space is used up.
    """
    if not refused(proposed):
        return proposed, ""
    near = [coordinates for coordinates in space.neighbours(proposed) if not refused(coordinates)]
    if near:
        return near[int(rng.integers(len(near)))], "neighbour"
    for _ in range(DRAWS):
        drawn = space.random(rng)
        if not refused(drawn):
            return drawn, "random"
    start = int(rng.integers(space.size))
    for step in range(space.size):
        walked = space.member((start + step) % space.size)
        if not refused(walked):
            return walked, "random"
    return None
