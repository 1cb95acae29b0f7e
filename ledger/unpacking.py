"""Reading packed bodies (`mjolnir.ledger.packing`): first checked, then unpacked where somebody looks."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any

from mjolnir.ledger import numbers
from mjolnir.ledger.packing import MOST_REPEATS, PLAIN, require_few

_HEXES = re.compile("~h([1-9][0-9]{0,3}),([1-9][0-9]{0,6})/(.*)")


def unpack(value: Any) -> Any:
    """What `pack` was given, in the types that JSON has; of packed values that `check` has passed."""
    if type(value) is str:
        return _unpack_text(value) if value[:1] == "~" else value
    if type(value) is list:
        return [item if type(item) in PLAIN else unpack(item) for item in value]
    if type(value) is not dict:
        return value
    if len(value) == 1:
        if "~r" in value:
            count, item = value["~r"]
            return [unpack(item) for _ in range(count)]
        if "~c" in value:
            columns = _members(value["~c"])
            return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return _members(value)


def _members(value: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name[1:] if name[:1] == "~" else name: item if type(item) in PLAIN else unpack(item)
        for name, item in value.items()
    }


def _unpack_text(text: str) -> Any:
    match text[1:2]:
        case "i":
            return numbers.from_text(text[2:])[0]
        case "m":
            return numbers.from_text(text[2:])
        case "h":
            digits, count, packed = _hexes(text)
            whole = numbers.from_base64(packed).hex()
            return [whole[start : start + digits] for start in range(0, digits * count, digits)]
    return text[1:]


def _hexes(text: str) -> tuple[int, int, str]:
    """Digits of a text, how many there are, and all as base64. Raises ValueError for what is none of it."""
    found = _HEXES.fullmatch(text)
    if not found:
        raise ValueError("hex is not packed as it should be")
    digits, count = int(found[1]), int(found[2])
    if digits % 2 or digits * count > len(text) * 2:
        raise ValueError(f"{count} texts of {digits} hex digits do not fit")
    numbers.require_base64(found[3], digits * count // 2)
    return digits, count, found[3]


def check(body: Mapping[str, Any]) -> int:
    """See that a packed body can be unpacked; the number of values that it stands for.

    Raises:
        ValueError: it cannot, or it stands for more than `MOST_VALUES`.
    """
    count = _count_members(body)
    require_few(count)
    return count


def _measure(value: Any) -> tuple[int, int | None]:
    """How many values a packed one stands for; and how long it is, where it stands for a list."""
    kind = type(value)
    if kind is str:
        return _measure_text(value) if value[:1] == "~" else (1, None)
    if kind is list:
        return 1 + _count_items(value), len(value)
    if kind is not dict:
        return 1, None
    if len(value) == 1 and "~r" in value:
        return _measure_repeats(value["~r"])
    if len(value) == 1 and "~c" in value:
        return _measure_columns(value["~c"])
    return _count_members(value), None


def _count_members(value: Mapping[str, Any]) -> int:
    _check_names(tuple(value))
    return 1 + _count_items(value.values())


@lru_cache(maxsize=512)
def _check_names(names: tuple[str, ...]) -> None:
    """Refuse a key that stands for something packed; objects of a ledger are alike, so few are looked at twice."""
    for name in names:
        if name[:1] == "~" and name[1:2] != "~":
            raise ValueError(f"the key {name[:20]!r} is not spelled as a packed body's")


def _count_items(items: Collection[Any]) -> int:
    """How many values some together stand for; most are plain, and every line of a ledger comes by here."""
    count = len(items)
    for item in items:
        kind = type(item)
        if kind in PLAIN or (kind is str and item[:1] != "~"):
            continue
        count += _count_items(item) if kind is list else _measure(item)[0] - 1
    return count


def _measure_text(text: str) -> tuple[int, int | None]:
    match text[1:2]:
        case "~":
            return 1, None
        case "i":
            rows, length = numbers.size(text[2:])
            if rows != 1:
                raise ValueError(f"a list of numbers has {rows} rows")
            return 1 + length, length
        case "m":
            rows, length = numbers.size(text[2:])
            return rows * (1 + length), rows
        case "h":
            _, count, _ = _hexes(text)
            return 1 + count, count
    raise ValueError(f"the text {text[:20]!r} is not spelled as a packed body's")


def _measure_repeats(value: Any) -> tuple[int, int]:
    if type(value) is not list or len(value) != 2 or type(value[0]) is not int or not 2 <= value[0] <= MOST_REPEATS:
        raise ValueError("equal items are not packed as they should be")
    return 1 + int(value[0]) * _measure(value[1])[0], value[0]


def _measure_columns(value: Any) -> tuple[int, int]:
    if type(value) is not dict or not value:
        raise ValueError("columns are not packed as they should be")
    _check_names(tuple(value))
    counts, lengths = zip(*map(_measure, value.values()), strict=True)
    if lengths[0] is None or len(set(lengths)) != 1:
        raise ValueError("columns are of different lengths, or none")
    return 1 + sum(counts), lengths[0]


class Body(Mapping[str, Any]):
    """A body over its packed form; each member is unpacked when it is asked for, once."""

    __slots__ = ("_known", "_packed", "_whole")

    def __init__(self, packed: Mapping[str, Any]) -> None:
        """Take what `check` has passed."""
        self._packed = packed
        self._known: dict[str, Any] = {}
        self._whole: dict[str, Any] | None = None

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            self._known[name] = unpack(self._packed["~" + name if name[:1] == "~" else name])
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return (name[1:] if name[:1] == "~" else name for name in self._packed)

    def __len__(self) -> int:
        return len(self._packed)

    def whole(self) -> dict[str, Any]:
        """All of it as a plain object; the same one each time."""
        if self._whole is None:
            self._whole = dict(self)
        return self._whole

    def __repr__(self) -> str:
        return repr(dict(self))
