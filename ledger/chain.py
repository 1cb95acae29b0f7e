"""The hash chain of a writer: what a record must be to follow another."""

from __future__ import annotations

from dataclasses import dataclass

from mjolnir.ledger.record import Record


@dataclass(frozen=True, slots=True)
class Link:
    """What the next record of the same writer has to agree with."""

    tag: str
    seq: int
    lamport: int
    sha256: str

    @classmethod
    def of(cls, record: Record) -> Link:
        """The link that `record` is to its successor."""
        return cls(record.tag, record.seq, record.lamport, record.sha256)


def broken(before: Link | None, record: Record) -> str:
    """Why `record` cannot follow `before` (None: nothing came before); empty when it does."""
    expected = 0 if before is None else before.seq + 1
    if record.seq != expected:
        return f"comes where record {expected} is expected: records are missing"
    if before is None:
        return ""
    if record.prev != before.sha256:
        return "does not cite the record before it: one of them was altered"
    if record.tag != before.tag:
        return f"is of tag {record.tag!r}, the writer's others of {before.tag!r}"
    if record.lamport <= before.lamport:
        return f"has lamport {record.lamport}, not above {before.lamport} of the record before it"
    return ""
