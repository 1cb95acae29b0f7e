"""What cannot fit is not compiled, and nothing else is skipped."""

from __future__ import annotations

from typing import Any

import pytest

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.skips import Skips

FAILED = Setting(2, 4, l2_prefetch=1)
SPILLS = "registers: the compiled code spills 16 bytes a thread"


def body(status: str = "infeasible", reason: str = SPILLS, binary: str = "abc") -> dict[str, Any]:
    return {"status": status, "reason": reason, "binary": binary, "resolved": FAILED.as_dict(), "trial": 7}


@pytest.mark.parametrize(
    ("setting", "skipped"),
    [
        (Setting(2, 4, l2_prefetch=1), True),
        (Setting(2, 4, max_splits=64, l2_prefetch=1), True),
        (Setting(3, 4, l2_prefetch=1), True),
        (Setting(2, 6, l2_prefetch=1), True),
        (Setting(2, 3, l2_prefetch=1), False),
        (Setting(1, 12, l2_prefetch=1), False),
        (Setting(3, 6), False),
        (Setting(3, 6, pdl=1, l2_prefetch=1), False),
    ],
)
def test_what_needs_no_less_is_skipped(setting: Setting, skipped: bool) -> None:
    skips = Skips()
    assert skips.reason(setting) is None
    skips.learn(body())
    found = skips.reason(setting)
    assert (found is not None) == skipped
    if found:
        assert found == f"not compiled: it needs no less than trial 7, which did not fit ({SPILLS})"


@pytest.mark.parametrize(
    "told",
    [
        body("compile-failed", "DSLRuntimeError"),
        body("infeasible", "the recording does not hold this setting", ""),
        body("crashed", "out of resources"),
        body("measured", ""),
    ],
)
def test_other_failures_say_nothing_of_other_settings(told: dict[str, Any]) -> None:
    skips = Skips()
    skips.learn(told)
    assert skips.reason(Setting(3, 6, l2_prefetch=1)) is None
