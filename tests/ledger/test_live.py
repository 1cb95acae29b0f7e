"""The live file: acknowledged is durable, torn is set aside, full is cut back, several may append."""

from __future__ import annotations

import multiprocessing
import os
import resource
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from mjolnir import ledger
from mjolnir.ledger import live as live_file
from mjolnir.ledger.ledger import Ledger
from mjolnir.ledger.live import last_lines, scan
from tests.ledger.samples import TAG, git, ledger_refs, trial

FORK = multiprocessing.get_context("fork")


def test_a_torn_tail_is_moved_aside(tmp_path: Path) -> None:
    with ledger.open(tmp_path, git="off") as book, book.writer(TAG) as writer:
        whole = writer.append("trial", trial(1))
    with book.live.open("ab") as file:
        file.write(whole.line[:57])
    with ledger.open(tmp_path, git="off") as book:
        assert book.records() == (whole,)
        assert book.live.read_bytes() == whole.line + b"\n" + whole.line[:57]
        with book.writer(TAG) as writer:
            second = writer.append("trial", trial(2))
        assert book.live.read_bytes() == whole.line + b"\n" + second.line + b"\n"
        assert book.verify().ok
    (aside,) = (tmp_path / ".ledger").iterdir()
    assert aside.read_bytes() == whole.line[:57]


def test_a_tail_torn_by_another_process_meanwhile_is_moved_aside(tmp_path: Path) -> None:
    with ledger.open(tmp_path, git="off") as book, book.writer(TAG) as writer:
        first = writer.append("note", {"text": "1"})
        with book.live.open("ab") as file:
            file.write(b'{"body":{"te')
        second = writer.append("note", {"text": "2"})
        assert [line for _, _, line in scan(book.live)] == [first.line, second.line]


def append_until_full(folder: Path, channel: Connection) -> None:
    with ledger.open(folder, git="off") as book, book.writer(TAG) as writer:
        first = writer.append("trial", trial(1))
        size = book.live.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + len(first.line) // 2, resource.RLIM_INFINITY))
        try:
            writer.append("trial", trial(2))
        except ledger.LedgerFull as error:
            channel.send((str(error), book.live.stat().st_size - size))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        channel.send(writer.append("trial", trial(2)).seq)


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    ours, theirs = FORK.Pipe(duplex=False)
    process = FORK.Process(target=append_until_full, args=(tmp_path, theirs))
    process.start()
    message, grown = ours.recv()
    assert "is full" in message
    assert grown == 0
    assert ours.recv() == 1
    process.join()
    with ledger.open(tmp_path, git="off") as book:
        assert [record.body["trial"] for record in book.records()] == [1, 2]
        assert book.verify().ok


def append_many(folder: Path, count: int) -> None:
    with ledger.open(folder) as book, book.writer(TAG) as writer:
        for number in range(1, count + 1):
            writer.append("trial", trial(number))


def test_two_processes_append_to_one_file(repository: Path) -> None:
    folder = repository / "research"
    folder.mkdir()
    processes = [FORK.Process(target=append_many, args=(folder, 80)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    with ledger.open(folder) as book:
        records = book.records(TAG)
        assert book.verify().ok
    assert [record.lamport for record in records] == list(range(1, 161))
    assert len({record.writer for record in records}) == 2
    assert sorted(len(git(repository, "rev-list", ref).split()) for ref in ledger_refs(repository)) == [80, 80]
    assert len((folder / "ledger.tsv").read_text().splitlines()) == 161


def test_an_interrupt_between_write_and_bookkeeping_does_not_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with ledger.open(tmp_path, git="off") as book, book.writer(TAG) as writer:
        writer.append("trial", trial(1))
        with monkeypatch.context() as patch:
            patch.setattr(writer, "_accept", interrupted)
            with pytest.raises(KeyboardInterrupt):
                writer.append("trial", trial(2))
        third = writer.append("trial", trial(3))
        assert third.seq == 2
        assert [record.body["trial"] for record in book.records()] == [1, 2, 3]
        assert book.verify().ok
    assert len(book.tsv.read_text().splitlines()) == 4


def test_an_interrupt_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    with ledger.open(tmp_path, git="off") as book, book.writer(TAG) as writer:
        first = writer.append("note", {"text": "1"})
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", interrupted)
            with pytest.raises(KeyboardInterrupt):
                writer.append("note", {"text": "2"})
        assert book.live.read_bytes() == first.line + b"\n"
        assert writer.append("note", {"text": "3"}).seq == 1


def test_acknowledging_takes_one_write_and_one_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, str]] = []
    write, fsync = os.write, os.fsync

    def seen_write(fd: int, data: bytes) -> int:
        calls.append(("write", name(fd)))
        return write(fd, data)

    def seen_fsync(fd: int) -> None:
        calls.append(("fsync", name(fd)))
        fsync(fd)

    with ledger.open(tmp_path, git="off") as book, book.writer(TAG) as writer:
        writer.append("trial", trial(1))
        monkeypatch.setattr(os, "write", seen_write)
        monkeypatch.setattr(os, "fsync", seen_fsync)
        writer.append("trial", trial(2))
    assert calls == [("write", "ledger.jsonl"), ("fsync", "ledger.jsonl"), ("write", "ledger.tsv")]


def name(fd: int) -> str:
    return Path(f"/proc/self/fd/{fd}").readlink().name


def test_a_live_file_that_vanished_is_begun_again_and_refs_keep_the_rest(repository: Path) -> None:
    with ledger.open(repository / "research") as book, book.writer(TAG) as writer:
        writer.append("trial", trial(1))
        writer.flush()
        book.live.unlink()
        second = writer.append("trial", trial(2))
        assert second.seq == 1
        assert [record.body["trial"] for record in book.records(TAG)] == [1, 2]
        assert book.verify().ok


def test_a_symlink_is_not_followed_on_write(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("")
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "ledger.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ledger.LedgerError, match="cannot be opened for writing"):
        Ledger(ledger.locate(tmp_path / "book"), git="off").writer(TAG)


def test_lines_from_either_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_file, "_CHUNK", 5)
    path = tmp_path / "lines"
    for text in (b"", b"\n", b"one\n", b"one\ntwo two two\n\nthree\n", b"one\ntwo\ntorn and torn"):
        path.write_bytes(text)
        whole = text[: text.rfind(b"\n") + 1].split(b"\n")[:-1]
        found = list(scan(path))
        assert [line for _, _, line in found] == whole
        assert all(text[start:end] == line + b"\n" for start, end, line in found)
        assert list(last_lines(path)) == whole[::-1]
