"""The shared tag: lines in one order for all, lines that count only under a lease, and words for what is wrong."""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sql

from mjolnir import ledger as ledgers
from mjolnir.ledger import database
from mjolnir.ledger.database import StorageError, StorageMissing
from mjolnir.ledger.leases import LeaseLost
from mjolnir.ledger.shared import VERSION, SharedTag
from tests.postgres import fresh_database


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shared.sqlite'}"
    return str(request.getfixturevalue("postgres"))


@pytest.fixture
def tag(url: str) -> Iterator[SharedTag]:
    with SharedTag(url, uuid.uuid4().hex) as opened:
        yield opened


def test_a_line_is_read_back_by_all_in_the_order_of_commits(url, tag, tmp_path):
    with ledgers.open(tmp_path / "a", git="off") as one, ledgers.open(tmp_path / "b", git="off") as two:
        name = tag._tag
        first, second = one.writer(name), two.writer(name)
        a = first.append("note", {"text": "a", "about": ""}, publish=tag.add)
        b = second.append("note", {"text": "b", "about": ""}, publish=tag.add, after=a.lamport)
        c = first.append("note", {"text": "c", "about": ""}, publish=tag.add, after=b.lamport)
        assert tag.lines() == [(1, a), (2, b), (3, c)]
        assert tag.lines(2) == [(3, c)]
        assert [r.lamport for _, r in tag.lines()] == [1, 2, 3]
        assert two.import_records([r for _, r in tag.lines()]) == 2
        assert two.import_records([r for _, r in tag.lines()]) == 0
        assert two.records(name) == (a, b, c)
        assert two.verify().ok
    with SharedTag(url, "another") as other:
        assert other.lines() == []


def test_a_line_whose_lease_is_lost_is_nowhere(tag, tmp_path):
    with ledgers.open(tmp_path / "a", git="off") as ledger:
        writer = ledger.writer(tag._tag)
        mine, other = tag.leases(writer.id, 0.0), tag.leases("other22222", 30.0)
        lease = mine.take(["trial/1"])
        assert other.take(["trial/1"]) is not None
        with pytest.raises(LeaseLost):
            writer.append("trial", {"trial": 1, "status": "measured"}, publish=lambda r: tag.add(r, mine, lease))
        assert tag.lines() == []
        assert ledger.records() == ()
        note = writer.append("note", {"text": "late", "about": ""}, publish=tag.add)
        assert note.seq == 0
        assert [record for _, record in tag.lines()] == [note]


def test_a_kept_lease_goes_on_and_a_finished_one_is_done(tag, tmp_path):
    with ledgers.open(tmp_path / "a", git="off") as ledger:
        writer = ledger.writer(tag._tag)
        mine = tag.leases(writer.id, 30.0)
        lease = mine.take(["finals"])
        for _ in range(2):
            writer.append("note", {"text": "x"}, publish=lambda r: tag.add(r, mine, lease, keep=True))
        assert mine.renew(lease)
        writer.append("note", {"text": "x"}, publish=lambda r: tag.add(r, mine, lease))
        assert not mine.renew(lease)


def test_what_cannot_be_published_is_not_appended(tag, tmp_path):
    """A writer that cannot know whether its line is there adds nothing after it."""
    with ledgers.open(tmp_path / "a", git="off") as ledger:
        writer = ledger.writer(tag._tag)

        def cut(record: ledgers.Record) -> None:
            tag.add(record)
            raise StorageMissing("the connection broke")

        with pytest.raises(StorageMissing):
            writer.append("note", {"text": "x"}, publish=cut)
        assert ledger.records() == ()
        with pytest.raises(StorageError, match="refused"):
            writer.append("note", {"text": "y"}, publish=tag.add)
        assert ledger.import_records([r for _, r in tag.lines()]) == 1


