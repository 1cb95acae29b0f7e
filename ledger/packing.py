"""The bodies of records as they are written: what repeats is said once, and long rows of numbers are packed.

Packing is a spelling, as JSON is one: whoever reads a body sees what was given. It knows nothing of trials, only of
JSON. A text that begins with `~` is a packed list:

- `~i...`: whole numbers, `~m...`: rows of them of equal length (`mjolnir.ledger.numbers`);
- `~hDIGITS,COUNT/...`: so many texts of so many hex digits each, as base64.

An object with one key that begins with `~` is a list of objects:

- `{"~c": {key: list, ...}}`: objects with the same keys, by column;
- `{"~r": [count, item]}`: equal items.

A text or key of the body's own that begins with `~` gets another one in front. `mjolnir.ledger.unpacking` reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mjolnir.ledger import numbers
from mjolnir.ledger.spelling import key

LEAST = 10
"""Numbers of a list that is worth packing."""

FAR = 1 << 24
"""Numbers that lie so far apart are no samples of one kind, such as seeds: packed they would not become shorter."""

MOST_VALUES = 1 << 22
"""Values of one body: a few bytes can stand for very many, and a hostile line must not fill the memory."""

MOST_REPEATS = 1 << 16
"""Equal items that are said once."""

_HEX = re.compile("[0-9a-f]+")
PLAIN = frozenset({int, float, bool, type(None)})
"""The types whose values are spelled as they are."""


def pack(value: Mapping[str, Any]) -> dict[str, Any]:
    """The packed form of a body that JSON can hold: tuples are lists, and keys are text.

    Raises:
        TypeError, ValueError: keys that JSON does not have, or more than `MOST_VALUES` values.
    """
    packer = _Packer()
    packed = packer.members(value)
    require_few(packer.count)
    return packed


class _Packer:
    """Packs one body; `count` is how many values it has been given, each equal one of several counted."""

    def __init__(self) -> None:
        self.count = 1

    def value(self, value: Any) -> Any:
        kind = type(value)
        if kind in PLAIN:
            return value
        if kind is str or isinstance(value, str):
            return "~" + value if value[:1] == "~" else value
        if kind is dict:
            return self.members(value)
        if isinstance(value, list | tuple):
            return self._list(value)
        return self.members(value) if isinstance(value, Mapping) else value

    def members(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        self.count += len(value)
        packed = {}
        for name, item in value.items():
            text = name if type(name) is str else key(name)
            packed["~" + text if text[:1] == "~" else text] = item if type(item) in PLAIN else self.value(item)
        if len(packed) < len(value):
            raise ValueError("two keys of one object become the same text")
        # In the order in which they are written, and so read: a commit's subject goes by it.
        return dict(sorted(packed.items()))

    def _list(self, items: Sequence[Any]) -> Any:
        kind = type(items[0]) if items else None
        if kind is int and _are_numbers(items):
            self.count += len(items)
            return "~i" + numbers.to_text([items])
        if len(items) > 1 and (kind is list or kind is tuple) and _are_rows(items):
            self.count += len(items) * (1 + len(items[0]))
            return "~m" + numbers.to_text(items)
        if len(items) > 1 and kind is str and _are_hex(items):
            self.count += len(items)
            return f"~h{len(items[0])},{len(items)}/" + numbers.as_base64(bytes.fromhex("".join(items)))
        if len(items) > 1 and kind is dict and _are_alike(items):
            return self._objects(items)
        self.count += len(items)
        return [item if type(item) in PLAIN else self.value(item) for item in items]

    def _objects(self, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        if len(items) <= MOST_REPEATS and all(_are_same(item, items[0]) for item in items):
            before = self.count
            packed = self.value(items[0])
            self.count = before + (1 + self.count - before) * len(items)
            return {"~r": [len(items), packed]}
        return {"~c": self.members({name: [item[name] for item in items] for name in items[0]})}


def _are_same(one: Any, other: Any) -> bool:
    """Whether two values are spelled alike; Python takes 1, True and 1.0 for equal."""
    return one is other or (one == other and repr(one) == repr(other))


def _are_numbers(items: Sequence[Any]) -> bool:
    """Whether these are whole numbers worth packing, close to one another; a bool is none."""
    if not LEAST <= len(items) <= numbers.MOST or set(map(type, items)) != {int}:
        return False
    least, most = int(min(items)), int(max(items))
    return most - least < FAR and least > -numbers.LIMIT and most < numbers.LIMIT


def _are_rows(items: Sequence[Any]) -> bool:
    length = len(items[0])
    if len(items) * length > numbers.MOST:
        return False
    return all(type(item) in (list, tuple) and len(item) == length and _are_numbers(item) for item in items)


def _are_hex(items: Sequence[Any]) -> bool:
    length = len(items[0])
    if not 8 <= length < 10_000 or length % 2:
        return False
    return all(type(item) is str and len(item) == length and _HEX.fullmatch(item) for item in items)


def _are_alike(items: Sequence[Any]) -> bool:
    """Whether these are objects with the same keys, all text, and with one at least."""
    names = items[0].keys()
    return bool(names) and all(type(item) is dict and item.keys() == names for item in items)


def require_few(count: int) -> None:
    """Refuse a body that stands for too many values. Raises ValueError."""
    if count > MOST_VALUES:
        raise ValueError(f"it stands for {count} values; {MOST_VALUES} are allowed")
