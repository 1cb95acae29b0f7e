"""SQL databases: opening one, its clock, and words for what is wrong with it that never hold a password."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path, PurePath
from typing import Any

import sqlalchemy as sql
from sqlalchemy import exc
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import URL, make_url

from mjolnir.ledger.errors import LedgerError

DRIVER = "postgresql+psycopg"
CONNECT_SECONDS = 10
"""How long a server that does not answer is waited for."""


class StorageError(LedgerError):
    """A storage URL that makes no sense, or a database that this version cannot use."""


class StorageMissing(LedgerError):
    """The server cannot be reached, or the package that speaks to it is not installed."""


def storage_url(text: str) -> URL:
    """The URL of a database that hosts can share: PostgreSQL, or a SQLite file for the processes of one host.

    Raises:
        StorageError: it is none of these; the message repeats nothing of it but its scheme.
    """
    hint = "expected postgresql+psycopg://USER@HOST/DATABASE, or sqlite:///FILE for processes of one host"
    try:
        url = make_url(text)
    except (exc.ArgumentError, ValueError):
        raise StorageError(f"--storage is no database URL: {hint}") from None
    if url.drivername == "postgresql":
        url = url.set(drivername=DRIVER)
    if url.drivername == "sqlite" and url.database not in (None, "", ":memory:"):
        return url
    if url.drivername != DRIVER:
        raise StorageError(f"--storage {url.drivername}: this kind of database cannot be shared; {hint}")
    return url


def sqlite_url(path: Path | None) -> URL:
    """The URL of a SQLite file, or of a database in memory. Never text: a path may hold what no encoding has."""
    return URL.create("sqlite", database=None if path is None else str(path))


def masked(text: URL | str) -> str:
    """A storage URL without what a stranger should not read: scheme, host, port and the database's name remain."""
    try:
        url = make_url(text)
    except (exc.ArgumentError, ValueError):
        return "***"
    shown = URL.create(url.drivername, host=url.host, port=url.port, database=PurePath(url.database or "").name or None)
    return shown.render_as_string()


def passwordless(text: str) -> str:
    """A storage URL as its user's own screen has it, to be used again: whole, but for password and query."""
    try:
        url = make_url(text)
    except (exc.ArgumentError, ValueError):
        return "***"
    kept = URL.create(url.drivername, username=url.username, host=url.host, port=url.port, database=url.database)
    return kept.render_as_string()


def engine(url: URL | str, *, durable: bool = False) -> sql.Engine:
    """An engine for `url`; nothing is connected yet.

    Args:
        url: the database.
        durable: what SQLite has committed survives a power loss too; PostgreSQL sees to that by itself.

    Raises:
        StorageMissing: the package for PostgreSQL is not installed.
    """
    given = make_url(url)
    if given.get_backend_name() == "sqlite":
        return _sqlite(given, durable)
    try:
        # A connection that idled while a trial ran may be dead: it is tried before it is used.
        return sql.create_engine(given, pool_pre_ping=True, connect_args={"connect_timeout": CONNECT_SECONDS})
    except ModuleNotFoundError as error:
        raise StorageMissing(
            f"the package {error.name}, which speaks to PostgreSQL, is not installed: "
            "pip install 'mjolnir-autoresearch[postgres]'"
        ) from error


@contextmanager
def worded(url: URL) -> Iterator[None]:
    """Turn failures of the database at `url` into `StorageMissing` or `StorageError`, in words."""
    try:
        yield
    except exc.OperationalError as error:
        raise StorageMissing(f"the storage {masked(url)} cannot be used: {_first_line(error)}") from None
    except exc.DatabaseError as error:
        raise StorageError(f"the storage {masked(url)} refused: {_first_line(error)}") from None


def insert_new(dialect: str, table: sql.Table, rows: Sequence[Mapping[str, Any]]) -> sql.Executable:
    """Insert the rows whose keys are not there yet."""
    if dialect == "sqlite":
        return sqlite.insert(table).values(rows).on_conflict_do_nothing()
    # Here because it takes long to import, asyncio and all, and few campaigns are shared.
    from sqlalchemy.dialects import postgresql

    return postgresql.insert(table).values(rows).on_conflict_do_nothing()


def insert_many(connection: sql.Connection, table: sql.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows whose values are as the driver takes them, JSON as text; each has every column of the table.

    The driver gets them as they are, where SQLAlchemy would look at every value of every row: half the time of a
    rebuilt index.
    """
    compiled = sql.insert(table).compile(dialect=connection.dialect)
    names = getattr(compiled, "positiontup", None)
    values: Any = list(map(itemgetter(*names), rows)) if names else list(rows)
    connection.exec_driver_sql(str(compiled), values)


def seconds_now(dialect: str) -> sql.ColumnElement[float]:
    """The database's own clock in seconds since 1970, so that the clocks of hosts need not agree."""
    if dialect == "sqlite":
        return sql.literal_column("(julianday('now') - 2440587.5) * 86400.0", sql.Float)
    return sql.literal_column("extract(epoch FROM clock_timestamp())::double precision", sql.Float)


def _first_line(error: exc.DBAPIError) -> str:
    return str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else type(error.orig).__name__


def _sqlite(url: URL, durable: bool) -> sql.Engine:
    # One connection for all threads where the database is in memory; else it would be another one in each.
    memory = url.database in (None, "", ":memory:")
    pool: dict[str, Any] = {"poolclass": sql.StaticPool} if memory else {}
    made = sql.create_engine(url, connect_args={"timeout": 60, "check_same_thread": False}, **pool)
    _set_up_sqlite(made, durable)
    return made


def _set_up_sqlite(made: sql.Engine, durable: bool) -> None:
    """Transactions that start as writers when they are `exclusive`, and a journal that lets readers read meanwhile."""

    @sql.event.listens_for(made, "connect")
    def connect(connection: Any, _: object) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")

    @sql.event.listens_for(made, "begin")
    def begin(connection: sql.Connection) -> None:
        exclusive = connection.get_execution_options().get("exclusive", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if exclusive else "BEGIN")


@contextmanager
def changing(made: sql.Engine) -> Iterator[sql.Connection]:
    """A transaction that writes. In SQLite it excludes other writers from its start."""
    with made.connect().execution_options(exclusive=True) as connection, connection.begin():
        yield connection
