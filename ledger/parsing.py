"""Reading lines: what makes one a record. A line in any other spelling than the one is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from mjolnir.ledger import unpacking
from mjolnir.ledger.errors import NewerRecord, RecordError
from mjolnir.ledger.names import check_tag, shown
from mjolnir.ledger.record import KINDS, MAX_LINE, PLAIN_SCHEMA, SCHEMA, Record, check_body
from mjolnir.ledger.spelling import canonical, decode

_NEWER = re.compile(r"mjolnir\.record/(?:[3-9]|[1-9][0-9]{1,5})")
_WRITER = re.compile(r"[a-z2-7]{10}")
_HASH = re.compile(r"(?:[0-9a-f]{64})?")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
_KEYS = frozenset({"schema", "kind", "tag", "writer", "seq", "lamport", "prev", "time", "body"})


def parse(line: bytes) -> Record:
    """Read one line.

    Raises:
        RecordError: not a record of a schema that is known, spelled the one way; the message says what is wrong.
    """
    values = _load(line)
    _check_envelope(values)
    if values["schema"] == SCHEMA:
        _check_packed(values["body"])
    if _spelled(values) != line:
        raise RecordError("the line is not in canonical form (sorted keys, no spaces, shortest numbers, each key once)")
    record = Record.of(values, line)
    check_body(record.kind, record.content)
    return record


def trusted(line: bytes) -> Record:
    """The record of a line that was checked before, and that nobody else writes."""
    return Record.of(json.loads(line), line)


def _load(line: bytes) -> dict[str, Any]:
    if len(line) > MAX_LINE:
        raise RecordError(f"the line has {len(line)} bytes; {MAX_LINE} are allowed")
    try:
        values = decode(line.decode())
    except UnicodeDecodeError as error:
        raise RecordError(f"the line is not UTF-8: byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise RecordError(f"the line is not JSON: {error.msg} at byte {error.pos}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"the line is not usable JSON: {error}") from error
    if not isinstance(values, dict):
        raise RecordError(f"the line is a JSON {type(values).__name__}, not an object")
    return values


def _check_packed(body: Mapping[str, Any]) -> None:
    try:
        unpacking.check(body)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"body is not packed as it should be: {error}") from error


def _spelled(values: Mapping[str, Any]) -> bytes:
    """The canonical bytes of what was read; JSON text can name a number or a character that no record may hold."""
    try:
        return canonical(values)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"the line holds what a record cannot: {error}") from error


def _check_envelope(values: Mapping[str, Any]) -> None:
    schema = values.get("schema")
    if schema not in (SCHEMA, PLAIN_SCHEMA):
        expected = f"expected {SCHEMA!r} or {PLAIN_SCHEMA!r}"
        if isinstance(schema, str) and _NEWER.fullmatch(schema):
            raise NewerRecord(f"schema is {schema!r}, {expected}; a newer Mjolnir wrote it, update to read it")
        raise RecordError(f"schema is {shown(schema)}, {expected}")
    missing = sorted(_KEYS - set(values))
    if missing:
        raise RecordError(f"{missing[0]!r} is missing")
    if values["kind"] not in KINDS:
        _wrong(values, "kind", f"one of {', '.join(KINDS)}")
    check_tag(values["tag"])
    for key, pattern, words in (
        ("writer", _WRITER, "ten characters of a-z and 2-7"),
        ("prev", _HASH, "a sha256 in hex, or empty"),
        ("time", _TIME, "a time like 2026-01-31T12:00:00.000000Z"),
    ):
        if not isinstance(values[key], str) or not pattern.fullmatch(values[key]):
            _wrong(values, key, words)
    for key, least in (("seq", 0), ("lamport", 1)):
        if type(values[key]) is not int or not least <= values[key] < 2**63:
            _wrong(values, key, f"a whole number from {least}")
    _check_time(values)
    _check_first(values)


def _check_time(values: Mapping[str, Any]) -> None:
    try:
        moment = datetime.fromisoformat(values["time"])
    except ValueError:
        _wrong(values, "time", "a time that exists")
    if moment.year < 1970:
        _wrong(values, "time", "a time from 1970 on, which a commit can carry")


def _check_first(values: Mapping[str, Any]) -> None:
    first = values["seq"] == 0
    if first != (values["prev"] == ""):
        _wrong(values, "prev", "empty in the first record of a writer and in no other")
    if first != ("environment" in values):
        raise RecordError(f"seq is {values['seq']}: the first record of a writer carries 'environment', no other does")
    for key in ("body", "environment"):
        if key in values and not isinstance(values[key], dict):
            _wrong(values, key, "an object")


def _wrong(values: Mapping[str, Any], key: str, expected: str) -> NoReturn:
    raise RecordError(f"{key} is {shown(values[key])}, expected {expected}")
