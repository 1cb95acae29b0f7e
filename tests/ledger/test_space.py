"""Room on the disk: looked at before and during a campaign, and told in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from mjolnir import ledger
from mjolnir.ledger import space
from mjolnir.ledger.space import CAMPAIGN, LEAST, Room
from tests.ledger.samples import TAG, trial


def test_it_is_looked_every_five_seconds_and_warned_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    left, looks = CAMPAIGN, 0
    times = iter((0.0, 1.0, 4.9, 5.0, 11.0, 20.0, 30.0, 30.1, 30.2))

    def look(folder: Path) -> int:
        nonlocal looks
        assert folder == tmp_path
        looks += 1
        return left

    room = Room([tmp_path], look, lambda: next(times))
    for _ in range(4):
        room.check()
    assert looks == 2
    assert caplog.text == ""
    left = CAMPAIGN - 1
    for _ in range(2):
        room.check()
    assert caplog.text.count("255 MiB left; a campaign may need 256") == 1
    left = LEAST - 1
    for _ in range(2):
        with pytest.raises(ledger.LedgerFull, match="nearly full: 15 MiB are left, and 16 are kept"):
            room.check()
    left = LEAST
    room.check()


def test_nothing_is_appended_to_a_disk_that_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ledger.open(tmp_path, git="off") as book, book.writer(TAG) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(space, "free", lambda _: LEAST - 1)
            with pytest.raises(ledger.LedgerFull, match="run again, a campaign with --resume"):
                writer.append("trial", trial(1))
        assert book.records() == ()
        assert writer.append("trial", trial(1)).seq == 0


def test_room_is_looked_for_before_the_work(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tight = (repository / ".git").resolve()
    monkeypatch.setattr(space, "free", lambda folder: LEAST - 1 if folder == tight else 2 * CAMPAIGN)
    with ledger.open(repository / "research") as book, pytest.raises(ledger.LedgerFull, match=r"\.git is nearly full"):
        book.prepare()
    assert not (repository / "research" / "ledger.jsonl").exists()


def test_the_disk_of_the_repository_is_watched_too(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tight = (repository / ".git").resolve()
    monkeypatch.setattr(space, "free", lambda folder: 0 if folder == tight else 2 * CAMPAIGN)
    book = ledger.open(repository / "research")
    nearly = pytest.raises(ledger.LedgerFull, match=r"disk of .*\.git is nearly full")
    with book, book.writer(TAG) as writer, nearly:
        writer.append("trial", trial(1))


def test_a_folder_that_is_not_there_yet_has_the_room_of_its_parent(tmp_path: Path) -> None:
    assert abs(space.free(tmp_path / "a" / "b") - space.free(tmp_path)) < 1 << 30
    assert space.free(tmp_path) > 0
