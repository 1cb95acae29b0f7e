"""A writer: appends records to the live file, and has them flushed to git meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from mjolnir.ledger import tsv
from mjolnir.ledger.commits import PREFIX, Commit, commit_of
from mjolnir.ledger.errors import LedgerError
from mjolnir.ledger.git_store import GitError, GitStore
from mjolnir.ledger.live import LiveFile
from mjolnir.ledger.names import new_writer
from mjolnir.ledger.record import Record, draft
from mjolnir.ledger.space import Room
from mjolnir.ledger.spelling import encode

FLUSH_RECORDS = 32
FLUSH_SECONDS = 0.5
"""A flush starts after so many records or so long; half a second leaves git the other half of its one second."""

_LOCK_SECONDS = 30.0
_RETRY_SECONDS = 5.0

_log = logging.getLogger(__name__)


class Flusher:
    """Makes the commits of one writer from a thread of its own. A failure costs no record: the live file has them."""

    def __init__(self, store: GitStore, ref: str) -> None:
        self._store = store
        self._ref = ref
        self._pending: list[Commit] = []
        self._since = 0.0
        self._failed = ""
        self._closed = False
        self._changed = threading.Condition()
        self._flushing = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, commit: Commit) -> None:
        """Take a commit, to be made within a second."""
        with self._changed:
            if not self._pending:
                self._since = time.monotonic()
            self._pending.append(commit)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ledger-flush", daemon=True)
                self._thread.start()
            if len(self._pending) in (1, FLUSH_RECORDS):
                self._changed.notify()

    def flush(self) -> None:
        """Make every commit taken so far.

        Raises:
            GitError: git failed, or another process kept the lock.
        """
        with self._flushing:
            if not self._pending:
                return
            with self._store.locked(_LOCK_SECONDS):
                with self._changed:
                    batch = tuple(self._pending)
                    self._since = time.monotonic()
                self._store.write(self._missing(batch))
                with self._changed:
                    del self._pending[: len(batch)]
                self._store.gather()

    def close(self) -> None:
        """Flush, and merge own packs. A failure is logged: whoever opens the ledger next flushes the rest."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self._try(self.flush)
        if self._thread is not None:
            self._try(self._gather)

    def _run(self) -> None:
        while self._wait():
            if not self._try(self.flush):
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, _RETRY_SECONDS)

    def _wait(self) -> bool:
        """Wait until it is time to flush; False when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._pending))
            left = self._since + FLUSH_SECONDS - time.monotonic()
            self._changed.wait_for(lambda: self._closed or len(self._pending) >= FLUSH_RECORDS, max(left, 0.0))
            return not self._closed

    def _gather(self) -> None:
        with self._store.locked(_LOCK_SECONDS):
            self._store.gather(1)

    def _try(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except (LedgerError, OSError) as error:
            if str(error) != self._failed:
                self._failed = str(error)
                _log.warning("git failed; records are safe in the live file: %s", error)
            return False
        return True

    def _missing(self, batch: Sequence[Commit]) -> Sequence[Commit]:
        """The part of `batch` that the ref does not have yet; others may have flushed for us."""
        head = self._store.heads(self._ref).get(self._ref, "")
        for number, commit in enumerate(batch):
            if commit.id == head:
                return batch[number + 1 :]
        if head not in (batch[0].parent, ""):
            raise GitError(f"{self._ref} is at {head}, where this writer did not put it: see `mjolnir ledger verify`")
        return batch


class Writer:
    """Appends the records of one tag. Thread-safe; a context manager that closes it.

    Attributes:
        tag: the tag of its records.
        id: ten base32 characters, never used before.
    """

    def __init__(
        self,
        live: LiveFile,
        rows: Path,
        store: GitStore | None,
        tag: str,
        environment: Mapping[str, Any],
    ) -> None:
        """Use `Ledger.writer`, which knows where everything lies."""
        self.tag = tag
        self.id = new_writer()
        self._live = live
        self._rows = rows
        self._environment = encode(environment, "environment")[0]
        self._algorithm = "sha1" if store is None else store.algorithm
        self._flusher = None if store is None else Flusher(store, f"{PREFIX}/{tag}/{self.id}")
        self._room = Room([rows.parent] if store is None else [rows.parent, store.common])
        self._last: Commit | None = None
        self._unsure: int | None = None
        self._mutex = threading.Lock()
        self._closed = False

    def append(
        self,
        kind: str,
        body: Mapping[str, Any],
        *,
        time: datetime | None = None,
        publish: Callable[[Record], None] | None = None,
        after: int = 0,
    ) -> Record:
        """Append a record; when this returns it survives kill -9 and power loss.

        Args:
            kind: one of `KINDS`.
            body: JSON types; tuples become lists, keys become strings.
            time: the time of the record, now unless given.
            publish: is given the record before it is appended; what it raises keeps the record out.
            after: the largest lamport known from elsewhere.

        Raises:
            RecordError: `body` cannot be recorded.
            LedgerFull: the disk is full, or nearly so; nothing was appended.
            LedgerError: the live file cannot be written or locked, or the writer is closed.
        """
        # Only a first record carries it; once there is one there will not be another.
        environment = self._environment if self._last is None else None
        prepared = draft(kind, self.tag, self.id, body, environment=environment, time=time)
        with self._mutex:
            if self._closed:
                raise LedgerError(f"writer {self.id} of {self.tag!r} is closed")
            self._room.check()
            with self._live.locked():
                self._catch_up()
                previous = None if self._last is None else self._last.record
                prev = "" if previous is None else previous.sha256
                record = prepared.at(self._next, max(self._live.lamport, after) + 1, prev)
                if publish is not None:
                    publish(record)
                self._unsure = self._live.size
                self._live.append(record)
                self._accept(record)
                self._unsure = None
        return record

    def flush(self) -> None:
        """Wait until git has every record so far; nothing to do without a repository.

        Raises:
            LedgerError: git failed; the records are safe in the live file.
        """
        if self._flusher is not None:
            self._flusher.flush()

    def close(self) -> None:
        """Flush, merge own packs, and let go of the file. Idempotent."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            if self._flusher is not None:
                self._flusher.close()
            self._live.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _next(self) -> int:
        return 0 if self._last is None else self._last.record.seq + 1

    def _catch_up(self) -> None:
        """Read what others appended, and what we did when a Ctrl-C came between the write and the bookkeeping."""
        if self._unsure is not None:
            self._live.size = min(self._live.size, self._unsure)
        for record in self._live.catch_up():
            if record.identity == (self.id, self._next):
                self._accept(record)

    def _accept(self, record: Record) -> None:
        parent, environment = ("", "") if self._last is None else (self._last.id, self._last.environment)
        self._last = commit = commit_of(record, parent, environment, self._algorithm)
        if self._flusher is not None:
            self._flusher.add(commit)
        try:
            tsv.add_row(self._rows, record, commit.id)
        except OSError as error:
            # The table is a view; the next writer makes it again.
            _log.warning("%s was not written: %s", self._rows, error.strerror)
