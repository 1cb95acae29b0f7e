"""The one spelling of JSON values: keys sorted, no spaces, shortest numbers, UTF-8."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from mjolnir.ledger.errors import RecordError

_SCALARS = frozenset({int, float, str, bool, type(None)})


def canonical(value: object) -> bytes:
    """The one spelling of a JSON value. Raises ValueError or TypeError for what JSON does not have."""
    return _ENCODER.encode(value).encode()


def decode(text: str) -> Any:
    """Read JSON text. Raises ValueError for what is none, and for numbers that JSON does not have."""
    return _DECODER.decode(text)


def encode(value: Mapping[str, Any], name: str) -> tuple[dict[str, Any], bytes]:
    """What a reader will see of `value` (JSON types alone, keys sorted, a copy), and its canonical bytes.

    Raises:
        RecordError: a value that JSON has no form for; names its path.
    """
    try:
        line = canonical(_textual(value))
        normal = json.loads(line)
    except (TypeError, ValueError, RecursionError) as error:
        raise offence(value, name, error) from error
    if not isinstance(normal, dict):
        raise RecordError(f"{name} must be an object, not {type(value).__name__}")
    return normal, line


def key(name: object) -> str:
    """A key of an object as JSON has it. Raises TypeError for what is neither text nor a whole number."""
    if isinstance(name, str):
        return name
    if isinstance(name, int) and not isinstance(name, bool):
        return int.__repr__(name)
    raise TypeError(f"the key {name!r} is neither text nor a whole number")


def offence(value: object, name: str, error: Exception) -> RecordError:
    """The error that names where in `value`, which could not be encoded, something has no JSON form."""
    path, found = next(_offenders(value, name), (name, error))
    return RecordError(f"{path} cannot be recorded: {found}")


def _textual(value: Any) -> Any:
    """`value` with text for keys: a whole number sorts otherwise than as the text that it becomes."""
    if isinstance(value, Mapping):
        items = {key(name): item if type(item) in _SCALARS else _textual(item) for name, item in value.items()}
        if len(items) < len(value):
            raise ValueError("two keys of one object become the same text")
        return items
    if isinstance(value, list | tuple) and not _SCALARS.issuperset(map(type, value)):
        return [_textual(item) for item in value]
    return value


def _offenders(value: object, path: str) -> Iterator[tuple[str, str]]:
    """Where `value` has no JSON form, and why; walked only once encoding has failed."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _offenders(item, f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _offenders(item, f"{path}[{number}]")
    else:
        try:
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            yield path, "text with a lone surrogate, which UTF-8 does not have"
        except (TypeError, ValueError) as error:
            yield path, f"{value!r:.80}: {error}"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
"""Made once: `json.dumps` and `json.loads` with options make one for every call."""
