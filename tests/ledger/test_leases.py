"""Leases: one holder at a time, over in time, and late answers that count for nothing; on both databases."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sql

from mjolnir.ledger import database
from mjolnir.ledger.leases import SCHEMA, Lease, LeaseLost, LeaseTable

NAMES = ["trial/1", "trial/2", "trial/3"]

Made = Callable[..., LeaseTable]


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sql.Engine]:
    if request.param == "sqlite":
        url = database.storage_url(f"sqlite:///{tmp_path / 'leases.sqlite'}")
    else:
        url = database.storage_url(request.getfixturevalue("postgres"))
    made = database.engine(url, durable=True)
    SCHEMA.create_all(made)
    yield made
    made.dispose()


@pytest.fixture
def leases(engine: sql.Engine) -> Made:
    tag = uuid.uuid4().hex

    def make(owner: str, seconds: float = 30.0) -> LeaseTable:
        return LeaseTable(engine, tag, owner, seconds)

    return make


def finish(engine: sql.Engine, table: LeaseTable, lease: Lease, done: bool = True) -> None:
    with database.changing(engine) as connection:
        table.fence(connection, lease, done=done)


def test_the_first_free_step_is_taken_in_the_order_asked(leases):
    one, two = leases("one"), leases("two")
    assert one.take(["b", "a"]) == Lease("b", 1)
    assert two.take(["b", "a"]) == Lease("a", 1)
    assert two.take(["a", "b"]) is None
    assert two.take([]) is None
    one.abandon(Lease("b", 1))
    assert two.take(["a", "b"]) == Lease("b", 2)


def test_what_is_done_is_never_taken_again(engine, leases):
    one, two = leases("one", seconds=0.05), leases("two")
    lease = one.take(NAMES)
    finish(engine, one, lease)
    time.sleep(0.1)
    assert two.take(NAMES[:1]) is None
    assert not one.renew(lease)
    one.abandon(lease)
    assert two.take(NAMES[:1]) is None


def test_tags_do_not_share_steps(engine):
    tags = [uuid.uuid4().hex for _ in range(2)]
    assert [LeaseTable(engine, tag, "one", 30.0).take(["a"]) for tag in tags] == [Lease("a", 1)] * 2


def test_a_lease_that_ran_out_is_taken_over_and_its_holder_comes_late(engine, leases):
    one, two = leases("one", seconds=0.3), leases("two")
    lease = one.take(NAMES[:1])
    assert two.take(NAMES[:1]) is None
    time.sleep(0.4)
    taken = two.take(NAMES[:1])
    assert taken == Lease("trial/1", 2)
    assert not one.renew(lease)
    with pytest.raises(LeaseLost, match="trial/1 ran out"):
        finish(engine, one, lease)
    one.abandon(lease)
    assert two.renew(taken)
    finish(engine, two, taken)
    with pytest.raises(LeaseLost):
        finish(engine, two, taken)


def test_a_token_is_worth_nothing_to_another_owner(engine, leases):
    one, two = leases("one"), leases("two")
    lease = one.take(NAMES[:1])
    with pytest.raises(LeaseLost):
        finish(engine, two, lease)
    finish(engine, one, lease)


def test_the_same_owner_again_holds_another_lease(engine, leases):
    one = leases("one", seconds=0.05)
    first = one.take(NAMES[:1])
    time.sleep(0.1)
    second = one.take(NAMES[:1])
    assert second == Lease("trial/1", 2)
    with pytest.raises(LeaseLost):
        finish(engine, one, first)
    finish(engine, one, second)


def test_a_renewed_lease_outlives_its_time(leases):
    one, two = leases("one", seconds=0.4), leases("two")
    lease = one.take(NAMES[:1])
    for _ in range(6):
        time.sleep(0.15)
        assert one.renew(lease)
        assert two.take(NAMES[:1]) is None


def test_one_that_ran_out_and_that_nobody_took_still_counts(engine, leases):
    one = leases("one", seconds=0.05)
    lease = one.take(NAMES[:1])
    time.sleep(0.1)
    finish(engine, one, lease, done=False)
    assert one.renew(lease)
    finish(engine, one, lease)


def test_a_transaction_that_fails_leaves_the_step_undone(engine, leases):
    one = leases("one")
    lease = one.take(NAMES[:1])

    def fail_after_the_fence() -> None:
        with database.changing(engine) as connection:
            one.fence(connection, lease, done=True)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_the_fence()
    finish(engine, one, lease)


def test_two_never_hold_the_same_lease(engine, leases):
    """Eight threads on twenty steps with leases so short that many run out under their holders."""
    steps = [f"trial/{number}" for number in range(20)]
    done: list[str] = []
    grants: list[tuple[str, int]] = []
    late: list[str] = []
    broken: list[BaseException] = []

    def work(owner: str, lazy: bool) -> None:
        table = leases(owner, seconds=0.2)
        try:
            while len(done) < len(steps):
                lease = table.take(steps)
                if lease is None:
                    time.sleep(0.01)
                    continue
                grants.append((lease.name, lease.token))
                if lazy and lease.token == 1:
                    time.sleep(0.3)
                try:
                    finish(engine, table, lease)
                    done.append(lease.name)
                except LeaseLost:
                    late.append(lease.name)
        except BaseException as error:
            broken.append(error)
            raise

    threads = [threading.Thread(target=work, args=(f"worker{n}", n % 2 == 0)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not broken
    assert sorted(done) == sorted(steps)
    assert len(grants) == len(set(grants))
    assert len(grants) == len(done) + len(late)


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_takers_pass_over_rows_that_others_are_taking(engine, leases):
    """SQLite has no rows to lock: there takers exclude one another by their transactions."""
    one = leases("one")
    one.abandon(one.take(NAMES[:1]))
    with engine.connect() as connection, connection.begin():
        statement = "SELECT * FROM mjolnir_leases WHERE name = 'trial/1' FOR UPDATE"
        connection.execute(sql.text(statement))
        begin = time.monotonic()
        assert leases("two").take(NAMES) == Lease("trial/2", 1)
        assert time.monotonic() - begin < 2
