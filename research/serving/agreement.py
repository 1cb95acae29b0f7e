"""Whether two engines agree: greedy answers compared by their log-probabilities, step by step.

Right backends round differently, so a random or a trained model's near ties may fall either way, and from there on the
two answers have nothing to do with one another. Up to there the chosen token's log-probability has to be the same
within bounds; where the answers part, each engine must have the other's token in its top five, at most one nat below
its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mjolnir.research.serving.job import Completion

TIE_NATS = 1.0
"""How far apart two tokens may be where answers part."""

MOST_NATS = 1.0
"""How far apart two log-probabilities of one token may be at any step."""

MEAN_NATS = 0.12
"""How far apart they may be on average over a run."""

LEAST_SHARED = 0.15
"""The share of steps that has to be compared, else too little was shared to say anything."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How two engines compare over a set of prompts.

    Attributes:
        steps: tokens that were answered.
        shared: those of them before the answers part.
        parted: answers that part.
        far: those of them that are no near tie.
        most, mean: difference of the chosen token's log-probability over the shared steps, in nats.
        problems: what is wrong, in words; empty where the engines agree.
    """

    steps: int
    shared: int
    parted: int
    far: int
    most: float
    mean: float
    problems: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON form; no number is NaN or infinite there."""
        numbers = {name: getattr(self, name) for name in ("steps", "shared", "parted", "far", "most", "mean")}
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        return {**finite, "problems": list(self.problems)}


def compare(found: Sequence[Completion], expected: Sequence[Completion]) -> Agreement:
    """Compare what two engines answered to the same prompts.

    Raises:
        ValueError: they were not asked the same, or answered with different numbers of tokens.
    """
    asked = [[(item.prompt, len(item.tokens)) for item in items] for items in (found, expected)]
    if asked[0] != asked[1]:
        raise ValueError(f"the runs differ in prompts or in lengths of answers: {len(found)} and {len(expected)}")
    gaps: list[float] = []
    parted: list[str | None] = []
    for number, (mine, other) in enumerate(zip(found, expected, strict=True)):
        end = shared_steps(mine, other)
        gaps += [abs(mine.logprob(step) - other.logprob(step)) for step in range(end)]
        if end < len(mine.tokens):
            reason = _apart(mine, other, end)
            parted.append(reason and f"prompt {number} ({mine.prompt} tokens), step {end}: {reason}")
    steps = sum(len(item.tokens) for item in found)
    most, mean = max(map(_number, gaps), default=0.0), sum(map(_number, gaps)) / max(1, len(gaps))
    far = [reason for reason in parted if reason]
    problems = [*far, *_bounds(steps, len(gaps), most, mean)]
    return Agreement(steps, len(gaps), len(parted), len(far), most, mean, tuple(problems))


def shared_steps(mine: Completion, other: Completion) -> int:
    """Steps before the first at which the tokens differ."""
    pairs = enumerate(zip(mine.tokens, other.tokens, strict=True))
    return next((step for step, (one, two) in pairs if one != two), len(mine.tokens))


def _apart(mine: Completion, other: Completion, step: int) -> str | None:
    """Why the step at which two answers part is no near tie; None where it is one."""
    one, two = mine.tokens[step], other.tokens[step]
    for top, own, foreign in ((mine.tops[step], one, two), (other.tops[step], two, one)):
        if foreign not in top:
            return f"token {foreign} of one engine is not in the top {len(top)} of the other"
        if not top[own] - top[foreign] <= TIE_NATS:
            return f"tokens {own} and {foreign} are {top[own] - top[foreign]:.2f} nats apart"
    return None


def _bounds(steps: int, shared: int, most: float, mean: float) -> Iterable[str]:
    if not most <= MOST_NATS:
        yield f"log-probabilities differ by up to {most:.3f} nats, at most {MOST_NATS:g} are allowed"
    if not mean <= MEAN_NATS:
        yield f"log-probabilities differ by {mean:.3f} nats on average, at most {MEAN_NATS:g} are allowed"
    if shared < LEAST_SHARED * steps:
        yield f"the answers part so early that {shared} of {steps} steps can be compared, {LEAST_SHARED:.0%} are needed"


def _number(value: float) -> float:
    """NaN counts as beyond every bound."""
    return math.inf if math.isnan(value) else value
