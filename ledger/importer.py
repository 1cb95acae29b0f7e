"""Reading jsonl files, and taking their records into a ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mjolnir.ledger.chain import Link, broken
from mjolnir.ledger.errors import LedgerError, RecordError
from mjolnir.ledger.live import scan
from mjolnir.ledger.parsing import parse
from mjolnir.ledger.record import MAX_LINE, Record


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did.

    Attributes:
        added: records that were new.
        known: records that were there already.
        torn: True when the file ended in the middle of a line, which was left out.
    """

    added: int
    known: int
    torn: bool


def read_file(path: Path | str) -> tuple[Record, ...]:
    """The records of a jsonl file, in the order of the file; a torn last line is left out.

    Raises:
        LedgerError: it cannot be read, or a line is no record; names file and line.
    """
    return read_untorn(path)[0]


def read_untorn(path: Path | str) -> tuple[tuple[Record, ...], bool]:
    """As `read_file`, and whether a torn last line was left out."""
    path = Path(path)
    records: list[Record] = []
    end = 0
    try:
        for _, after, line in scan(path, must_exist=True):
            end = after
            records.append(_parse(line, path, len(records) + 1))
        with path.open("rb") as file:
            file.seek(end)
            tail = file.read(MAX_LINE + 1)
    except OSError as error:
        raise LedgerError(f"{path} cannot be read: {error.strerror}") from error
    if tail:
        try:
            # An editor may have taken the last newline, and nothing else.
            records.append(parse(tail))
            tail = b""
        except RecordError:
            pass
    return tuple(records), bool(tail)


def _parse(line: bytes, path: Path, number: int) -> Record:
    try:
        return parse(line)
    except RecordError as error:
        raise LedgerError(f"{path}, line {number}: {error}") from error


def missing(records: Iterable[Record], known: Mapping[tuple[str, int], Link]) -> Sequence[Record]:
    """Those of `records` that are not in `known` (links by identity), in the order of records.

    Raises:
        LedgerError: an identity with two contents, or a record that does not follow; nothing may be taken.
    """
    links = dict(known)
    found: list[Record] = []
    for record in sorted(records, key=lambda record: record.identity):
        there, link = links.get(record.identity), Link.of(record)
        if there is None:
            if wrong := broken(links.get((record.writer, record.seq - 1)), record):
                raise _refusal(record, f"{wrong}: take the whole file, as it was written")
            links[record.identity] = link
            found.append(record)
        elif there != link:
            content = f"sha256 {there.sha256[:12]} and {link.sha256[:12]}"
            raise _refusal(record, f"is here or in the file with other content ({content}): one was altered")
    return sorted(found, key=lambda record: record.order)


def _refusal(record: Record, reason: str) -> LedgerError:
    return LedgerError(f"nothing was imported: record {record.seq} of writer {record.writer} {reason}")
