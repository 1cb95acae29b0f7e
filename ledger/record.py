"""Records: what is kept, and its one form in bytes.

A record is one JSON object on one line, keys sorted, no spaces, UTF-8, without the newline, its body packed
(`mjolnir.ledger.packing`). The bytes are the record: its hash, its place in the chain and its commit are functions of
them. `mjolnir.ledger.parsing` reads lines.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from mjolnir.ledger.errors import RecordError
from mjolnir.ledger.names import check_tag
from mjolnir.ledger.packing import pack
from mjolnir.ledger.spelling import canonical, encode, offence
from mjolnir.ledger.unpacking import Body

SCHEMA = "mjolnir.record/2"
"""The schema that is written."""

PLAIN_SCHEMA = "mjolnir.record/1"
"""The one before it: bodies are not packed, and commits have more trailers. It is read for ever."""

KINDS = (
    "campaign", "epoch", "trial", "noise", "shootout", "confirmation",
    "promotion", "demotion", "canary", "window", "note", "end", "tombstone",
)  # fmt: skip

MAX_LINE = 16 * 1024 * 1024
"""Bytes of the longest line that is read or written: a bound for hostile files, far above any real record."""

MOST_TRIALS = 10_000_000
"""The largest number of a trial, a bound as well: numbers that were passed over are counted one by one."""


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
        content: the body, whose members are unpacked when they are asked for.
        environment: what the writer ran in; with the first record of a writer, and with no other.
        line: the bytes, without a newline.
        schema: the schema that the line names.
    """

    kind: str
    tag: str
    writer: str
    seq: int
    lamport: int
    prev: str
    time: str
    content: Mapping[str, Any] = field(compare=False, repr=False)
    environment: Mapping[str, Any] | None = field(compare=False)
    line: bytes = field(repr=False)
    schema: str = SCHEMA

    @classmethod
    def of(cls, values: Mapping[str, Any], line: bytes) -> Record:
        """The record of a line that was checked, and of what it decodes to."""
        body = values["body"] if values["schema"] == PLAIN_SCHEMA else Body(values["body"])
        return cls(
            values["kind"], values["tag"], values["writer"], values["seq"], values["lamport"], values["prev"],
            values["time"], body, values.get("environment"), line, values["schema"],
        )  # fmt: skip

    @property
    def body(self) -> Mapping[str, Any]:
        """What is recorded, by kind: JSON values."""
        return self.content.whole() if isinstance(self.content, Body) else self.content

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
        """The JSON object that the line stands for, its body unpacked, unknown keys included."""
        values: dict[str, Any] = json.loads(self.line)
        return values if self.schema == PLAIN_SCHEMA else {**values, "body": Body(values["body"]).whole()}


@dataclass(frozen=True, slots=True)
class Draft:
    """A record that does not know its place yet. Its body is encoded beforehand, outside any lock."""

    kind: str
    tag: str
    writer: str
    time: str
    body: Body
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
    packed, line = _packed(body)
    check_body(kind, packed)
    moment = datetime.now(UTC) if time is None else time.astimezone(UTC)
    if moment.year < 1970:
        raise RecordError(f"time {moment} lies before 1970, which a commit cannot carry")
    stamp = moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
    kept = None if environment is None else encode(environment, "environment")[0]
    return Draft(kind, check_tag(tag), writer, stamp, packed, line, kept)


def _packed(body: Mapping[str, Any]) -> tuple[Body, bytes]:
    """The body as it is written, and its bytes."""
    if not isinstance(body, Mapping):
        raise RecordError(f"body must be an object, not {type(body).__name__}")
    try:
        packed = pack(body)
        line = canonical(packed)
    except (TypeError, ValueError, RecursionError) as error:
        raise offence(body, "body", error) from error
    return Body(packed), line


def check_body(kind: str, body: Mapping[str, Any]) -> None:
    """See that a body has what the index needs of its kind.

    Raises:
        RecordError: it has not.
    """
    if kind == "trial":
        number, status = body.get("trial"), body.get("status")
        if type(number) is not int or not 1 <= number <= MOST_TRIALS:
            raise RecordError(f"body.trial is {number!r}, expected a whole number from 1 to {MOST_TRIALS}")
        if not isinstance(status, str) or not status:
            raise RecordError(f"body.status is {status!r}, expected how trial {number} ended")
