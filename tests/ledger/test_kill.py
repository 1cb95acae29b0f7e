"""kill -9 at any instruction, and at each moment that matters by itself: what was acknowledged is there, once."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from mjolnir import ledger
from mjolnir.ledger import live as live_file
from mjolnir.ledger import queries as queries  # imported late: a forked writer would be killed meanwhile
from mjolnir.ledger.git_store import GitStore
from tests.ledger.samples import TAG, git, ledger_refs, trial

FORK = multiprocessing.get_context("fork")
KILLS = 200
PART = 25
"""So many kills fall on one ledger, so that opening it stays as quick as it is for a campaign."""


def write_forever(folder: Path, channel: Connection) -> None:
    """Append and flush, and tell of each record once it is acknowledged."""
    with ledger.open(folder) as book, book.writer(TAG, {"driver": "580"}) as writer:
        for number in range(1, 100_000):
            channel.send(writer.append("trial", trial(number)).sha256)
            if number % 7 == 0:
                writer.flush()


def killed_after(folder: Path, seconds: float | None) -> list[str]:
    """The records that a writer process acknowledged before it was killed; None kills it once there is one."""
    ours, theirs = FORK.Pipe(duplex=False)
    process = FORK.Process(target=write_forever, args=(folder, theirs))
    process.start()
    theirs.close()
    acknowledged = [ours.recv()] if seconds is None else []
    end = time.monotonic() + (seconds or 0.0)
    while (left := end - time.monotonic()) > 0:
        if ours.poll(left):
            acknowledged.append(ours.recv())
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    try:
        while True:
            acknowledged.append(ours.recv())
    except (EOFError, OSError):
        ours.close()
    return acknowledged


@pytest.mark.parametrize("part", range(KILLS // PART))
def test_random_kills_lose_nothing_and_double_nothing(repository: Path, part: int) -> None:
    folder = repository / "research"
    chance = random.Random(part)
    begin = time.monotonic()
    acknowledged = killed_after(folder, None)
    opening = time.monotonic() - begin  # much longer where the machine is busy
    for _ in range(PART - 1):
        # From the first instruction of opening to the middle of the twentieth flush.
        acknowledged += killed_after(folder, chance.uniform(0.0, max(0.2, 2 * opening)))
    with ledger.open(folder) as book:
        book.writer(TAG).close()
        book.flush()
        records = [record.sha256 for record in book.records(TAG)]
        check = book.verify()
    assert acknowledged
    assert len(records) == len(set(records))
    assert set(acknowledged) <= set(records)
    assert len(records) - len(acknowledged) <= PART
    assert (check.problems, check.unflushed, check.records) == ((), 0, len(records))
    lines = (folder / "ledger.jsonl").read_bytes().splitlines()
    assert [ledger.parse(line).sha256 for line in lines] == records
    rows = (folder / "ledger.tsv").read_text().splitlines()
    assert [row.split("\t")[-1] for row in rows[1:]] == [digest[:12] for digest in records]
    subjects = git(repository, "log", "--format=%s", "--grep", "^trial ", *ledger_refs(repository)).splitlines()
    assert len(subjects) == len(records)
    assert git(repository, "fsck", "--strict", "--no-dangling").strip() == ""


# ---- the windows, one by one ----------------------------------------------------------------------------------------


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: Any, name: str) -> Callable[[], None]:
    """Die where this is about to be called."""
    return lambda: setattr(owner, name, die)


def between_objects_and_refs() -> None:
    """Make the objects of a flush under another ref, and die before the ledger's own moves."""
    write = GitStore.write

    def only_objects(store: GitStore, commits: Any) -> None:
        write(store, commits)
        store.move({ref: (head, "") for ref, head in store.heads().items()})
        die()

    setattr(GitStore, "write", only_objects)  # noqa: B010 - a method cannot be assigned to


