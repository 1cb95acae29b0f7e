"""A campaign that several hosts work on: the lines of its records in one database, beside the leases of its steps.

Every process appends to its own ledger, as its own writer, and puts each line here first: in one transaction with the
check of the lease under which it was made. So a line that is here counts, one that came too late is nowhere, and a
process killed in between leaves a line that every other has. Lines are numbered in the order of their commits, so that
who read up to a number has all below it. The ledgers remain whole without the database: they import what it holds.
"""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sql

from mjolnir.ledger.database import StorageError, changing, engine, insert_new, masked, storage_url, worded
from mjolnir.ledger.leases import SCHEMA, Lease, LeaseTable
from mjolnir.ledger.names import check_tag
from mjolnir.ledger.parsing import parse
from mjolnir.ledger.record import Record

VERSION = 1

_CREATION_LOCK = 0x6D6A6F6C6E6972
"""Number of the lock in PostgreSQL under which tables are made."""

STORAGE = sql.Table("mjolnir_storage", SCHEMA, sql.Column("version", sql.Integer, primary_key=True))
CAMPAIGNS = sql.Table(
    "mjolnir_campaigns", SCHEMA,
    sql.Column("tag", sql.String(63), primary_key=True),
    sql.Column("lines", sql.BigInteger, nullable=False),
)  # fmt: skip
SHARED_LINES = sql.Table(
    "mjolnir_lines", SCHEMA,
    sql.Column("writer", sql.String(10), primary_key=True),
    sql.Column("seq", sql.BigInteger, primary_key=True, autoincrement=False),
    sql.Column("tag", sql.String(63), nullable=False),
    sql.Column("place", sql.BigInteger, nullable=False),
    sql.Column("line", sql.LargeBinary, nullable=False),
    sql.Index("mjolnir_lines_in_order", "tag", "place", unique=True),
)  # fmt: skip
FACTS = sql.Table(
    "mjolnir_facts", SCHEMA,
    sql.Column("tag", sql.String(63), primary_key=True),
    sql.Column("name", sql.String(200), primary_key=True),
    sql.Column("value", sql.Text, nullable=False),
)  # fmt: skip


class SharedTag:
    """One tag in the database that hosts share. Thread-safe; a context manager that closes it.

    Attributes:
        shown: the database for people, without user, password and options.
    """

    def __init__(self, url: str, tag: str) -> None:
        """Connect, and make the tables where there are none.

        Raises:
            RecordError: a tag against the rules.
            StorageError: `url` makes no sense, or another version made the tables.
            StorageMissing: the server cannot be reached, or the package for it is missing.
        """
        self._tag = check_tag(tag)
        self._url = storage_url(url)
        self._engine = engine(self._url, durable=True)
        self.shown = masked(url)
        with worded(self._url):
            self._set_up()

    @property
    def driver_url(self) -> str:
        """The whole URL, password included: for another library that opens the same database, never for people."""
        return self._url.render_as_string(hide_password=False)

    @property
    def single_host(self) -> bool:
        """Whether the database is a file, which only processes of one host can share."""
        return self._engine.dialect.name == "sqlite"

    def leases(self, owner: str, seconds: float) -> LeaseTable:
        """The leases of the tag as `owner` sees them."""
        return LeaseTable(self._engine, self._tag, owner, seconds)

    def lines(self, after: int = 0) -> list[tuple[int, Record]]:
        """The records that were added after number `after`, each with its number, in that order."""
        statement = (
            sql.select(SHARED_LINES.c.place, SHARED_LINES.c.line)
            .where(SHARED_LINES.c.tag == self._tag, SHARED_LINES.c.place > after)
            .order_by(SHARED_LINES.c.place)
        )
        with worded(self._url), self._engine.connect() as connection:
            return [(place, parse(bytes(line))) for place, line in connection.execute(statement)]

    def add(
        self, record: Record, leases: LeaseTable | None = None, lease: Lease | None = None, keep: bool = False
    ) -> None:
        """Add a record; with a lease only if that is held, which then is done unless it is to be kept.

        Raises:
            LeaseLost: it is not held; nothing was added.
        """
        with worded(self._url), changing(self._engine) as connection:
            if leases is not None and lease is not None:
                leases.fence(connection, lease, done=not keep)
            mine = CAMPAIGNS.c.tag == self._tag
            # The row of the campaign is locked from here on: numbers are given in the order of the commits.
            connection.execute(sql.update(CAMPAIGNS).where(mine).values(lines=CAMPAIGNS.c.lines + 1))
            place = connection.scalar(sql.select(CAMPAIGNS.c.lines).where(mine))
            values = {"tag": self._tag, "place": place, "line": record.line}
            connection.execute(sql.insert(SHARED_LINES).values(writer=record.writer, seq=record.seq, **values))

    def agree(self, name: str, value: Any) -> Any:
        """Settle a JSON value for all: the first one given under `name` stays; returns the one that stands."""
        row = {"tag": self._tag, "name": name, "value": json.dumps(value)}
        with worded(self._url), changing(self._engine) as connection:
            connection.execute(insert_new(self._engine.dialect.name, FACTS, [row]))
            return self._fact(connection, name)

    def agreed(self, name: str) -> Any:
        """The value that stands under `name`, or None."""
        with worded(self._url), self._engine.connect() as connection:
            return self._fact(connection, name)

    def close(self) -> None:
        """Give back the connections. Idempotent."""
        self._engine.dispose()

    def __enter__(self) -> SharedTag:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fact(self, connection: sql.Connection, name: str) -> Any:
        statement = sql.select(FACTS.c.value).where(FACTS.c.tag == self._tag, FACTS.c.name == name)
        text = connection.scalar(statement)
        return None if text is None else json.loads(text)

    def _set_up(self) -> None:
        with changing(self._engine) as connection:
            if connection.dialect.name != "sqlite":
                connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_CREATION_LOCK)))
            STORAGE.create(connection, checkfirst=True)
            versions = sorted(connection.scalars(sql.select(STORAGE.c.version)))
            if not versions:
                connection.execute(sql.insert(STORAGE).values(version=VERSION))
            elif versions != [VERSION]:
                raise StorageError(
                    f"the storage {self.shown} has tables of version {versions[-1]}, this Mjolnir uses {VERSION}: "
                    "run the same Mjolnir on all hosts, or name another database"
                )
            SCHEMA.create_all(connection)
            row = {"tag": self._tag, "lines": 0}
            connection.execute(insert_new(self._engine.dialect.name, CAMPAIGNS, [row]))
