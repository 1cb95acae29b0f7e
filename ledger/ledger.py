"""The door: opening a ledger, asking it, and writing to it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mjolnir.ledger import tsv
from mjolnir.ledger.errors import LedgerError
from mjolnir.ledger.git_store import GitError, GitStore
from mjolnir.ledger.importer import Imported, missing, read_untorn
from mjolnir.ledger.live import NAME, LiveFile, make_folder
from mjolnir.ledger.names import check_tag
from mjolnir.ledger.place import Place, locate
from mjolnir.ledger.reader import Reader
from mjolnir.ledger.record import Record
from mjolnir.ledger.space import Room
from mjolnir.ledger.verify import Verification, Verifier
from mjolnir.ledger.writer import Writer

if TYPE_CHECKING:
    from mjolnir.ledger.index import Index

_LOCK_SECONDS = 30.0
_PORTION = 5000
"""Commits that are made at once: a record of some kilobytes each is in memory meanwhile."""

_log = logging.getLogger(__name__)


def open(folder: Path | str | None = None, *, git: Literal["auto", "off"] = "auto") -> Ledger:
    """Open the ledger in `folder`, else where `locate` finds it. Makes nothing until something is appended.

    Args:
        folder: the ledger folder.
        git: "auto" puts records on refs of the repository that holds the folder, where there is one; "off" does not.
    """
    return Ledger(locate(folder), git=git)


class Ledger(Reader):
    """All records of a ledger folder: the union of its live file and the ledger refs of its repository.

    A context manager that closes it and its writers. Thread-safe.

    Attributes:
        place: the folder, and what chose it.
        live: the live file.
        tsv: the table beside it.
        git_note: why records go to no git refs; empty when they do.
    """

    def __init__(self, place: Place, *, git: Literal["auto", "off"] = "auto") -> None:
        self.place = place
        self.live = place.folder / NAME
        self.tsv = place.folder / tsv.NAME
        self.git_note = ""
        self._store: GitStore | None = None
        self._mutex = threading.RLock()
        self._writers: list[Writer] = []
        self._fresh_before = False
        try:
            if git == "off":
                raise GitError("git is switched off")
            self._store = GitStore.discover(place.folder)
            self._store.check_writable()
        except GitError as error:
            self.git_note = str(error)

    @property
    def folder(self) -> Path:
        """The ledger folder."""
        return self.place.folder

    @property
    def repository(self) -> Path | None:
        """The git directory whose refs hold the records, if any."""
        return None if self._store is None else self._store.common

    def prepare(self) -> None:
        """Make the folder where it is missing, and look whether there is room: before the work rather than in it.

        Raises:
            LedgerError: it cannot be made, or not be written.
            LedgerFull: the disk is nearly full.
        """
        make_folder(self.folder)
        if not os.access(self.folder, os.W_OK):
            raise LedgerError(f"{self.folder} cannot be written; name another with --ledger")
        Room([self.folder] if self._store is None else [self.folder, self._store.common]).check()

    def writer(self, tag: str, environment: Mapping[str, Any] | None = None) -> Writer:
        """A new writer of `tag`; its first record carries `environment`.

        Raises:
            RecordError: a tag against the rules, or an environment that cannot be recorded.
            LedgerError: the folder cannot be written.
        """
        from mjolnir.ledger import queries

        check_tag(tag)
        with self._mutex:
            live = LiveFile(self.folder)
            self._refresh()
            with live.locked():
                live.mend()
                index = self._refresh()
                self._mend_table(index)
                live.lamport = queries.last_lamport(index)
            writer = Writer(live, self.tsv, self._store, tag, environment or {})
            self._writers.append(writer)
            return writer

    def import_file(self, path: Path | str) -> Imported:
        """Take the records of a jsonl file: all that are not here yet, or none.

        Raises:
            LedgerError: a line is no record, the chain has a gap, or a record is here with other content.
        """
        records, torn = read_untorn(path)
        added = self.import_records(records)
        return Imported(added, len(records) - added, torn)

    def import_records(self, records: Sequence[Record]) -> int:
        """Take records of other writers: all that are not here yet, or none; the number that were new.

        Raises:
            LedgerError: the chain has a gap, or a record is here with other content.
        """
        from mjolnir.ledger import queries

        with self._mutex:
            live = LiveFile(self.folder)
            try:
                with live.locked():
                    live.mend()
                    known = queries.links(self._refresh(), {record.writer for record in records})
                    new = missing(records, known)
                    if new:
                        live.append(*new)
                        self._mend_table(self._refresh())
            finally:
                live.close()
            self._flush_quietly(self._refresh(), _LOCK_SECONDS)
        return len(new)

    def flush(self) -> int:
        """Put on refs every record that is not there yet, whoever wrote it; the number of commits made.

        Raises:
            GitError: git failed, or another process kept its lock.
        """
        with self._mutex:
            self._fresh_before = True
            return self._flush(self._refresh(), _LOCK_SECONDS)

    def reindex(self) -> int:
        """Build the index again from live file and refs; the number of records."""
        with self._mutex:
            return self._catalog.rebuild()

    def verify(self) -> Verification:
        """Check schema and hash chains, and the live file, the refs and the index against one another."""
        from mjolnir.ledger import queries

        with self._mutex:
            index = self._refresh()
            verifier = Verifier()
            verifier.live(self.live)
            if self._store is not None:
                verifier.refs(self._store)
            verifier.index(queries.links(index))
            return verifier.finish(self._algorithm)

    def close(self) -> None:
        """Close its writers and the index. Idempotent."""
        with self._mutex:
            for writer in self._writers:
                writer.close()
            self._writers.clear()
            self._catalog.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _algorithm(self) -> str:
        return "sha1" if self._store is None else self._store.algorithm

    def _refresh(self) -> Index:
        """The index as new as the truth. The first time, what dead writers left is flushed on the way."""
        index = self._catalog.fresh()
        if not self._fresh_before:
            self._fresh_before = True
            self._flush_quietly(index, 0.0)
        return index

    def _flush(self, index: Index, timeout: float) -> int:
        if self._store is None:
            return 0
        if not self._catalog.backlog(index, self._store.heads(), 1):
            return 0
        count = 0
        with self._store.locked(timeout):
            heads = self._store.heads()
            while commits := self._catalog.backlog(index, heads, _PORTION):
                self._store.write(commits)
                count, before, heads = count + len(commits), heads, self._store.heads()
                if heads == before:
                    raise GitError("git took the records without a word, but no ref moved: try `mjolnir ledger verify`")
            self._store.gather()
        return count

    def _flush_quietly(self, index: Index, timeout: float) -> None:
        try:
            self._flush(index, timeout)
        except GitError as error:
            _log.info("records are safe in the live file, but not all of them in git: %s", error)

    def _mend_table(self, index: Index) -> None:
        from mjolnir.ledger import queries

        tsv.mend(self.tsv, self.live, lambda digests: queries.commit_ids(index, digests))
