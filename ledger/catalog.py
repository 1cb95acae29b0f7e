"""The index of one ledger folder, always as new as the truth, and what it is needed for in flushing."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sqlalchemy import exc

from mjolnir.ledger import queries
from mjolnir.ledger.commits import PREFIX, Commit, commit_of
from mjolnir.ledger.database import sqlite_url
from mjolnir.ledger.git_store import GitStore
from mjolnir.ledger.index import NAME, Index
from mjolnir.ledger.sync import synchronise

T = TypeVar("T")

_SUFFIXES = ("", "-wal", "-shm", "-journal")
"""Of the files that SQLite writes."""

_log = logging.getLogger(__name__)


class Catalog:
    """Opens the index where it can lie, keeps it fresh, and throws it away when it is broken."""

    def __init__(self, live: Path, store: GitStore | None) -> None:
        self._live = live
        self._store = store
        self._index: Index | None = None
        self._path: Path | None = None
        self._in_memory = False
        self._asked_for = False

    def fresh(self) -> Index:
        """The index, with all that the live file and the refs hold by now."""

        def work(index: Index) -> Index:
            synchronise(index, self._live, self._store)
            return index

        return self._trying(work)

    def as_is(self) -> Index:
        """The index with what was read before; nothing is read for it."""
        return self._trying(lambda index: index)

    def rebuild(self) -> int:
        """Forget the index and read everything again, into a file also where there is no live file; the records."""
        self._asked_for = True
        return self._trying(lambda index: synchronise(index, self._live, self._store, anew=True))

    def backlog(self, index: Index, heads: dict[str, str], most: int) -> list[Commit]:
        """The first `most` commits that the refs at `heads` lack, in the order of their chains."""
        with index.change() as connection:
            tips = index.tips(connection, with_commit=True)
        found: list[Commit] = []
        for writer, tip in sorted(tips.items()):
            ref = f"{PREFIX}/{tip.link.tag}/{writer}"
            head = heads.get(ref, "")
            if head == tip.commit_id:
                continue
            at = queries.place_of(index, writer, head)
            if head and at is None:
                _log.warning("%s is at %s, which no record here makes; it is left alone", ref, head)
                continue
            first = 0 if at is None else at + 1
            last = min(tip.link.seq, first + most - len(found) - 1)
            found.extend(self._chain(index, writer, head, tip.environment_id, first, last))
            if len(found) >= most:
                break
        return found

    def close(self) -> None:
        """Close the database. Idempotent."""
        if self._index is not None:
            self._index.close()
            self._index = None

    @property
    def _algorithm(self) -> str:
        return "sha1" if self._store is None else self._store.algorithm

    def _chain(self, index: Index, writer: str, parent: str, environment: str, first: int, last: int) -> list[Commit]:
        chain: list[Commit] = []
        for record in queries.of_writer(index, writer, first, last):
            commit = commit_of(record, parent, environment, self._algorithm)
            chain.append(commit)
            parent = commit.id
        return chain

    def _open(self) -> Index:
        path = self._where()
        if self._index is not None and path != self._path:
            self.close()
        if self._index is None:
            if path is not None:
                _remove_links(path)
            self._index = Index(sqlite_url(path), self._algorithm)
            self._path = path
        return self._index

    def _where(self) -> Path | None:
        """The index file, or None (in memory) where it cannot lie in a file.

        A look at a folder that holds no ledger leaves nothing there.
        """
        folder = self._live.parent
        lies = not self._in_memory and folder.is_dir() and os.access(folder, os.W_OK)
        mine = self._asked_for or self._live.exists() or (folder / NAME).exists()
        return folder / NAME if lies and mine else None

    def _trying(self, work: Callable[[Index], T]) -> T:
        """Do `work` over the index; where that fails, over a new one; then over one in memory.

        The index holds nothing that is not elsewhere, so a full disk, or a folder in its place, costs time alone.
        """
        for remedy in (self._remove, self._move_to_memory):
            try:
                return work(self._open())
            except exc.DatabaseError as error:
                self.close()
                remedy(error.orig)
        return work(self._open())

    def _remove(self, reason: object) -> None:
        if (path := self._where()) is None:
            return
        _log.warning("the index %s is unusable and is built again: %s", path, reason)
        try:
            for suffix in _SUFFIXES:
                path.with_name(path.name + suffix).unlink(missing_ok=True)
        except OSError as error:
            self._move_to_memory(error)

    def _move_to_memory(self, reason: object) -> None:
        _log.warning("the index cannot lie in %s and is kept in memory: %s", self._live.parent, reason)
        self._in_memory = True


def _remove_links(path: Path) -> None:
    """Take away links in the place of the index's files: SQLite would follow them and write somewhere else."""
    for place in (path.with_name(path.name + suffix) for suffix in _SUFFIXES):
        if place.is_symlink():
            _log.warning("%s is a link, which the index does not follow; it is removed", place)
            place.unlink()
