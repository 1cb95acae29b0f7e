"""Step counters."""

from __future__ import annotations

import math

from mjolnir.backend.counters import Steps


def test_steps_are_counted_by_where_they_ran() -> None:
    steps = Steps()
    assert math.isnan(steps.share)
    for causal in (True, True, False):
        steps.ran(causal=causal)
    steps.fell_back("a prompt", decoding=False)
    steps.fell_back("ragged", decoding=True)
    assert (steps.mjolnir, steps.non_causal, steps.fallback, steps.missed) == (2, 1, 2, 1)
    assert steps.share == 3 / 4
    assert steps.as_dict()["reasons"] == {"a prompt": 1, "ragged": 1}


def test_nothing_is_counted_while_paused_and_a_reset_forgets() -> None:
    steps = Steps()
    with steps.paused():
        with steps.paused():
            steps.ran(causal=True)
        steps.fell_back("a prompt", decoding=True)
    assert steps.as_dict() == {"mjolnir": 0, "non_causal": 0, "fallback": 0, "missed": 0, "reasons": {}}
    steps.ran(causal=True)
    steps.fell_back("a prompt", decoding=True)
    steps.reset()
    assert steps == Steps()
