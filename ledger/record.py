"""Records: what is kept, its one form in bytes, and what makes a line a record.

A record is one JSON object on one line, keys sorted, no spaces, UTF-8, without the newline. The bytes are the record:
its hash, its place in the chain and its commit are functions of them. So a line in any other spelling is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NoReturn

SCHEMA = "mjolnir.record/1"

KINDS = (
    "campaign", "epoch", "trial", "noise", "shootout", "confirmation",
    "promotion", "demotion", "canary", "window", "note", "end", "tombstone",
)  # fmt: skip

MAX_LINE = 16 * 1024 * 1024
"""Bytes of the longest line that is read or written: a bound for hostile files, far above any real record."""

_NEWER = re.compile(r"mjolnir\.record/(?:[2-9]|[1-9][0-9]{1,5})")
_TAG = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_WRITER = re.compile(r"[a-z2-7]{10}")
_HASH = re.compile(r"(?:[0-9a-f]{64})?")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))}
_SCALARS = frozenset({int, float, str, bool, type(None)})
_KEYS = frozenset({"schema", "kind", "tag", "writer", "seq", "lamport", "prev", "time", "body"})


class LedgerError(Exception):
    """Something of the ledger is wrong; the message says what, where, and what to do."""


class LedgerFull(LedgerError):
    """The disk is full: nothing was appended, and the file is as it was."""


class RecordError(LedgerError, ValueError):
    """Bytes that are no record, or values that cannot become one."""


class NewerRecord(RecordError):
    """A line of a schema that a newer Mjolnir wrote: nothing is wrong with it, but it cannot be read here."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record. Two are equal when their lines are.

    Attributes:
        kind: one of `KINDS`.
        tag: the campaign it belongs to.
        writer: ten base32 characters, drawn anew by every writer.
        seq: its number among its writer's records, from 0.
        lamport: 1 + the largest that its writer knew of when it was appended.
        prev: sha256 of its writer's previous line in hex; empty for the first.
        time: when it was appended, RFC 3339 in UTC with microseconds. Never used to order records.
        body: the content, by kind.
        environment: what the writer ran in; with the first record of a writer, and with no other.
        line: the bytes, without a newline.
    """

    kind: str
    tag: str
    writer: str
    seq: int
    lamport: int
    prev: str
    time: str
    body: Mapping[str, Any] = field(compare=False)
    environment: Mapping[str, Any] | None = field(compare=False)
    line: bytes = field(repr=False)

    @property
    def schema(self) -> str:
        """The schema that the line names."""
        return SCHEMA

    @property
    def identity(self) -> tuple[str, int]:
        """(writer, seq): the same identity with other bytes is corruption."""
        return self.writer, self.seq

    @property
    def order(self) -> tuple[int, str, int]:
        """The sort key of records: causes come before effects, whatever the clocks said."""
        return self.lamport, self.writer, self.seq

    @property
    def sha256(self) -> str:
        """Hash of the line in hex: what the next record's `prev` and the certificates cite."""
        return hashlib.sha256(self.line).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """The JSON object of the line, unknown keys included."""
        values: dict[str, Any] = json.loads(self.line)
        return values


@dataclass(frozen=True, slots=True)
class Draft:
    """A record that does not know its place yet. Its body is encoded beforehand, outside any lock."""

    kind: str
    tag: str
    writer: str
    time: str
    body: Mapping[str, Any]
    body_line: bytes
    environment: Mapping[str, Any] | None

    def at(self, seq: int, lamport: int, prev: str) -> Record:
        """The record at that place of its writer's chain; only the first one carries the environment.

        Raises:
            RecordError: the line would be longer than `MAX_LINE`.
        """
        envelope: dict[str, Any] = {
            "schema": SCHEMA, "kind": self.kind, "tag": self.tag, "writer": self.writer,
            "seq": seq, "lamport": lamport, "prev": prev, "time": self.time,
        }  # fmt: skip
        environment = None
        if seq == 0:
            envelope["environment"] = environment = self.environment or {}
        # "body" sorts before every other key, so that its bytes can be put in front as they are.
        line = b'{"body":' + self.body_line + b"," + canonical(envelope)[1:]
        if len(line) > MAX_LINE:
            raise RecordError(f"the {self.kind} record has {len(line)} bytes; {MAX_LINE} are allowed")
        return Record(self.kind, self.tag, self.writer, seq, lamport, prev, self.time, self.body, environment, line)


def draft(
    kind: str,
    tag: str,
    writer: str,
    body: Mapping[str, Any],
    *,
    environment: Mapping[str, Any] | None = None,
    time: datetime | None = None,
) -> Draft:
    """Check what is to become a record. Tuples become lists and keys become strings, as JSON has it.

    Raises:
        RecordError: an unknown kind, a tag against the rules, or a value that JSON has no form for; names where.
    """
    if kind not in KINDS:
        raise RecordError(f"{kind!r} is no kind of record; there are {', '.join(KINDS)}")
    normal, line = encode(body, "body")
    _check_body(kind, normal)
    moment = datetime.now(UTC) if time is None else time.astimezone(UTC)
    if moment.year < 1970:
        raise RecordError(f"time {moment} lies before 1970, which a commit cannot carry")
    stamp = moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
    kept = None if environment is None else encode(environment, "environment")[0]
    return Draft(kind, check_tag(tag), writer, stamp, normal, line, kept)


def new_writer() -> str:
    """Ten random base32 characters."""
    return "".join(secrets.choice("abcdefghijklmnopqrstuvwxyz234567") for _ in range(10))


