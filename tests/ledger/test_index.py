"""The index: finds what there is, holds nothing of its own, and can be thrown away."""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sql
from sqlalchemy import exc

from mjolnir import ledger
from mjolnir.ledger.index import Index
from mjolnir.ledger.ledger import Ledger
from mjolnir.ledger.summary import Best
from tests.ledger.samples import TAG, git, ledger_refs, trial


def fill(book: Ledger) -> list[ledger.Record]:
    """Two tags by three writers, interleaved."""
    first, second, third = book.writer(TAG, {"driver": "1"}), book.writer(TAG), book.writer("b")
    records = [first.append("campaign", {"simulated": False})]
    for number in range(1, 7):
        writer = (first, second)[number % 2]
        ratio = 1.0 - number / 100
        body = trial(
            number, ratio=ratio, ratios={8: ratio, "32": 2 - ratio}, verdict="keep" if number < 3 else "discard"
        )
        records.append(writer.append("trial", body))
    records.append(second.append("trial", trial(7, status="crashed", ratio=None, ratios={}, bucket=None)))
    records.append(third.append("trial", trial(1)))
    records.append(first.append("end", {"reason": "trials", "trials": 7, "resumable": False}))
    return records


def answers(book: Ledger) -> tuple[object, ...]:
    return (
        book.tags(), book.records(), book.records(TAG), book.records(kind="trial"), book.trial(TAG, 4),
        book.trials(TAG, sort="ratio"), [book.commit(record) for record in book.records()],
    )  # fmt: skip


def test_tags(tmp_path: Path) -> None:
    with ledger.open(tmp_path, git="off") as book:
        records = fill(book)
        second, first = book.tags()
        assert (second.tag, first.tag) == ("b", TAG)
        assert (first.records, first.trials, first.kept, first.writers) == (9, 7, 2, 2)
        assert first.statuses == {"crashed": 1, "measured": 6}
        assert first.best == {8: Best(0.94, 6), 32: Best(1.01, 1)}
        assert (first.first, first.last) == (records[0].time, records[-1].time)
        assert (first.ended, first.resumable) == ("trials", False)
        assert (second.ended, second.resumable) == (None, True)
        with book.writer(TAG) as writer:
            writer.append("trial", trial(8))
        assert book.tags()[-1].ended is None


def test_records_come_in_order(tmp_path: Path) -> None:
    with ledger.open(tmp_path, git="off") as book:
        records = fill(book)
        assert list(book.records()) == records
        assert [record.lamport for record in records] == list(range(1, 11))
        assert list(book.records("b")) == [records[8]]
        assert list(book.records(TAG, "end")) == [records[-1]]
        assert book.records("nothing") == ()
        assert book.record(records[3].sha256) == records[3]
        assert book.record("0" * 64) is None


def test_trials_by_what_is_asked(tmp_path: Path) -> None:
    with ledger.open(tmp_path, git="off") as book:
        records = fill(book)

        def numbers(**asked: object) -> list[int]:
            return [record.body["trial"] for record in book.trials(TAG, **asked)]  # type: ignore[arg-type]

        assert numbers() == [1, 2, 3, 4, 5, 6, 7]
        assert numbers(status="crashed") == [7]
        assert numbers(verdict="keep") == [1, 2]
        assert numbers(bucket=8) == [1, 2, 3, 4, 5, 6]
        assert numbers(knobs={"kv_stages": 1}) == [1, 6]
        assert numbers(knobs={"kv_stages": 1, "ctas_per_sm": 3}) == []
        assert numbers(since=records[5].time) == [5, 6, 7]
        assert numbers(sort="ratio") == [6, 5, 4, 3, 2, 1]
        assert numbers(sort="ratio", limit=2) == [6, 5]
        assert book.trial(TAG, 3) == records[3]
        with pytest.raises(ledger.LedgerError, match="no trial 99; its last one is 7"):
            book.trial(TAG, 99)
        with pytest.raises(ledger.LedgerError, match=f"no trials under 'x'; the tags are b, {TAG}"):
            book.trial("x", 1)


