"""The windows of a recording as JSON: thousands of looks at one card, column by column.

A block begins where the one before it ended, so two windows share a look, and looks have the same readings: the names
are written once, and a window is the numbers of its two looks. Recordings from before this form hold plain windows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

LOOKS = ("before", "after")
CLEAN = {"dirty": ""}
"""What most windows hold beside their looks; it is left out."""


def pack(windows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The windows as {"looks": {reading: [of each look, null where it has none]}, "windows": [[before, after], ...]}.

    A look that a window does not have is -1; a third item is what else the window holds, where that is not `CLEAN`.
    """
    places: dict[str, int] = {}
    looks: list[Mapping[str, Any]] = []
    rows: list[list[Any]] = []
    for window in windows:
        row: list[Any] = []
        for name in LOOKS:
            look = window.get(name)
            if look is None:
                row.append(-1)
                continue
            place = places.setdefault(json.dumps(look, sort_keys=True), len(looks))
            if place == len(looks):
                looks.append(look)
            row.append(place)
        rest = {name: value for name, value in window.items() if name not in LOOKS}
        rows.append(row if rest == CLEAN else [*row, rest])
    names = sorted({name for look in looks for name in look})
    return {"looks": {name: [look.get(name) for look in looks] for name in names}, "windows": rows}


def unpack(packed: Any) -> tuple[Mapping[str, Any], ...]:
    """The windows that `pack` was given, or plain ones as they are.

    Raises:
        KeyError, IndexError, TypeError, ValueError, AttributeError: they are neither.
    """
    if not isinstance(packed, Mapping):
        return tuple(map(dict, packed))
    columns = packed["looks"]
    values = zip(*columns.values(), strict=True)
    looks = [{name: value for name, value in zip(columns, row, strict=True) if value is not None} for row in values]
    return tuple(_window(row, looks) for row in packed["windows"])


def _window(row: list[Any], looks: list[dict[str, Any]]) -> dict[str, Any]:
    if len(row) not in (2, 3) or min(row[:2]) < -1:
        raise ValueError(f"{row!r:.80} is no window")
    found = {name: dict(looks[place]) for name, place in zip(LOOKS, row, strict=False) if place >= 0}
    return {**found, **(dict(row[2]) if len(row) > 2 else CLEAN)}
