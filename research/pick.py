"""Finding the row that a person means: by batch, by fields of its key, or by the whole key."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from mjolnir.backend.key import bucket_of
from mjolnir.backend.table import Key, Row, Table
from mjolnir.research.answer import UsageFailure


class NoRowFailure(UsageFailure):
    """No row is the one that is meant.

    Attributes:
        batch: that it was asked for, as text or number; None where none was.
    """

    def __init__(self, message: str, batch: Any) -> None:
        super().__init__(message)
        self.batch = batch


FIELDS = tuple(field.name for field in fields(Key))


def pick(tables: Sequence[Table], text: str, device: str | None = None) -> tuple[Table, Row]:
    """The one row that `text` and `device` fit, in the first table that has it.

    Args:
        tables: in the order in which they are asked.
        text: a batch (`8`), fields of the key (`batch=8,page_size=64`), or a key as JSON.
        device: the device's name, or a part of it.

    Raises:
        NoRowFailure: no row fits; the message lists those that there are.
        UsageFailure: several do; the message lists them.
    """
    wanted = _wanted(text)
    found: dict[Key, tuple[Table, Row]] = {}
    for table in tables:
        for row in table.rows:
            if _fits(row.key, wanted, device):
                found.setdefault(row.key, (table, row))
    if len(found) == 1:
        return next(iter(found.values()))
    asked = text + (f" on {device}" if device else "")
    if found:
        listed = "".join(f"\n  {json.dumps(key.as_dict())}" for key in sorted(found))
        raise UsageFailure(f"{len(found)} rows fit {asked}; add fields of the key, such as heads_q=32:{listed}")
    known = "".join(f"\n  {key}" for key in sorted({row.key for table in tables for row in table.rows}))
    said = f"no row fits {asked}; there are:{known}" if known else f"no row fits {asked}: there are no rows"
    raise NoRowFailure(said, wanted.get("batch"))


def _wanted(text: str) -> dict[str, Any]:
    """Fields of a key and the values asked for, as text or JSON gave them."""
    if text.isdigit() and int(text):
        return {"batch": bucket_of(int(text))}
    if text.lstrip().startswith("{"):
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise UsageFailure(f"{text!r} is no key: {error}") from error
    else:
        values = dict(part.partition("=")[::2] for part in text.split(","))
    for name, value in values.items():
        if name not in FIELDS or (value == "" and name != "mig"):
            raise UsageFailure(
                f"{text!r} names no row: write a batch, a key as JSON, or FIELD=VALUE,... with {', '.join(FIELDS)}"
            )
    return dict(values)


def _fits(key: Key, wanted: Mapping[str, Any], device: str | None) -> bool:
    if device and device.lower() not in key.device.lower():
        return False
    return all(_same(getattr(key, name), value) for name, value in wanted.items())


def _same(value: object, wanted: Any) -> bool:
    """Equal as JSON, or as the text that a command line gives."""
    return value == wanted or (isinstance(wanted, str) and str(value).lower() == wanted.strip().lower())
