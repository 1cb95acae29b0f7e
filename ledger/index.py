"""The index: the records of a ledger in an SQL database, for finding them.

It holds nothing of its own. Whatever it says comes from lines of the live file and of the refs; it can be thrown
away at any time. Rows of `records` are narrow; the lines lie in a table apart, so that scanning stays fast.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sql
from sqlalchemy import exc

from mjolnir.ledger import database
from mjolnir.ledger.chain import Link, broken
from mjolnir.ledger.commits import Commit, commit_of
from mjolnir.ledger.record import Record

NAME = "ledger.sqlite"
VERSION = 2
_BATCH, _PORTION = 2000, 200
_BUCKET = re.compile("[0-9]{1,9}")

_schema = sql.MetaData()
FACTS = sql.Table(
    "facts", _schema,
    sql.Column("name", sql.String(200), primary_key=True),
    sql.Column("value", sql.Text, nullable=False),
)  # fmt: skip
HEADS = sql.Table(
    "heads", _schema,
    sql.Column("ref", sql.String(200), primary_key=True),
    sql.Column("commit_id", sql.String(64), nullable=False),
)  # fmt: skip
RECORDS = sql.Table(
    "records", _schema,
    sql.Column("writer", sql.String(10), primary_key=True),
    sql.Column("seq", sql.BigInteger, primary_key=True, autoincrement=False),
    sql.Column("lamport", sql.BigInteger, nullable=False),
    sql.Column("tag", sql.String(63), nullable=False),
    sql.Column("kind", sql.String(12), nullable=False),
    sql.Column("time", sql.String(27), nullable=False),
    sql.Column("sha256", sql.String(64), nullable=False, index=True),
    sql.Column("commit_id", sql.String(64), nullable=False, index=True),
    sql.Column("environment_id", sql.String(64), nullable=False),
    sql.Column("trial", sql.BigInteger),
    sql.Column("bucket", sql.BigInteger),
    sql.Column("status", sql.String(32)),
    sql.Column("verdict", sql.String(32)),
    sql.Column("ratio", sql.Float),
    sql.Column("setting", sql.JSON(none_as_null=True)),
    sql.Index("records_of_tag", "tag", "kind", "trial"),
    sql.Index("records_in_order", "tag", "lamport", "writer", "seq"),
    # All that a list of tags looks at, so that it reads nothing else.
    sql.Index("records_at_a_glance", "tag", "kind", "status", "verdict", "writer", "time", "lamport"),
)  # fmt: skip
LINES = sql.Table(
    "lines", _schema,
    sql.Column("writer", sql.String(10), primary_key=True),
    sql.Column("seq", sql.BigInteger, primary_key=True, autoincrement=False),
    sql.Column("line", sql.LargeBinary, nullable=False),
)  # fmt: skip
RATIOS = sql.Table(
    "ratios", _schema,
    sql.Column("writer", sql.String(10), primary_key=True),
    sql.Column("seq", sql.BigInteger, primary_key=True, autoincrement=False),
    sql.Column("bucket", sql.BigInteger, primary_key=True, autoincrement=False),
    sql.Column("ratio", sql.Float, nullable=False),
    sql.Column("tag", sql.String(63), nullable=False),
    sql.Column("trial", sql.BigInteger, nullable=False),
    sql.Index("ratios_by_size", "tag", "bucket", "ratio", "trial"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tip:
    """The last record of a writer that is in the index, and its commit ("" where a predecessor is missing)."""

    link: Link
    commit_id: str
    environment_id: str


class Index:
    """An index database."""

    def __init__(self, url: sql.URL | str, algorithm: str) -> None:
        """Open the database at `url`, emptied when another version or object format made it.

        Raises:
            sqlalchemy.exc.DatabaseError: what lies there is no database.
        """
        self._algorithm = algorithm
        self._engine = database.engine(url)
        with self.change() as connection:
            _schema.create_all(connection)
            stamp = {"version": VERSION, "algorithm": algorithm}
            if self.fact(connection, "stamp") != stamp:
                self.clear(connection)
                self.set_fact(connection, "stamp", stamp)

    @contextmanager
    def change(self) -> Iterator[sql.Connection]:
        """A transaction that excludes other writers from its start, so that two processes never add the same."""
        with database.changing(self._engine) as connection:
            yield connection

    def query(self, statement: sql.Select[Any]) -> Sequence[tuple[Any, ...]]:
        """All rows of a select."""
        with self._engine.connect() as connection:
            return [tuple(row) for row in connection.execute(statement)]

    def stream(self, statement: sql.Select[Any]) -> Iterator[tuple[Any, ...]]:
        """The rows of a select, fetched as they are asked for."""
        with self._engine.connect().execution_options(yield_per=_PORTION) as connection:
            yield from (tuple(row) for row in connection.execute(statement))

    def close(self) -> None:
        """Give back the connections."""
        self._engine.dispose()

    @staticmethod
    def fact(connection: sql.Connection, name: str) -> Any:
        """A remembered JSON value, or None."""
        text = connection.scalar(sql.select(FACTS.c.value).where(FACTS.c.name == name))
        return None if text is None else json.loads(text)

    @staticmethod
    def set_fact(connection: sql.Connection, name: str, value: object) -> None:
        """Remember a JSON value."""
        connection.execute(sql.delete(FACTS).where(FACTS.c.name == name))
        connection.execute(sql.insert(FACTS).values(name=name, value=json.dumps(value)))

    def recall(self, name: str, state: object) -> Any:
        """What was remembered under `name` for that `state`, or None."""
        text = self.query(sql.select(FACTS.c.value).where(FACTS.c.name == name))
        kept = json.loads(text[0][0]) if text else {}
        return kept["value"] if kept.get("state") == state else None

    def remember(self, name: str, state: object, value: object) -> Any:
        """Remember a JSON value for a `state`, and return it as `recall` will. What cannot be kept costs time alone."""
        kept = {"state": state, "value": value}
        with suppress(exc.DatabaseError), self.change() as connection:
            self.set_fact(connection, name, kept)
        return json.loads(json.dumps(value))

    @staticmethod
    def heads(connection: sql.Connection) -> dict[str, str]:
        """The refs that were read, by name."""
        return {row.ref: row.commit_id for row in connection.execute(sql.select(HEADS))}

    @staticmethod
    def set_heads(connection: sql.Connection, heads: Mapping[str, str]) -> None:
        """Remember the refs that were read."""
        connection.execute(sql.delete(HEADS))
        if heads:
            connection.execute(sql.insert(HEADS), [{"ref": ref, "commit_id": head} for ref, head in heads.items()])

    def clear(self, connection: sql.Connection) -> None:
        """Forget all but the stamp."""
        for table in (HEADS, RECORDS, LINES, RATIOS):
            connection.execute(sql.delete(table))
        connection.execute(sql.delete(FACTS).where(FACTS.c.name != "stamp"))

    @staticmethod
    def tips(connection: sql.Connection, *, with_commit: bool = False) -> dict[str, Tip]:
        """The last record of every writer, or the last one that has a commit."""
        last = sql.select(RECORDS.c.writer, sql.func.max(RECORDS.c.seq).label("seq")).group_by(RECORDS.c.writer)
        if with_commit:
            last = last.where(RECORDS.c.commit_id != "")
        ends = last.subquery()
        link = (RECORDS.c.tag, RECORDS.c.seq, RECORDS.c.lamport, RECORDS.c.sha256)
        columns = (RECORDS.c.writer, RECORDS.c.commit_id, RECORDS.c.environment_id, *link)
        statement = sql.select(*columns).join_from(
            RECORDS, ends, sql.and_(RECORDS.c.writer == ends.c.writer, RECORDS.c.seq == ends.c.seq)
        )
        return {row[0]: Tip(Link(*row[3:]), row[1], row[2]) for row in connection.execute(statement)}

    def commit(self, record: Record, tip: Tip | None) -> Commit | None:
        """The commit of `record` after `tip`, or None when `tip` is not its predecessor."""
        if broken(None if tip is None else tip.link, record) or (tip is not None and not tip.commit_id):
            return None
        parent, environment = ("", "") if tip is None else (tip.commit_id, tip.environment_id)
        return commit_of(record, parent, environment, self._algorithm)


class Adding:
    """Records on their way into the index, inside one transaction.

    Attributes:
        count: how many were new.
        waiting: records whose predecessor was not there yet, to be settled by `finish`.
        problems: what contradicts the index, in words, by the writer or the place that it is about.
    """

    def __init__(self, index: Index, connection: sql.Connection) -> None:
        self.count = 0
        self.waiting: list[Record] = []
        self.problems = defaultdict[str, list[str]](list)
        self.filled = False
        self._index = index
        self._connection = connection
        self._tips = index.tips(connection)
        self._rows: dict[sql.Table, list[dict[str, Any]]] = {RECORDS: [], LINES: [], RATIOS: []}

    def take(self, record: Record) -> None:
        """Add one record, let it wait for its predecessor, or see that it is there already."""
        tip = self._tips.get(record.writer)
        if tip is not None and record.seq <= tip.link.seq:
            self._compare(record)
        elif (commit := self._index.commit(record, tip)) is not None:
            self._put(record, commit.id, commit.environment)
        else:
            self.waiting.append(record)

    def finish(self) -> None:
        """Settle what waits: in order if by now it can be, else without a commit; then write everything."""
        waiting, self.waiting = sorted(self.waiting, key=lambda record: record.identity), []
        for record in waiting:
            self.take(record)
            if self.waiting:
                self.waiting.clear()
                what = f"record {record.seq} of writer {record.writer} does not follow its predecessor"
                self.problems[record.writer].append(what)
                self._put(record, "", "")
        self.write()

    def _put(self, record: Record, commit_id: str, environment_id: str) -> None:
        link = Link.of(record)
        digest = link.sha256
        self._tips[record.writer] = Tip(link, commit_id, environment_id)
        place = {"writer": record.writer, "seq": record.seq}
        self._rows[RECORDS].append(place | _columns(record, digest, commit_id, environment_id))
        self._rows[LINES].append(place | {"line": record.line})
        self._rows[RATIOS].extend(
            place | {"bucket": bucket, "ratio": ratio, "tag": record.tag, "trial": record.content["trial"]}
            for bucket, ratio in _ratios(record).items()
        )
        self.count += 1
        if len(self._rows[RECORDS]) >= _BATCH:
            self.write()

    def write(self) -> None:
        """Put into the database what was taken so far."""
        for table, rows in self._rows.items():
            if rows:
                database.insert_many(self._connection, table, rows)
                rows.clear()

    def _compare(self, record: Record) -> None:
        self.write()
        place = sql.and_(RECORDS.c.writer == record.writer, RECORDS.c.seq == record.seq)
        known = self._connection.scalar(sql.select(RECORDS.c.sha256).where(place))
        if known is None:
            # A gap is being filled: what comes after it gets its commits when the index is built again.
            self.filled = True
        elif known != record.sha256:
            what = f"record {record.seq} of writer {record.writer} is there twice with different bytes"
            self.problems[record.writer].append(what)


def _columns(record: Record, digest: str, commit_id: str, environment_id: str) -> dict[str, Any]:
    body: Mapping[str, Any] = record.content if record.kind == "trial" else {}
    setting = body.get("setting")
    return {
        "lamport": record.lamport, "tag": record.tag, "kind": record.kind, "time": record.time, "sha256": digest,
        "commit_id": commit_id, "environment_id": environment_id, "trial": _whole(body.get("trial")),
        "bucket": _whole(body.get("bucket")), "status": _text(body.get("status")),
        "verdict": _text(body.get("verdict")), "ratio": _number(body.get("ratio")),
        "setting": json.dumps(setting) if isinstance(setting, Mapping) else None,
    }  # fmt: skip


def _ratios(record: Record) -> dict[int, float]:
    """Ratio by bucket of a measured trial; keys of JSON objects are text."""
    if record.kind != "trial" or record.content["status"] != "measured":
        return {}
    ratios = record.content.get("ratios")
    items = ratios.items() if isinstance(ratios, Mapping) else ()
    pairs = ((int(bucket), _number(ratio)) for bucket, ratio in items if _BUCKET.fullmatch(bucket))
    return {bucket: ratio for bucket, ratio in pairs if ratio is not None}


def _whole(value: object) -> int | None:
    return value if type(value) is int and abs(value) < 2**63 else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, float) or (type(value) is int and abs(value) < 2**53) else None


def _text(value: object) -> str | None:
    return value[:32] if isinstance(value, str) else None