def check_tag(tag: str) -> str:
    """Return `tag`, which serves as part of a ref, as a folder and as an argument.

    Raises:
        RecordError: it cannot serve as all three; says why.
    """
    problem = ""
    if not isinstance(tag, str) or not _TAG.fullmatch(tag):
        problem = "use 1 to 63 of a-z, 0-9, '.', '_' and '-', starting with a letter or a digit"
    elif ".." in tag:
        problem = "two dots in a row cannot be part of a git ref"
    elif tag.endswith((".", ".lock")):
        problem = "a git ref cannot end in '.' or '.lock'"
    elif tag.split(".")[0] in _DEVICES:
        problem = "Windows reserves that name"
    if problem:
        raise RecordError(f"{_shown(tag)} is no tag: {problem}")
    return tag


def canonical(value: object) -> bytes:
    """The one spelling of a JSON value. Raises ValueError or TypeError for what JSON does not have."""
    return _ENCODER.encode(value).encode()


def encode(value: Mapping[str, Any], name: str) -> tuple[dict[str, Any], bytes]:
    """What a reader will see of `value` (JSON types alone, keys sorted, a copy), and its canonical bytes.

    Raises:
        RecordError: a value that JSON has no form for; names its path.
    """
    try:
        normal, line = _normal(value)
    except (TypeError, ValueError, RecursionError) as error:
        path, found = next(_offenders(value, name), (name, error))
        raise RecordError(f"{path} cannot be recorded: {found}") from error
    if not isinstance(normal, dict):
        raise RecordError(f"{name} must be an object, not {type(value).__name__}")
    return normal, line


def _normal(value: Mapping[str, Any]) -> tuple[Any, bytes]:
    """`value` as it will be read, and its canonical bytes.

    Most bodies are JSON already. What is read back is then equal, and nothing has to be walked: a tuple, or a key that
    is no text, would have come back as something else.
    """
    try:
        line = canonical(value)
        if (normal := json.loads(line)) == value:
            return normal, line
    except (TypeError, ValueError, RecursionError):
        pass
    line = canonical(_textual(value))
    return json.loads(line), line


def parse(line: bytes) -> Record:
    """Read one line.

    Raises:
        RecordError: not a record of this schema, spelled the one way; the message says what is wrong.
    """
    values = _load(line)
    _check_envelope(values)
    _check_body(values["kind"], values["body"])
    if _spelled(values) != line:
        raise RecordError("the line is not in canonical form (sorted keys, no spaces, shortest numbers, each key once)")
    return Record(
        values["kind"], values["tag"], values["writer"], values["seq"], values["lamport"], values["prev"],
        values["time"], values["body"], values.get("environment"), line,
    )  # fmt: skip


def _load(line: bytes) -> dict[str, Any]:
    if len(line) > MAX_LINE:
        raise RecordError(f"the line has {len(line)} bytes; {MAX_LINE} are allowed")
    try:
        values = _DECODER.decode(line.decode())
    except UnicodeDecodeError as error:
        raise RecordError(f"the line is not UTF-8: byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise RecordError(f"the line is not JSON: {error.msg} at byte {error.pos}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"the line is not usable JSON: {error}") from error
    if not isinstance(values, dict):
        raise RecordError(f"the line is a JSON {type(values).__name__}, not an object")
    return values


def _spelled(values: Mapping[str, Any]) -> bytes:
    """The canonical bytes of what was read; JSON text can name a number or a character that no record may hold."""
    try:
        return canonical(values)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"the line holds what a record cannot: {error}") from error


def _check_envelope(values: Mapping[str, Any]) -> None:
    schema = values.get("schema")
    if schema != SCHEMA:
        if isinstance(schema, str) and _NEWER.fullmatch(schema):
            raise NewerRecord(f"schema is {schema!r}, expected {SCHEMA!r}; a newer Mjolnir wrote it, update to read it")
        raise RecordError(f"schema is {_shown(schema)}, expected {SCHEMA!r}")
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


def _check_body(kind: str, body: Mapping[str, Any]) -> None:
    if kind == "trial":
        number, status = body.get("trial"), body.get("status")
        if type(number) is not int or not 1 <= number < 2**63:
            raise RecordError(f"body.trial is {number!r}, expected a whole number from 1")
        if not isinstance(status, str) or not status:
            raise RecordError(f"body.status is {status!r}, expected how trial {number} ended")


def _wrong(values: Mapping[str, Any], key: str, expected: str) -> NoReturn:
    raise RecordError(f"{key} is {_shown(values[key])}, expected {expected}")


def _shown(value: object) -> str:
    """A value of a hostile line, short enough for a message."""
    text = repr(value)
    return text if len(text) < 100 else text[:100] + "..."


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
"""Made once: `json.dumps` and `json.loads` with options make one for every call."""


def _textual(value: Any) -> Any:
    """`value` with text for keys: a whole number sorts otherwise than as the text that it becomes."""
    if isinstance(value, Mapping):
        items = {_key(key): item if type(item) in _SCALARS else _textual(item) for key, item in value.items()}
        if len(items) < len(value):
            raise ValueError("two keys of one object become the same text")
        return items
    if isinstance(value, list | tuple) and not _SCALARS.issuperset(map(type, value)):
        return [_textual(item) for item in value]
    return value


def _key(key: object) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, int) and not isinstance(key, bool):
        return int.__repr__(key)
    raise TypeError(f"the key {key!r} is neither text nor a whole number")


def _offenders(value: object, path: str) -> Iterator[tuple[str, str]]:
    """Where `value` has no JSON form, and why; walked only once encoding has failed."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _offenders(item, f"{path}.{key}")
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