def half_a_line() -> None:
    real = os.write

    def write(fd: int, data: bytes) -> int:
        real(fd, data[: len(data) // 2])
        die()
        return 0

    os.write = write  # type: ignore[assignment]


def all_but_the_newline() -> None:
    real = os.write

    def write(fd: int, data: bytes) -> int:
        real(fd, data[:-1])
        die()
        return 0

    os.write = write  # type: ignore[assignment]


WINDOWS: dict[str, tuple[Callable[[], None], int]] = {
    "before the write": (before(os, "write"), 3),
    "half a line": (half_a_line, 3),
    "all but the newline": (all_but_the_newline, 4),
    "after the write, before fsync": (before(os, "fsync"), 4),
    "after fsync, before objects": (before(GitStore, "write"), 4),
    "after objects, before the ref": (between_objects_and_refs, 4),
    "after the ref, before the packs are merged": (before(GitStore, "gather"), 4),
}
"""By name: how to die there while the fourth record is appended and flushed, and how many records there are then."""


def write_and_die(folder: Path, arm: Callable[[], None]) -> None:
    writer = ledger.open(folder).writer(TAG, {"driver": "580"})
    for number in (1, 2, 3):
        writer.append("trial", trial(number))
    writer.flush()
    arm()
    writer.append("trial", trial(4))
    writer.flush()
    os._exit(0)


@pytest.mark.parametrize("window", WINDOWS)
def test_a_kill_in_this_window_leaves_each_record_whole_or_absent(repository: Path, window: str) -> None:
    arm, expected = WINDOWS[window]
    folder = repository / "research"
    process = FORK.Process(target=write_and_die, args=(folder, arm))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with ledger.open(folder) as book:
        with book.writer(TAG) as writer:
            writer.append("trial", trial(5))
        assert [record.body["trial"] for record in book.records()] == [*range(1, expected + 1), 5]
        book.flush()
        check = book.verify()
        assert (check.problems, check.unflushed) == ((), 0)
        assert book.flush() == 0
    assert sum(len(git(repository, "rev-list", ref).split()) for ref in ledger_refs(repository)) == expected + 1
    assert len((folder / "ledger.tsv").read_text().splitlines()) == expected + 2
    assert git(repository, "fsck", "--strict", "--no-dangling").strip() == ""


def fill(folder: Path, count: int) -> list[ledger.Record]:
    with ledger.open(folder) as book, book.writer(TAG, {"driver": "580"}) as writer:
        return [writer.append("trial", trial(number)) for number in range(1, count + 1)]


def test_git_clean_takes_the_live_file_and_no_record(repository: Path) -> None:
    folder = repository / "research"
    records = fill(folder, 3)
    git(repository, "clean", "-fdxq")
    assert not folder.exists()
    with ledger.open(folder) as book:
        assert list(book.records()) == records
        assert book.verify().ok
    more = fill(folder, 1)
    with ledger.open(folder) as book:
        assert list(book.records()) == [*records, *more]
        assert more[0].lamport == 4
        assert book.verify() == ledger.Verification(4, 2, 1, ())


def test_an_older_backup_of_the_live_file_is_made_up_for_by_git(repository: Path) -> None:
    folder = repository / "research"
    with ledger.open(folder) as book, book.writer(TAG) as writer:
        writer.append("trial", trial(1))
        shutil.copy(book.live, folder / "backup")
        writer.append("trial", trial(2))
        writer.flush()
        shutil.copy(folder / "backup", book.live)
        writer.append("trial", trial(3))
    with ledger.open(folder) as book:
        assert [record.body["trial"] for record in book.records()] == [1, 2, 3]
        assert book.live.read_bytes().count(b"\n") == 2
        assert book.verify().ok
    (ref,) = ledger_refs(repository)
    assert len(git(repository, "rev-list", ref).split()) == 3


def test_a_lock_file_that_was_left_behind_locks_nobody_out(repository: Path) -> None:
    folder = repository / "research"
    folder.mkdir()
    (folder / "ledger.lock").write_text("4711\n")
    (repository / ".git" / "mjolnir").mkdir()
    (repository / ".git" / "mjolnir" / "ledger.lock").touch()
    assert len(fill(folder, 2)) == 2
    assert len(ledger_refs(repository)) == 1


def test_a_lock_that_is_held_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from filelock import FileLock

    monkeypatch.setattr(live_file, "LOCK_SECONDS", 0.05)
    with FileLock(tmp_path / "ledger.lock"):
        book = ledger.open(tmp_path, git="off")
        with pytest.raises(
            ledger.LedgerError, match=r"another process has held .*ledger\.lock .*end the one that hangs"
        ):
            book.writer(TAG)


def test_a_clock_that_jumps_back_changes_no_order(repository: Path) -> None:
    folder = repository / "research"
    moments = [datetime(2030, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)]
    with ledger.open(folder) as book:
        for number, moment in enumerate(moments, 1):
            with book.writer(TAG) as writer:
                writer.append("trial", trial(number), time=moment)
        assert [record.body["trial"] for record in book.records()] == [1, 2, 3]
        assert book.verify().ok
    assert len(ledger_refs(repository)) == 3


def test_a_folder_that_cannot_be_written_is_said_and_still_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = fill(tmp_path, 2)
    opened = os.open

    def read_only(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR) and str(path).startswith(str(tmp_path)):
            raise OSError(30, os.strerror(30), str(path))
        return opened(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with ledger.open(tmp_path, git="off") as book:
        assert list(book.records()) == records
        with pytest.raises(ledger.LedgerError, match="cannot be written; name another with --ledger"):
            book.prepare()
        with pytest.raises(ledger.LedgerError, match=r"ledger\.lock cannot be locked: Read-only file system"):
            book.writer(TAG)


def test_a_full_disk_of_the_repository_costs_no_record(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    def limited(folder: Path) -> None:
        with ledger.open(folder) as book, book.writer(TAG) as writer:
            for number in range(1, 41):
                writer.append("trial", trial(number))
            size = book.live.stat().st_size
            assert size > 4096
            resource.setrlimit(resource.RLIMIT_FSIZE, (2048, resource.RLIM_INFINITY))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            with pytest.raises(ledger.LedgerError):
                writer.flush()
        os._exit(0)

    monkeypatch.setattr("mjolnir.ledger.writer.FLUSH_SECONDS", 60.0)
    monkeypatch.setattr("mjolnir.ledger.writer.FLUSH_RECORDS", 1000)
    process = FORK.Process(target=limited, args=(repository / "research",))
    process.start()
    process.join()
    assert process.exitcode == 0
    with ledger.open(repository / "research") as book:
        assert len(book.records()) == 40
        assert (book.verify().problems, book.verify().unflushed) == ((), 0)
    assert git(repository, "fsck", "--strict", "--no-dangling").strip() == ""