def test_the_first_value_stands(tag):
    assert tag.agreed("ask/1") is None
    assert tag.agree("ask/1", {"knob": 1}) == {"knob": 1}
    assert tag.agree("ask/1", {"knob": 2}) == {"knob": 1}
    assert tag.agreed("ask/1") == {"knob": 1}


def test_who_reads_up_to_a_number_has_all_below_it(url, tag, tmp_path):
    """Four writers at once, and a reader that only ever asks for what is new."""
    wanted = 4 * 25
    seen: list[int] = []

    def write(place: int) -> None:
        with ledgers.open(tmp_path / str(place), git="off") as ledger, SharedTag(url, tag._tag) as mine:
            writer = ledger.writer(tag._tag)
            for _ in range(25):
                writer.append("note", {"text": "x"}, publish=mine.add)

    threads = [threading.Thread(target=write, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or len(seen) < wanted:
        seen += [place for place, _ in tag.lines(seen[-1] if seen else 0)]
        assert seen == list(range(1, len(seen) + 1))
        if not any(thread.is_alive() for thread in threads) and not tag.lines(len(seen)):
            break
    assert len(seen) == wanted


def test_tables_of_another_version_are_refused_untouched(postgres):
    with fresh_database(postgres, "newer") as url:
        SharedTag(url, "t").close()
        engine = sql.create_engine(url)
        with engine.begin() as connection:
            connection.execute(sql.text("UPDATE mjolnir_storage SET version = 9"))
            connection.execute(sql.text("DROP TABLE mjolnir_facts"))
        with pytest.raises(StorageError, match=f"tables of version 9, this Mjolnir uses {VERSION}"):
            SharedTag(url, "t")
        assert "mjolnir_facts" not in sql.inspect(engine).get_table_names()
        engine.dispose()


def test_processes_that_make_the_tables_at_once_do_not_collide(postgres):
    failures: list[BaseException] = []

    def make(url: str) -> None:
        try:
            SharedTag(url, "t").close()
        except BaseException as error:
            failures.append(error)

    with fresh_database(postgres, "crowded") as url:
        threads = [threading.Thread(target=make, args=(url,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []


@pytest.mark.parametrize(
    "text",
    [
        "not a url",
        "postgresql+psycopg://u:hush@h:port/d",
        "mysql://u:hush@h/d",
        "postgres://u:hush@h/d",
        "postgresql+psycopg2://u:hush@h/d",
        "sqlite://",
        "",
    ],
)
def test_a_url_that_makes_no_sense_is_refused_without_its_password(text):
    with pytest.raises(StorageError, match=r"expected postgresql\+psycopg://USER@HOST/DATABASE") as caught:
        database.storage_url(text)
    assert "hush" not in str(caught.value)


def test_a_server_that_is_away_is_named_without_its_password():
    with pytest.raises(StorageMissing, match=r"storage postgresql\+psycopg://127.0.0.1:1/d cannot be used") as caught:
        SharedTag("postgresql+psycopg://u:hush@127.0.0.1:1/d?application_name=hush", "t")
    assert "hush" not in str(caught.value)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StorageMissing, match=r"psycopg.*pip install 'mjolnir-autoresearch\[postgres\]'"):
        SharedTag("postgresql+psycopg://u@127.0.0.1:1/d", "t")


@pytest.mark.parametrize(
    ("url", "kept", "shown"),
    [
        (
            "postgresql+psycopg://u:hush@host:5432/d?password=hush",
            "postgresql+psycopg://host:5432/d",
            "postgresql+psycopg://u@host:5432/d",
        ),
        ("sqlite:////home/someone/shared.sqlite", "sqlite:///shared.sqlite", "sqlite:////home/someone/shared.sqlite"),
        ("sqlite:///shared.sqlite", "sqlite:///shared.sqlite", "sqlite:///shared.sqlite"),
        ("u:hush@host", "***", "***"),
    ],
)
def test_what_is_kept_and_shown_of_a_url(url, kept, shown):
    assert database.masked(url) == kept
    assert database.passwordless(url) == shown
