"""Repair: what is provably whole stays, the rest is set aside. Nothing is deleted; doing it twice changes nothing.

A record is provably whole when every record of its writer before it is there and cites the one before. Where two
lines claim one place in that chain, the one in git counts, else the one that the next record cites. Lines that
cannot stay go into `.ledger/aside-<hash>`, refs that cannot stay as they are to `refs/mjolnir/aside/`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mjolnir.ledger import aside
from mjolnir.ledger.chain import Link, broken
from mjolnir.ledger.commits import PREFIX
from mjolnir.ledger.errors import LedgerError, NewerRecord, RecordError
from mjolnir.ledger.git_store import GitError, GitStore
from mjolnir.ledger.live import LiveFile, scan
from mjolnir.ledger.parsing import parse
from mjolnir.ledger.proof import Proof, prove
from mjolnir.ledger.record import MAX_LINE, Record
from mjolnir.ledger.verify import Problem

if TYPE_CHECKING:
    from mjolnir.ledger.ledger import Ledger

ASIDE = "refs/mjolnir/aside"
"""Where refs are kept that could not stay; pushed and fetched no more than any other ref."""

_LOCK_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Repair:
    """What a repair did, or would do.

    Attributes:
        kept: lines of the live file that stay.
        lines: the lines that do not, and why.
        refs: the refs that do not stay as they are, and why.
        file: where the lines lie now; None when there are none, or nothing was done yet.
        note: what could not be looked at or done, and why; empty when all was.
    """

    kept: int
    lines: tuple[Problem, ...]
    refs: tuple[Problem, ...]
    file: Path | None = None
    note: str = ""

    @property
    def needed(self) -> bool:
        """True when there is something that cannot stay."""
        return bool(self.lines or self.refs)


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the live file: its bytes there, and its record, or why it is none."""

    start: int
    end: int
    number: int
    record: Record | None
    wrong: str = ""


def repair(ledger: Ledger, *, dry_run: bool = False) -> Repair:
    """Repair live file and refs of `ledger`, then build index and table again; with `dry_run` only tell.

    Raises:
        LedgerError: the live file cannot be written, or holds lines of a newer Mjolnir; nothing was changed.
    """
    store, note = _store(ledger)
    torn = _torn(ledger.live)
    if dry_run:
        planned = _plan(ledger.live, _proofs(store), note)[0]
        return replace(planned, lines=(*planned.lines, *torn))
    if not ledger.live.exists() and store is None:
        return Repair(0, (), (), None, note)
    live = LiveFile(ledger.folder)
    try:
        with live.locked():
            live.mend()
            proofs = _proofs(store)
            planned, dropped = _plan(ledger.live, proofs, note)
            file = rewrite(ledger.live, dropped, "aside") if dropped else None
            note = _set_back(store, proofs, note)
    finally:
        live.close()
    done = replace(planned, lines=(*planned.lines, *torn), file=file, note=note)
    _rebuild(ledger, done.needed)
    return done


