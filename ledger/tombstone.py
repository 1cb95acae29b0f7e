"""Removing a tag: a tombstone names the records that go, and only `collect`, asked for by name, takes them away.

A tombstone is a record of the tag that it removes, and stays for good: a fetch brings back nothing of the tag. It names
each writer by its last record. What is here beyond that, such as what another host recorded before it knew, keeps the
tag whole until it is removed once more.
"""

from __future__ import annotations

from collections import Counter
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
LASTING = frozenset({KIND, "demotion"})
"""Kinds that a removed tag may go on to hold: a row can be taken out of force after its campaign is gone."""

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
        kept: how many later records the removed tags hold that were kept whole for them, by tag.
    """

    records: Mapping[str, int]
    bytes: int
    kept: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Removal:
    """A tag that was removed.

    Attributes:
        stone: its last tombstone.
        later: records of the tag that are here and that no tombstone names.
    """

    stone: Record
    later: int


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
    """What the tombstones among `records`, of one tag, name by writer; what makes no sense in one is not heeded."""
    found: dict[str, Buried] = {}
    for record in records:
        named = record.body.get("writers") if record.kind == KIND else None
        for writer, last in named.items() if isinstance(named, Mapping) else ():
            if isinstance(last, Mapping) and type(last.get("seq")) is int and isinstance(last.get("sha256"), str):
                new = Buried(record.tag, last["seq"], last["sha256"])
                # Of several tombstones the one that knew most: they may be of hosts that did not know one another.
                found[writer] = max(found.get(writer, new), new, key=lambda known: known.seq)
    return found


def removals(ledger: Ledger) -> dict[str, Removal]:
    """Every tag that was removed; costs next to nothing where none was."""
    last = {stone.tag: stone for stone in ledger.records(kind=KIND)}
    return {tag: Removal(stone, _later(ledger.records(tag))) for tag, stone in last.items()}


def removal(ledger: Ledger, tag: str) -> Removal | None:
    """The removal of a tag; None for one that was not removed, at next to no cost."""
    stones = ledger.records(tag, KIND)
    return Removal(stones[-1], _later(ledger.records(tag))) if stones else None


def hidden(ledger: Ledger) -> frozenset[str]:
    """The removed tags that lists leave out: those that hold nothing beyond what was removed."""
    return frozenset(tag for tag, gone in removals(ledger).items() if not gone.later)


def _later(records: Iterable[Record]) -> int:
    """How many records of a tag no tombstone names."""
    every = list(records)
    named = buried(every)
    return sum(record.kind not in LASTING and not _covers(named.get(record.writer), record) for record in every)


def _covers(named: Buried | None, record: Record) -> bool:
    if named is None or record.seq > named.seq:
        return False
    return record.seq < named.seq or record.sha256 == named.sha256


def collect(ledger: Ledger, *, dry_run: bool = False) -> Collected:
    """Take away, from live file and refs, the records that tombstones name; with `dry_run` only tell.

    A tag goes as a whole or not at all: half of it would be findings without their evidence.
    A kill in between leaves some of them; collecting again takes the rest. git drops their objects in its own time.

    Raises:
        LedgerError: the live file cannot be written, or git failed.
    """
    going, counts, kept = _going(ledger)
    if dry_run or not going:
        size = sum(end - start for start, end in _ranges(ledger, going))
        return Collected(counts, size, kept)
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


def _going(ledger: Ledger) -> tuple[dict[str, str], dict[str, int], dict[str, int]]:
    """The writers that go, with their tags; how many records of each tag that is; later ones of tags that stay."""
    going: dict[str, str] = {}
    counts: Counter[str] = Counter()
    kept: dict[str, int] = {}
    for tag, gone in removals(ledger).items():
        if gone.later:
            kept[tag] = gone.later
            continue
        records = ledger.records(tag)
        lasting = {record.writer for record in records if record.kind == KIND}
        named = buried(records).keys() - lasting
        mine = [record for record in records if record.writer in named]
        going |= {record.writer: tag for record in mine}
        if mine:
            counts[tag] = len(mine)
    return going, dict(counts), kept


def _ranges(ledger: Ledger, going: Mapping[str, str]) -> list[tuple[int, int]]:
    """The bytes of the live file that hold the lines of these writers."""
    found = []
    for start, end, line in scan(ledger.live):
        try:
            if parse(line).writer in going:
                found.append((start, end))
        except RecordError:
            continue
    return found


def _drop_refs(ledger: Ledger, going: Mapping[str, str]) -> None:
    if ledger.repository is None:
        return
    store = GitStore.discover(ledger.folder)
    with store.locked(_LOCK_SECONDS):
        heads = store.heads()
        names = (f"{PREFIX}/{tag}/{writer}" for writer, tag in going.items())
        store.move({name: (heads[name], "") for name in names if name in heads})
