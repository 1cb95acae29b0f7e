"""Two engines' answers side by side: what is a near tie, what is a fault, and what is too little to judge by."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from mjolnir.research.serving.agreement import LEAST_SHARED, MEAN_NATS, MOST_NATS, compare
from mjolnir.research.serving.job import Completion
from tests.research.serving.answers import completion

EIGHT = (1, 2, 3, 4, 5, 6, 7, 8)
BASE = completion(EIGHT, [-1.0] * 8)


def parting(own: float, foreign: float | None) -> tuple[Completion, Completion]:
    """Two answers that part at step 6: one takes 7, the other 70; `foreign` is what each gives the other's token."""
    one, two = BASE, completion((*EIGHT[:6], 70, 71), [-1.0] * 8)
    tops = []
    for item, mine, other in ((one, 7, 70), (two, 70, 7)):
        top = {mine: own, 901: -9.0} | ({other: foreign} if foreign is not None else {})
        tops.append((*item.tops[:6], top, item.tops[7]))
    return replace(one, tops=tops[0]), replace(two, tops=tops[1])


def test_equal_answers_agree() -> None:
    found = compare([BASE, BASE], [BASE, BASE])
    assert (found.steps, found.shared, found.parted, found.far, found.most, found.problems) == (16, 16, 0, 0, 0.0, ())


def test_differences_are_those_of_the_chosen_token() -> None:
    other = completion(EIGHT, [-1.0, -1.1, -0.9, -1.0, -1.0, -1.0, -1.0, -1.2])
    found = compare([other], [BASE])
    assert found.most == pytest.approx(0.2)
    assert found.mean == pytest.approx(0.4 / 8)
    assert not found.problems


def test_a_near_tie_may_fall_either_way() -> None:
    found = compare(*([one] for one in parting(-1.0, -1.9)))
    assert (found.shared, found.parted, found.far, found.problems) == (6, 1, 0, ())


@pytest.mark.parametrize(
    ("foreign", "words"),
    [(-2.1, "step 6: tokens 7 and 70 are 1.10 nats apart"), (None, "token 70 of one engine is not in the top")],
)
def test_what_is_no_near_tie_is_told(foreign: float | None, words: str) -> None:
    found = compare(*([one] for one in parting(-1.0, foreign)))
    assert found.far == 1
    assert words in found.problems[0]
    assert "prompt 0 (9 tokens)" in found.problems[0]


def test_one_engine_that_sees_no_tie_is_enough() -> None:
    one, two = parting(-1.0, -1.5)
    sure = replace(two, tops=(*two.tops[:6], {70: -0.1, 7: -4.0}, two.tops[7]))
    assert compare([one], [sure]).far == 1


@pytest.mark.parametrize(
    ("logprobs", "words"),
    [
        ([-1.0] * 7 + [-1.1 - MOST_NATS], "by up to"),
        ([-1.01 - MEAN_NATS] * 8, "on average"),
        ([math.nan] + [-1.0] * 7, "by up to inf"),
    ],
)
def test_bounds_hold_on_what_is_shared(logprobs: list[float], words: str) -> None:
    found = compare([completion(EIGHT, logprobs)], [BASE])
    assert any(words in problem for problem in found.problems)
    json.dumps(found.as_dict(), allow_nan=False)


def test_answers_that_part_at_once_say_nothing() -> None:
    shift = completion((50, *EIGHT[1:]), [-1.0] * 8)
    tied = replace(shift, tops=({50: -1.0, 1: -1.1}, *shift.tops[1:]))
    base = replace(BASE, tops=({1: -1.0, 50: -1.1}, *BASE.tops[1:]))
    (problem,) = compare([tied], [base]).problems
    assert f"0 of 8 steps can be compared, {LEAST_SHARED:.0%} are needed" in problem


def test_other_prompts_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in prompts"):
        compare([BASE], [replace(BASE, prompt=8)])


def test_a_completion_travels_whole() -> None:
    assert Completion.from_dict(json.loads(json.dumps(BASE.as_dict()))) == BASE
