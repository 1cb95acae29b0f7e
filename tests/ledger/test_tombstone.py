"""Removing a tag: nothing goes before it is asked for by name, and what goes is what the tombstone names."""

from __future__ import annotations

from pathlib import Path

import pytest

from mjolnir import ledger
from mjolnir.ledger.tombstone import Collected, bury, collect, hidden, removal
from tests.ledger.samples import TAG, git, ledger_refs, trial


def fill(book: ledger.Ledger, tag: str, count: int) -> str:
    with book.writer(tag, {"driver": "580"}) as writer:
        for number in range(1, count + 1):
            writer.append("trial", trial(number))
        return writer.id


def test_a_tag_is_removed_in_two_steps(repository: Path) -> None:
    with ledger.open(repository / "research") as book:
        gone, stays = fill(book, "gone", 3), fill(book, TAG, 2)
        assert collect(book) == Collected({}, 0, {})
        whole = book.records("gone")
        stone = bury(book, "gone", "a wrong workload")
        assert stone.body["text"] == "a wrong workload"
        assert stone.body["writers"] == {gone: {"seq": 2, "sha256": whole[-1].sha256}}
        assert book.records("gone") == (*whole, stone)
        size = sum(len(record.line) + 1 for record in whole)
        assert hidden(book) == {"gone"}
        before = book.live.read_bytes()
        assert collect(book, dry_run=True) == Collected({"gone": 3}, size, {})
        assert book.live.read_bytes() == before
        assert collect(book) == Collected({"gone": 3}, size, {})
        assert book.records("gone") == (stone,)
        assert len(book.live.read_bytes()) == len(before) - size
        names = {f"refs/mjolnir/ledger/{TAG}/{stays}", f"refs/mjolnir/ledger/gone/{stone.writer}"}
        assert set(ledger_refs(repository)) == names
        rows = (repository / "research" / "ledger.tsv").read_text().splitlines()
        assert [row.split("\t")[4] for row in rows[1:]] == [TAG, TAG]
        assert book.verify().ok
        assert hidden(book) == {"gone"}
    with ledger.open(repository / "research") as book:
        assert book.flush() == 0
        assert collect(book) == Collected({}, 0, {})
        assert len(book.records()) == 3
    assert git(repository, "fsck", "--strict", "--no-dangling").strip() == ""


def test_what_a_writer_added_after_the_tombstone_keeps_its_tag_whole(tmp_path: Path) -> None:
    with ledger.open(tmp_path, git="off") as book, book.writer(TAG) as writer:
        fill(book, TAG, 2)
        writer.append("trial", trial(1))
        assert removal(book, TAG) is None
        first = bury(book, TAG, "")
        writer.append("trial", trial(2))
        gone = removal(book, TAG)
        assert gone is not None
        assert (gone.stone, gone.later) == (first, 1)
        assert hidden(book) == frozenset()
        assert collect(book) == Collected({}, 0, {TAG: 1})
        assert len(book.records()) == 5
        bury(book, TAG, "once more")
        assert collect(book).records == {TAG: 4}
        assert [record.kind for record in book.records()] == ["tombstone", "tombstone"]
        assert book.verify().ok


def test_a_demotion_after_the_removal_is_no_later_record_and_stays(tmp_path: Path) -> None:
    with ledger.open(tmp_path, git="off") as book:
        fill(book, TAG, 2)
        bury(book, TAG, "")
        with book.writer(TAG) as writer:
            writer.append("demotion", {"reason": "slower"})
        assert hidden(book) == {TAG}
        assert collect(book).records == {TAG: 2}
        assert [record.kind for record in book.records()] == ["tombstone", "demotion"]


def test_the_tombstone_that_knew_most_of_a_writer_counts(tmp_path: Path) -> None:
    with ledger.open(tmp_path / "here", git="off") as here, ledger.open(tmp_path / "there", git="off") as there:
        with here.writer(TAG) as writer:
            writer.append("trial", trial(1))
            there.import_records(here.records())
            fill(there, "other", 5)
            writer.append("trial", trial(2))
        less = bury(there, TAG, "")
        assert less.lamport > bury(here, TAG, "").lamport
        here.import_records(there.records(TAG))
        assert hidden(here) == {TAG}
        assert collect(here).records == {TAG: 2}


def test_what_cannot_be_removed_is_said(tmp_path: Path) -> None:
    with ledger.open(tmp_path, git="off") as book:
        with pytest.raises(ledger.LedgerError, match="there is no such tag"):
            bury(book, TAG, "")
        fill(book, TAG, 1)
        bury(book, TAG, "")
        with pytest.raises(ledger.LedgerError, match="removed already"):
            bury(book, TAG, "")


def test_a_tombstone_that_makes_no_sense_removes_nothing(tmp_path: Path) -> None:
    with ledger.open(tmp_path, git="off") as book:
        name = fill(book, TAG, 2)
        with book.writer("other") as writer:
            writer.append("tombstone", {"writers": {name: {"seq": 1, "sha256": "0" * 64}}})
            writer.append("tombstone", {"writers": {name: 3, "x": {"seq": "1"}}})
            writer.append("tombstone", {"writers": [name]})
        done = collect(book)
        assert done.records == {}
        assert hidden(book) == {"other"}
        assert len(book.records(TAG)) == 2


def test_a_removal_that_is_cut_short_is_finished_by_the_next(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ledger.open(repository / "research") as book:
        fill(book, TAG, 2)
        bury(book, TAG, "")
        with monkeypatch.context() as patch:
            patch.setattr("mjolnir.ledger.tombstone._drop_refs", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                collect(book)
        assert len(book.records(TAG)) == 3
        assert collect(book).records == {TAG: 2}
        assert len(book.records(TAG)) == 1
        assert book.verify().ok
