"""Leases: who may take which step of a shared campaign, and until when.

A lease is a row of a table. It is taken for some seconds and renewed while the work goes on; one that ran out, since
its holder was killed or cut off, is free for others. Each grant of a row has a new **token**. Whoever finishes shows
the token that he was given, inside the transaction that makes his work count, so that an answer that comes late counts
for nothing. All times are those of the database's own clock.

In PostgreSQL a taker locks the row that he found with `FOR UPDATE SKIP LOCKED`, and passes over those that others are
just taking. SQLite has no such clause and needs none: a transaction that writes excludes all others from its start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sql

from mjolnir.ledger.database import changing, insert_new, seconds_now, worded
from mjolnir.ledger.errors import LedgerError

SCHEMA = sql.MetaData()
"""The tables that hosts share."""

LEASES = sql.Table(
    "mjolnir_leases", SCHEMA,
    sql.Column("tag", sql.String(63), primary_key=True),
    sql.Column("name", sql.String(200), primary_key=True),
    sql.Column("token", sql.BigInteger, nullable=False),
    sql.Column("owner", sql.String(10), nullable=False),
    sql.Column("expires", sql.Double, nullable=False),
    sql.Column("done", sql.Boolean, nullable=False),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that was taken.

    Attributes:
        name: of the step.
        token: number of the grant; a later grant of the same step has a larger one.
    """

    name: str
    token: int


class LeaseLost(LedgerError):
    """A lease ran out and was taken by another, or its step is done: what was made under it does not count."""


class LeaseTable:
    """The leases of one tag, as one owner sees them. Thread-safe.

    Args:
        engine: of a database that has the table.
        tag: the campaign.
        owner: who takes them here: the writer's id.
        seconds: how long a lease holds unless it is renewed.
    """

    def __init__(self, engine: sql.Engine, tag: str, owner: str, seconds: float) -> None:
        self._engine = engine
        self._tag = tag
        self._owner = owner
        self.seconds = seconds
        self._now = seconds_now(engine.dialect.name)

    def take(self, names: Sequence[str]) -> Lease | None:
        """Lease the first of `names` that is neither done nor held; None when there is none."""
        if not names:
            return None
        fresh = {"tag": self._tag, "token": 0, "owner": "", "expires": 0.0, "done": False}
        # In one order for all, so that two inserts never wait for one another in a circle.
        rows = [{**fresh, "name": name} for name in sorted(names)]
        with worded(self._engine.url), changing(self._engine) as connection:
            connection.execute(insert_new(self._engine.dialect.name, LEASES, rows))
            order = sql.case({name: place for place, name in enumerate(names)}, value=LEASES.c.name)
            free = (LEASES.c.tag == self._tag, LEASES.c.name.in_(names), ~LEASES.c.done, LEASES.c.expires <= self._now)
            found = connection.execute(
                sql.select(LEASES.c.name, LEASES.c.token)
                .where(*free)
                .order_by(order)
                .limit(1)
                .with_for_update(skip_locked=True)
            ).one_or_none()
            if found is None:
                return None
            lease = Lease(found.name, found.token + 1)
            values = {"token": lease.token, "owner": self._owner, "expires": self._now + self.seconds}
            connection.execute(sql.update(LEASES).where(*self._row(lease.name)).values(values))
        return lease

    def renew(self, lease: Lease) -> bool:
        """Hold a lease for another while; False when it is lost. One that ran out and nobody took is held again."""
        with worded(self._engine.url), changing(self._engine) as connection:
            expires = {"expires": self._now + self.seconds}
            return connection.execute(sql.update(LEASES).where(*self._mine(lease)).values(expires)).rowcount == 1

    def abandon(self, lease: Lease) -> None:
        """Give a lease back, for anybody to take; nothing happens when it is lost already."""
        with worded(self._engine.url), changing(self._engine) as connection:
            connection.execute(sql.update(LEASES).where(*self._mine(lease)).values(expires=0.0))

    def fence(self, connection: sql.Connection, lease: Lease, *, done: bool) -> None:
        """Make sure, until the transaction of `connection` ends, that the lease is held; `done`: nobody takes it again.

        Raises:
            LeaseLost: it is not.
        """
        values: dict[str, Any] = {"done": True} if done else {"expires": self._now + self.seconds}
        if connection.execute(sql.update(LEASES).where(*self._mine(lease)).values(values)).rowcount != 1:
            raise LeaseLost(f"the lease of {lease.name} ran out and another process has taken it")

    def _row(self, name: str) -> tuple[sql.ColumnElement[bool], ...]:
        return (LEASES.c.tag == self._tag, LEASES.c.name == name)

    def _mine(self, lease: Lease) -> tuple[sql.ColumnElement[bool], ...]:
        return (*self._row(lease.name), LEASES.c.token == lease.token, LEASES.c.owner == self._owner, ~LEASES.c.done)
