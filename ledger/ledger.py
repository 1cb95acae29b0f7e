"""The door: opening a ledger, asking it, and writing to it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mjolnir.ledger import tsv
from mjolnir.ledger.git_store import GitError, GitStore
from mjolnir.ledger.importer import Imported, missing, read_untorn
from mjolnir.ledger.live import NAME, LiveFile, make_folder, scan
from mjolnir.ledger.place import Place, locate
from mjolnir.ledger.record import LedgerError, Record, RecordError, check_tag, parse
from mjolnir.ledger.summary import TagSummary
from mjolnir.ledger.verify import Verification, Verifier
from mjolnir.ledger.writer import Writer

if TYPE_CHECKING:
    from mjolnir.ledger.catalog import Catalog
    from mjolnir.ledger.index import Index

_LOCK_SECONDS = 30.0
_log = logging.getLogger(__name__)


def open(folder: Path | str | None = None, *, git: Literal["auto", "off"] = "auto") -> Ledger:
    """Open the ledger in `folder`, else where `locate` finds it. Makes nothing until something is appended.

    Args:
        folder: the ledger folder.
        git: "auto" puts records on refs of the repository that holds the folder, where there is one; "off" does not.
    """
    return Ledger(locate(folder), git=git)


class Ledger:
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
        """Make the folder where it is missing.

        Raises:
            LedgerError: it cannot be made, or not be written.
        """
        make_folder(self.folder)
        if not os.access(self.folder, os.W_OK):
            raise LedgerError(f"{self.folder} cannot be written; name another with --ledger")

    def tags(self) -> tuple[TagSummary, ...]:
        """What there is of each tag; the one that was written last comes last."""
        from mjolnir.ledger import queries

        with self._mutex:
            return queries.tags(self._refresh())

    def records(self, tag: str | None = None, kind: str | None = None) -> tuple[Record, ...]:
        """The records of a tag, or of all, in order."""
        from mjolnir.ledger import queries

        with self._mutex:
            return queries.records(self._refresh(), tag, kind)

    def trials(
        self,
        tag: str,
        *,
        status: str | None = None,
        verdict: str | None = None,
        bucket: int | None = None,
        knobs: Mapping[str, int] | None = None,
        since: str | None = None,
        sort: Literal["trial", "ratio"] = "trial",
        limit: int | None = None,
    ) -> tuple[Record, ...]:
        """The trials of a tag.

        Args:
            tag: the tag.
            status: only those that ended so.
            verdict: only "keep" or "discard".
            bucket: only those that this bucket's search asked for.
            knobs: only those with these values in their setting.
            since: only those appended at this time or later, RFC 3339 in UTC.
            sort: by trial number, or "ratio": the fastest first, measured ones alone.
            limit: at most so many.
        """
        from mjolnir.ledger import queries

        chosen = {"status": status, "verdict": verdict, "bucket": bucket}
        with self._mutex:
            return queries.trials(self._refresh(), tag, chosen, knobs or {}, since, sort, limit)

    def trial(self, tag: str, number: int) -> Record:
        """The trial of that number.

        Raises:
            LedgerError: there is none; says what there is.
        """
        from mjolnir.ledger import queries

        with self._mutex:
            return queries.trial(self._refresh(), tag, number)

    def record(self, sha256: str) -> Record | None:
        """The record with that hash, as certificates cite it."""
        from mjolnir.ledger import queries

        with self._mutex:
            return queries.by_hash(self._refresh(), sha256)

    def commit(self, record: Record) -> str:
        """The id of the record's commit, whether git has it or not; empty when a predecessor is missing."""
        from mjolnir.ledger import queries

        digest = record.sha256
        with self._mutex:
            # A commit follows from its record, so what the index knew before is as good as what it knows now.
            known = queries.commit_ids(self._catalog.as_is(), [digest])
            return known[digest] if digest in known else queries.commit_ids(self._refresh(), [digest]).get(digest, "")

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

    @cached_property
    def _catalog(self) -> Catalog:
        # Here because SQLAlchemy takes a quarter of a second to import, and not every command asks.
        from mjolnir.ledger.catalog import Catalog

        return Catalog(self.live, self._store)

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
        if not self._catalog.backlog(index, self._store.heads()):
            return 0
        with self._store.locked(timeout):
            commits = self._catalog.backlog(index, self._store.heads())
            self._store.write(commits)
            self._store.gather()
        return len(commits)

    def _flush_quietly(self, index: Index, timeout: float) -> None:
        try:
            self._flush(index, timeout)
        except GitError as error:
            _log.info("records are safe in the live file, but not all of them in git: %s", error)

    def _mend_table(self, index: Index) -> None:
        """Write the table anew where a crash or an import left it behind the live file."""
        from mjolnir.ledger import queries

        if tsv.is_current(self.tsv, self.live):
            return
        trials = list(_trials(self.live))
        commits = queries.commit_ids(index, [record.sha256 for record in trials])
        tsv.replace(self.tsv, ((record, commits.get(record.sha256, "")) for record in trials))


def _trials(live: Path) -> Iterator[Record]:
    for _, _, line in scan(live):
        try:
            record = parse(line)
        except RecordError:
            continue
        if record.kind == "trial":
            yield record
