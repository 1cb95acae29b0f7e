"""Removing a tag: a tombstone names the records that go, and only `collect`, asked for by name, takes them away.

A tombstone is a record of the tag that it removes, and stays for good, so that a fetch does not bring back what it
names. It names each writer by its last record; one that went on afterwards is kept whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mjolnir.ledger.commits import PREFIX
from mjolnir.ledger.errors import LedgerError, RecordError
from mjolnir.ledger.git_store import GitStore
from mjolnir.ledger.live import LiveFile, scan
from mjolnir.ledger.parsing import parse
from mjolnir.ledger.record import Record
from mjolnir.ledger.repair import rewrite

if TYPE_CHECKING:
    from mjolnir.ledger.ledger import Ledger

KIND = "tombstone"
_LOCK_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Buried:
    """What a tombstone says of one writer: its tag, and seq and sha256 of its last record."""

    tag: str
    seq: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection took away, or would take away.

    Attributes:
        records: how many, by tag.
        bytes: of their lines in the live file.
        kept: writers that are named by a tombstone and were kept, and why.
    """

    records: Mapping[str, int]
    bytes: int
    kept: Mapping[str, str]


def bury(
    ledger: Ledger,
    tag: str,
    reason: str,
    environment: Mapping[str, Any] | None = None,
    remains: Mapping[str, Any] | None = None,
) -> Record:
    """Append a tombstone for all that the tag has by now; nothing goes before `collect`.

    Args:
        ledger: where.
        tag: what is removed.
        reason: why, in words.
        environment: of this process.
        remains: what is to be known of the records when they are gone.

    Raises:
        LedgerError: the tag has no records, or none that are not under a tombstone yet.
    """
    records = ledger.records(tag)
    known = buried(records)
    lasting = {record.writer for record in records if record.kind == KIND}
    last = {record.writer: record for record in sorted(records, key=lambda record: record.seq)}
    writers = {
        writer: {"seq": record.seq, "sha256": record.sha256}
        for writer, record in sorted(last.items())
        if writer not in lasting and known.get(writer) != Buried(tag, record.seq, record.sha256)
    }
    if not writers:
        there = "all its records are removed already" if records else "there is no such tag"
        raise LedgerError(f"{tag} cannot be removed from {ledger.live}: {there}")
    with ledger.writer(tag, environment) as writer:
        return writer.append(KIND, {"text": reason, "writers": writers} | ({"remains": remains} if remains else {}))


def buried(records: Iterable[Record]) -> dict[str, Buried]:
    """What the tombstones among `records` name, by writer; what makes no sense in one is not heeded."""
    found: dict[str, Buried] = {}
    for record in records:
        named = record.body.get("writers") if record.kind == KIND else None
        for writer, last in named.items() if isinstance(named, Mapping) else ():
            if isinstance(last, Mapping) and type(last.get("seq")) is int and isinstance(last.get("sha256"), str):
                found[writer] = Buried(record.tag, last["seq"], last["sha256"])
    return found


def removed(records: Iterable[Record]) -> frozenset[str]:
    """The tags of which every record is a tombstone, or named by one."""
    every = list(records)
    named = buried(every)
    left = {record.tag for record in every if record.kind != KIND and not _covers(named.get(record.writer), record)}
    return frozenset(record.tag for record in every if record.kind == KIND) - left


def _covers(named: Buried | None, record: Record) -> bool:
    return named is not None and named.tag == record.tag and record.seq <= named.seq


def hidden(ledger: Ledger) -> frozenset[str]:
    """The removed tags of a ledger, which lists leave out; costs next to nothing where none was removed."""
    tags = {record.tag for record in ledger.records(kind=KIND)}
    return removed(record for tag in tags for record in ledger.records(tag))


def removal(ledger: Ledger, tag: str) -> Record | None:
    """The last tombstone of a tag that is removed; None for any other tag, at next to no cost."""
    stones = ledger.records(tag, KIND)
    if not stones or tag not in removed(ledger.records(tag)):
        return None
    return max(stones, key=lambda record: record.order)


def collect(ledger: Ledger, *, dry_run: bool = False) -> Collected:
    """Take away, from live file and refs, the records that tombstones name; with `dry_run` only tell.

    A kill in between leaves some of them; collecting again takes the rest. git drops their objects in its own time.

    Raises:
        LedgerError: the live file cannot be written, or git failed.
    """
    going, kept = _going(ledger)
    if dry_run or not going:
        size = sum(end - start for start, end in _ranges(ledger, going))
        return Collected(_counts(going), size, kept)
    counts = _counts(going)
    live = LiveFile(ledger.folder)
    try:
        with live.locked():
            live.mend()
            ranges = _ranges(ledger, going)
            if ranges:
                rewrite(ledger.live, ranges)
    finally:
        live.close()
    _drop_refs(ledger, going)
    ledger.reindex()
    ledger.tsv.unlink(missing_ok=True)
    # Opening a writer makes the table again; it appends nothing.
    ledger.writer("gc").close()
    return Collected(counts, sum(end - start for start, end in ranges), kept)


def _going(ledger: Ledger) -> tuple[dict[str, Buried], dict[str, str]]:
    """The writers that go, and those that are named but stay, with the reason."""
    going: dict[str, Buried] = {}
    kept: dict[str, str] = {}
    for writer, last in buried(ledger.records(kind=KIND)).items():
        mine = [record for record in ledger.records(last.tag) if record.writer == writer]
        if not mine:
            continue
        end = max(mine, key=lambda record: record.seq)
        if any(record.kind == KIND for record in mine):
            kept[writer] = "it holds a tombstone, which stays"
        elif (end.seq, end.sha256) != (last.seq, last.sha256):
            kept[writer] = f"its last record is {end.seq}, the tombstone names {last.seq}; remove the tag once more"
        else:
            going[writer] = last
    return going, kept


def _counts(going: Mapping[str, Buried]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for last in going.values():
        counts[last.tag] = counts.get(last.tag, 0) + last.seq + 1
    return counts


def _ranges(ledger: Ledger, going: Mapping[str, Buried]) -> list[tuple[int, int]]:
    """The bytes of the live file that hold the lines of these writers."""
    found = []
    for start, end, line in scan(ledger.live):
        try:
            if parse(line).writer in going:
                found.append((start, end))
        except RecordError:
            continue
    return found


def _drop_refs(ledger: Ledger, going: Mapping[str, Buried]) -> None:
    if ledger.repository is None:
        return
    store = GitStore.discover(ledger.folder)
    with store.locked(_LOCK_SECONDS):
        heads = store.heads()
        names = (f"{PREFIX}/{last.tag}/{writer}" for writer, last in going.items())
        store.move({name: (heads[name], "") for name in names if name in heads})