@pytest.mark.parametrize("damage", ["removed", "garbage", "emptied", "truncated", "reindex"])
def test_an_index_that_is_gone_or_broken_is_built_again(repository: Path, damage: str) -> None:
    folder = repository / "research"
    with ledger.open(folder) as book:
        fill(book)
        expected = answers(book)
    index = folder / "ledger.sqlite"
    for suffix in ("-wal", "-shm"):
        assert not index.with_name(index.name + suffix).exists()
    match damage:
        case "removed":
            index.unlink()
        case "garbage":
            index.write_bytes(b"this is no database" * 1000)
        case "emptied":
            index.write_bytes(b"")
        case "truncated":
            index.write_bytes(index.read_bytes()[: index.stat().st_size // 2])
        case "reindex":
            with ledger.open(folder) as book:
                assert book.reindex() == 10
    with ledger.open(folder) as book:
        assert answers(book) == expected
        assert book.verify().ok


def test_the_index_follows_the_truth_and_forgets_with_it(repository: Path) -> None:
    with ledger.open(repository / "research") as book:
        with book.writer(TAG) as writer:
            records = [writer.append("trial", trial(number)) for number in (1, 2, 3)]
        assert list(book.records()) == records
        for ref in ledger_refs(repository):
            git(repository, "update-ref", "-d", ref)
        book.live.write_bytes(records[0].line + b"\n")
        assert list(book.records()) == records[:1]
        book.live.unlink()
        assert book.flush() == 0


def test_two_open_ledgers_see_one_anothers_records(tmp_path: Path) -> None:
    with ledger.open(tmp_path, git="off") as one, ledger.open(tmp_path, git="off") as two:
        with one.writer(TAG) as writer:
            first = writer.append("note", {"text": "1"})
            assert two.records() == (first,)
            with two.writer(TAG) as other:
                second = other.append("note", {"text": "2"})
                third = writer.append("note", {"text": "3"})
        assert one.records() == two.records() == (first, second, third)
        assert [record.lamport for record in one.records()] == [1, 2, 3]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_can_be_read(tmp_path: Path) -> None:
    with ledger.open(tmp_path, git="off") as book:
        fill(book)
    (tmp_path / "ledger.sqlite").unlink()
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with ledger.open(tmp_path, git="off") as book:
            assert len(book.records()) == 10
    finally:
        tmp_path.chmod(stat.S_IRWXU)


def test_reading_makes_nothing(tmp_path: Path) -> None:
    with ledger.open(tmp_path / "none", git="off") as book:
        assert book.tags() == ()
        assert book.records() == ()
        assert book.verify() == ledger.Verification(0, 0, 0, ())
    assert list(tmp_path.iterdir()) == []


def test_a_clock_that_jumps_back_changes_no_order(tmp_path: Path) -> None:
    with ledger.open(tmp_path, git="off") as book, book.writer(TAG) as writer:
        late = writer.append("note", {"text": "1"}, time=datetime(2030, 1, 1, tzinfo=UTC))
        early = writer.append("note", {"text": "2"}, time=datetime(2020, 1, 1, tzinfo=UTC))
        assert book.records() == (late, early)
        assert book.verify().ok


def test_an_index_that_cannot_lie_in_the_folder_is_kept_in_memory(tmp_path: Path) -> None:
    with ledger.open(tmp_path, git="off") as book:
        fill(book)
        expected = answers(book)
    (tmp_path / "ledger.sqlite").unlink()
    (tmp_path / "ledger.sqlite" / "in the way").mkdir(parents=True)
    with ledger.open(tmp_path, git="off") as book:
        assert answers(book) == expected
        assert book.verify().ok
        assert book.reindex() == 10


def test_a_full_disk_costs_the_index_its_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ledger.open(tmp_path, git="off") as book:
        fill(book)
        expected = answers(book)
    real = Index.__init__

    def full(self: Index, url: sql.URL, algorithm: str) -> None:
        if url.database:
            raise exc.OperationalError("", None, Exception("database or disk is full"))
        real(self, url, algorithm)

    monkeypatch.setattr(Index, "__init__", full)
    with ledger.open(tmp_path, git="off") as book:
        assert answers(book) == expected


def test_a_number_beyond_the_database_is_that_of_no_trial(tmp_path: Path) -> None:
    with ledger.open(tmp_path, git="off") as book:
        fill(book)
        with pytest.raises(ledger.LedgerError, match="its last one is 7"):
            book.trial(TAG, 10**23)


def test_a_path_that_no_encoding_has(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    with ledger.open(folder, git="off") as book:
        assert len(fill(book)) == len(book.records())
    assert (folder / "ledger.sqlite").is_file()


def test_a_look_at_a_folder_without_a_live_file_leaves_nothing_there(repository: Path, tmp_path: Path) -> None:
    folder = repository / "runs"
    folder.mkdir()
    with ledger.open(repository / "research") as book:
        fill(book)
    with ledger.open(folder) as book:
        assert len(book.records()) == 10
        assert book.trial(TAG, 4).body["trial"] == 4
        assert book.verify().ok
        assert list(folder.iterdir()) == []
        with book.writer("c") as writer:
            writer.append("trial", trial(1))
        assert len(book.records()) == 11
        assert (folder / "ledger.sqlite").is_file()


def test_an_index_that_was_asked_for_is_kept_without_a_live_file(repository: Path) -> None:
    folder = repository / "runs"
    folder.mkdir()
    with ledger.open(repository / "research") as book:
        fill(book)
    with ledger.open(folder) as book:
        assert book.reindex() == 10
    assert [path.name for path in folder.iterdir()] == ["ledger.sqlite"]
    with ledger.open(folder) as book:
        assert len(book.records()) == 10
