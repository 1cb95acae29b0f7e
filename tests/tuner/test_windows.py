"""Windows column by column: what is packed comes back, small, and what is no window is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mjolnir.tuner.windows import pack, unpack

LOOK = {"sm_mhz": 1980, "watts": 266.7, "throttle": ["sw_power_cap"], "celsius": 41}
WARM = {**LOOK, "celsius": 42}
WINDOWS: tuple[dict[str, Any], ...] = (
    {"before": LOOK, "after": WARM, "dirty": ""},
    {"before": WARM, "after": {"nvml": "not usable"}, "dirty": ""},
    {"before": WARM, "after": LOOK, "dirty": "hot", "discarded": [{"samples": [[1]]}]},
    {"clock": 1980},
    {},
)


def test_windows_come_back_as_they_were() -> None:
    packed = json.loads(json.dumps(pack(WINDOWS)))
    assert unpack(packed) == WINDOWS
    assert len(packed["looks"]["celsius"]) == 3
    assert packed["windows"][:2] == [[0, 1], [1, 2]]
    assert unpack(json.loads(json.dumps(pack(())))) == ()


def test_plain_windows_of_earlier_recordings_are_read() -> None:
    assert unpack([dict(window) for window in WINDOWS]) == WINDOWS


@pytest.mark.parametrize(
    "damage",
    [
        {"windows": [[0, 7]]},
        {"windows": [[-2, 0]]},
        {"windows": [[0]]},
        {"windows": [3]},
        {"looks": {"a": [1], "b": []}},
        {"looks": 3},
    ],
)
def test_what_is_no_window_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises((LookupError, TypeError, ValueError, AttributeError)):
        unpack({**pack(WINDOWS), **damage})
