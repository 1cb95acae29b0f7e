"""Rows that bring every value of each axis together with every value of each other axis at least once.

Faults that need one or two circumstances to show are met by such rows; all combinations would be millions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, islice
from typing import Any

Row = dict[str, Any]
Pair = tuple[tuple[str, Any], tuple[str, Any]]
Axes = Mapping[str, Sequence[Any]]

TRIES = 24
"""Random rows of which the best is taken."""

PATIENCE = 500
"""Random rows that may turn out impossible before a pair is given up."""


def pairs_of(row: Mapping[str, Any]) -> set[Pair]:
    """The pairs of values that a row brings together; axes in the row's order."""
    return set(combinations(row.items(), 2))


def all_pairs(axes: Axes) -> set[Pair]:
    """Every pair of values of two axes."""
    return {((a, x), (b, y)) for a, b in combinations(axes, 2) for x in axes[a] for y in axes[b]}


def covering(axes: Axes, possible: Callable[[Row], bool], rng: random.Random) -> tuple[list[Row], set[Pair]]:
    """Rows that cover all pairs, greedily: each brings an uncovered pair together and as many more as it finds.

    Args:
        axes: values of each axis, by name.
        possible: whether a row makes sense.
        rng: where rows come from.

    Returns:
        The rows, and the pairs that no possible row was found for.
    """
    missing, rows, given_up = all_pairs(axes), [], set()
    while missing:
        wanted = dict(rng.choice(sorted(missing, key=repr)))
        around = (_around(wanted, axes, rng) for _ in range(PATIENCE))
        found = list(islice(filter(possible, around), TRIES))
        if not found:
            pair = next(pair for pair in missing if dict(pair) == wanted)
            given_up.add(pair)
            missing.discard(pair)
            continue
        best = max(found, key=lambda row: len(pairs_of(row) & missing))
        rows.append(best)
        missing -= pairs_of(best)
    return rows, given_up


def _around(wanted: Mapping[str, Any], axes: Axes, rng: random.Random) -> Row:
    """A random row with the wanted values, its axes in order."""
    return {name: wanted[name] if name in wanted else rng.choice(values) for name, values in axes.items()}
