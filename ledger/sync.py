"""Bringing the index up to date with the truth: the union of the live file and the refs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import sqlalchemy as sql

from mjolnir.ledger.errors import RecordError
from mjolnir.ledger.git_store import GitError, GitStore
from mjolnir.ledger.index import RECORDS, Adding, Index
from mjolnir.ledger.live import scan
from mjolnir.ledger.parsing import parse

_log = logging.getLogger(__name__)


def synchronise(index: Index, live: Path, store: GitStore | None, *, anew: bool = False) -> int:
    """Read what the live file and the refs have beyond the index; `anew` forgets the index first.

    A file or ref that did not merely grow has the index built again. What is no record, and what contradicts the
    index, is left out with a warning; `verify` names it. Returns the number of records added.
    """
    with index.change() as connection:
        heads = _heads(store)
        if anew or not _grown(index, connection, live, heads):
            index.clear(connection)
        adding = _read(index, connection, live, store, heads)
        if adding.filled:
            index.clear(connection)
            adding = _read(index, connection, live, store, heads)
        # One line a writer: whatever follows an altered record is in doubt with it.
        for first, *others in adding.problems.values():
            more = f", and {len(others)} more of its kind" if others else ""
            _log.warning("%s%s; `mjolnir ledger verify` tells more", first, more)
    return adding.count


def _heads(store: GitStore | None) -> dict[str, str]:
    try:
        return {} if store is None else store.heads()
    except GitError as error:
        _log.warning("the ledger refs cannot be read: %s", error)
        return {}


def _grown(index: Index, connection: sql.Connection, live: Path, heads: Mapping[str, str]) -> bool:
    """True when nothing that was read has gone: the same file, as long or longer, and every ref still there."""
    cursor = index.fact(connection, "live")
    if cursor is not None:
        try:
            facts = live.stat()
        except FileNotFoundError:
            return False
        if facts.st_ino != cursor["inode"] or facts.st_size < cursor["size"]:
            return False
    return set(index.heads(connection)) <= set(heads)


def _read(
    index: Index, connection: sql.Connection, live: Path, store: GitStore | None, heads: Mapping[str, str]
) -> Adding:
    adding = Adding(index, connection)
    _read_live(index, connection, live, adding)
    before = index.heads(connection)
    if store is not None and heads != before:
        read = _read_refs(connection, store, heads, before, adding)
        index.set_heads(connection, heads if read else before)
    adding.finish()
    return adding


def _read_live(index: Index, connection: sql.Connection, live: Path, adding: Adding) -> None:
    cursor = index.fact(connection, "live") or {"size": 0}
    end = cursor["size"]
    for start, after, line in scan(live, end):
        end = after
        try:
            adding.take(parse(line))
        except RecordError as error:
            adding.problems[str(live)].append(f"{live}, byte {start}: {error}")
    if live.exists() and (end != cursor["size"] or "inode" not in cursor):
        index.set_fact(connection, "live", {"size": end, "inode": live.stat().st_ino})


def _read_refs(
    connection: sql.Connection,
    store: GitStore,
    heads: Mapping[str, str],
    before: Mapping[str, str],
    adding: Adding,
) -> bool:
    """Take what the changed refs hold beyond the index; False when git could not read them."""
    adding.write()
    changed = {head for ref, head in heads.items() if before.get(ref) != head}
    there = connection.scalars(sql.select(RECORDS.c.commit_id).where(RECORDS.c.commit_id.in_(changed)))
    try:
        missing = changed - set(there)
        for commit, line in store.read(missing, before.values()) if missing else ():
            try:
                adding.take(parse(line))
            except RecordError as error:
                adding.problems["commits"].append(f"commit {commit}: {error}")
    except GitError as error:
        adding.problems["git"].append(str(error))
        return False
    return True