def rewrite(live: Path, dropped: Sequence[tuple[int, int]], prefix: str = "") -> Path | None:
    """Write the live file anew without these ranges of bytes, which with a `prefix` are set aside first; returns where.

    To be called while its lock is held. A kill leaves the file as it was or as it shall be.
    """
    draft = live.with_name(live.name + ".new")
    draft.unlink(missing_ok=True)
    fd = os.open(live, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    try:
        file = None
        if prefix:
            file = aside.put(live.parent, prefix, (part for ends in dropped for part in aside.piece(fd, *ends)))
        with os.fdopen(aside.create(draft), "wb") as target:
            position = 0
            for start, end in (*dropped, (os.fstat(fd).st_size,) * 2):
                target.writelines(aside.piece(fd, position, start))
                position = end
            target.flush()
            os.fsync(target.fileno())
        draft.replace(live)
        aside.sync_folder(live.parent)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise LedgerError(f"{live} cannot be written anew: {error.strerror}; it is as it was") from error
    finally:
        os.close(fd)
    return file


def _store(ledger: Ledger) -> tuple[GitStore | None, str]:
    if ledger.repository is None:
        return None, ledger.git_note
    try:
        return GitStore.discover(ledger.folder), ""
    except GitError as error:
        return None, str(error)


def _proofs(store: GitStore | None) -> list[Proof]:
    return [] if store is None else [prove(store, ref, head) for ref, head in store.heads().items()]


def _plan(path: Path, proofs: Iterable[Proof], note: str) -> tuple[Repair, list[tuple[int, int]]]:
    """What is to be done, and the bytes of the live file that do not stay."""
    proofs = list(proofs)
    lines = list(_lines(path))
    whole = _whole([line.record for line in lines if line.record], proofs)
    gone = [(line, why) for line in lines if (why := _why_not(line, whole))]
    refs = [Problem(proof.ref, proof.wrong) for proof in proofs if proof.wrong]
    told = [Problem(f"{path}, line {line.number}", why) for line, why in gone]
    done = Repair(len(lines) - len(gone), tuple(told), tuple(refs), None, note)
    return done, [(line.start, line.end) for line, _ in gone]


def _torn(path: Path) -> tuple[Problem, ...]:
    """The last line, when it lacks its newline and is no record."""
    end = max((end for _, end, _ in scan(path)), default=0)
    if not path.exists() or path.stat().st_size == end:
        return ()
    try:
        with path.open("rb") as file:
            file.seek(end)
            parse(file.read(MAX_LINE + 1))
    except RecordError as error:
        return (Problem(f"{path}, byte {end}", f"the last line is torn: {error}"),)
    return ()


def _lines(path: Path) -> Iterable[_Line]:
    for number, (start, end, line) in enumerate(scan(path), 1):
        try:
            yield _Line(start, end, number, parse(line))
        except NewerRecord as error:
            raise LedgerError(f"{path}, line {number}: {error}; nothing was repaired") from error
        except RecordError as error:
            yield _Line(start, end, number, None, str(error))


def _whole(records: Iterable[Record], proofs: Iterable[Proof]) -> Mapping[tuple[str, int], Record]:
    """The provably whole records of live file and git, by identity."""
    in_git = {record.identity: record for proof in proofs for record in proof.records}
    claims: dict[str, dict[int, dict[bytes, Record]]] = {}
    for record in (*in_git.values(), *records):
        claims.setdefault(record.writer, {}).setdefault(record.seq, {})[record.line] = record
    found: dict[tuple[str, int], Record] = {}
    for places in claims.values():
        before: Link | None = None
        for seq in range(len(places)):
            fitting = [record for record in places.get(seq, {}).values() if not broken(before, record)]
            cited = {record.prev for record in places.get(seq + 1, {}).values()}
            chosen = _chosen(fitting, in_git, cited)
            if chosen is None:
                break
            found[chosen.identity] = chosen
            before = Link.of(chosen)
    return found


def _chosen(fitting: Sequence[Record], in_git: Mapping[tuple[str, int], Record], cited: set[str]) -> Record | None:
    """The one of several claims to a place that can be proven; None when there is none."""
    if len(fitting) <= 1:
        return next(iter(fitting), None)
    kept = in_git.get(fitting[0].identity)
    followed = [record for record in fitting if record.sha256 in cited]
    if kept in fitting:
        return kept
    return followed[0] if len(followed) == 1 else None


def _why_not(line: _Line, whole: Mapping[tuple[str, int], Record]) -> str:
    """Why a line cannot stay; empty when it can."""
    if line.record is None:
        return line.wrong
    name = f"record {line.record.seq} of writer {line.record.writer}"
    there = whole.get(line.record.identity)
    if there is None:
        return f"{name} does not follow from whole records: one before it is missing or was altered"
    return "" if there.line == line.record.line else f"{name} was altered: another one is provably whole"


def _set_back(store: GitStore | None, proofs: Sequence[Proof], note: str) -> str:
    """Keep what refs are at that prove too little, and take them to what they prove; returns why it was not done."""
    moves: dict[str, tuple[str, str]] = {}
    heads = {proof.ref: proof.head for proof in proofs}
    for proof in proofs:
        if proof.wrong:
            moves[f"{ASIDE}/{proof.head}/{proof.ref.removeprefix(PREFIX + '/')}"] = ("", proof.head)
            moves[proof.ref] = (proof.head, "")
            commits = [commit.id for commit in proof.good]
            old = heads.get(proof.home, "")
            # Forward only: a ref that holds more, or something else, is not taken to what this one proves.
            if proof.good and (proof.home == proof.ref or old in ("", *commits)):
                moves[proof.home] = (old, commits[-1])
    if store is None or not moves:
        return note
    try:
        with store.locked(_LOCK_SECONDS):
            kept = store.heads(ASIDE)
            store.move({ref: move for ref, move in moves.items() if kept.get(ref) != move[1]})
    except GitError as error:
        return str(error)
    return note


def _rebuild(ledger: Ledger, changed: bool) -> None:
    """Index, refs and table as the records have them."""
    ledger.reindex()
    if changed:
        ledger.tsv.unlink(missing_ok=True)
        # Opening a writer mends the table; it appends nothing.
        ledger.writer("repair").close()
    if ledger.repository is not None and not ledger.git_note:
        ledger.flush()
