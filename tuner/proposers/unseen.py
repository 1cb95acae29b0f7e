"""A duplicate is never run again as a new trial: it is replaced by something near that has not been tried."""

from __future__ import annotations

from collections.abc import Container

import numpy as np

from mjolnir.tuner.space import Coordinates, Space

DRAWS = 32
"""Random draws before the space is walked from a random place on; walking is for a space that is nearly used up."""


def unseen(
    space: Space, proposed: Coordinates, taken: Container[Coordinates], rng: np.random.Generator
) -> tuple[Coordinates, str] | None:
    """`proposed` if it is new, else an untried neighbour, else any untried setting.

    Returns:
        The coordinates, and "" or how they were found ("neighbour", "random"); None when the space is used up.
    """
    if proposed not in taken:
        return proposed, ""
    near = [coordinates for coordinates in space.neighbours(proposed) if coordinates not in taken]
    if near:
        return near[int(rng.integers(len(near)))], "neighbour"
    for _ in range(DRAWS):
        drawn = space.random(rng)
        if drawn not in taken:
            return drawn, "random"
    start = int(rng.integers(space.size))
    for step in range(space.size):
        walked = space.member((start + step) % space.size)
        if walked not in taken:
            return walked, "random"
    return None
