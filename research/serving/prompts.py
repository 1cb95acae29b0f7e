"""What engines are asked: batches of random prompts, long and ragged, with ends on the borders of pages."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

Prompt = tuple[int, ...]
FIRST_ID = 5
"""Tokens below it are left to a model's own purposes."""

REPEAT = 24
"""Tokens after which a repetitive prompt begins again, so that n-gram speculation finds what to propose."""


def lengths(batch: int, longest: int, page: int, random: Random) -> list[int]:
    """Lengths of `batch` prompts, 1 to `longest`: page borders and their neighbours, the shortest, the longest, the
    rest spread evenly over the logarithm, so that there are as many short as long ones."""
    borders = [longest, page, 1, page - 1, page + 1, 2 * page, 2 * page - 1]
    firsts = [min(longest, max(1, length)) for length in borders[:batch]]
    return firsts + [round(longest ** random.random()) for _ in range(batch - len(firsts))]


def batches(
    sizes: Sequence[int], longest: int, page: int, vocabulary: int, seed: int = 0
) -> tuple[tuple[Prompt, ...], ...]:
    """A batch of each of `sizes`. All have the same first prompt, the longest; every third repeats itself, and every
    fourth begins as the first one does, so that there is something to speculate on and something to be cached.

    Raises:
        ValueError: a vocabulary that leaves no token to ask with.
    """
    if vocabulary <= FIRST_ID + 1:
        raise ValueError(f"a vocabulary of {vocabulary} tokens is too small")
    random = Random(seed)
    first = tuple(random.randrange(FIRST_ID, vocabulary) for _ in range(longest))
    made = []
    for size in sizes:
        rest = enumerate(lengths(size, longest, page, random)[1:], 1)
        made.append((first, *(_prompt(number, length, first, page, vocabulary, random) for number, length in rest)))
    return tuple(made)


def _prompt(number: int, length: int, first: Prompt, page: int, vocabulary: int, random: Random) -> Prompt:
    period = min(length, REPEAT) if number % 3 == 2 else length
    own = tuple(random.randrange(FIRST_ID, vocabulary) for _ in range(period))
    shared = min(length // 2, 4 * page) if number % 4 == 0 else 0
    return first[:shared] + (own * (length // period + 1))[: length - shared]
