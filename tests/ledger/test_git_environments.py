"""Repositories of every kind, and a user who does with them what users do."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from mjolnir import ledger
from tests.ledger.samples import TAG, git, ledger_refs, trial

FORK = multiprocessing.get_context("fork")


def fill(folder: Path, count: int = 3) -> list[ledger.Record]:
    with ledger.open(folder / "research") as book, book.writer(TAG, {"driver": "580"}) as writer:
        return [writer.append("trial", trial(number)) for number in range(1, count + 1)]


def check(folder: Path, records: list[ledger.Record]) -> None:
    with ledger.open(folder / "research") as book:
        assert book.git_note == ""
        assert list(book.records()) == records
        assert book.verify() == ledger.Verification(len(records), 1, 1, ())
    assert sum(len(git(folder, "rev-list", ref).split()) for ref in ledger_refs(folder)) == len(records)


def test_a_submodule_has_its_own_refs(repository: Path, tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    subprocess.run(["git", "init", "-q", str(outer)], check=True)
    git(outer, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(repository), "inner")
    records = fill(outer / "inner")
    check(outer / "inner", records)
    assert ledger_refs(outer) == {}
    with ledger.open(outer / "inner" / "research") as book:
        assert book.repository == (outer / ".git" / "modules" / "inner").resolve()


def test_a_shallow_clone(repository: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shallow"
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{repository}", str(folder))
    assert (folder / ".git" / "shallow").exists()
    check(folder, fill(folder))


def test_a_partial_clone_asks_nobody(repository: Path, tmp_path: Path) -> None:
    git(repository, "config", "uploadpack.allowFilter", "true")
    folder = tmp_path / "partial"
    git(tmp_path, "clone", "-q", "--filter=blob:none", "--no-checkout", f"file://{repository}", str(folder))
    git(folder, "remote", "set-url", "origin", "file:///nowhere")
    check(folder, fill(folder))


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="only root can give a repository away")
def test_a_repository_of_somebody_else_is_left_alone_and_said_so(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("SUDO_UID", raising=False)
    for path in (repository, repository / ".git"):
        os.chown(path, 54321, 54321)
    records = fill(repository)
    with ledger.open(repository / "research") as book:
        assert "dubious ownership" in book.git_note
        assert f"git config --global --add safe.directory {repository}" in book.git_note
        assert "\n" not in book.git_note
        assert list(book.records()) == records
        assert book.verify().ok
    (home / ".gitconfig").write_text(f"[safe]\n\tdirectory = {repository}\n")
    with ledger.open(repository / "research") as book:
        assert (book.git_note, book.flush()) == ("", 3)
    check(repository, records)


def test_a_repository_that_cannot_be_written_is_read(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = fill(repository)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != ".git" and access(path, mode))
    (repository / "research" / "ledger.jsonl").unlink()
    with ledger.open(repository / "research") as book:
        assert book.git_note.endswith(".git cannot be written")
        assert list(book.records()) == records


def keep_writing(folder: Path, channel: Connection) -> None:
    with ledger.open(folder / "research") as book, book.writer(TAG, {"driver": "580"}) as writer:
        number = 0
        while not channel.poll():
            number += 1
            writer.append("trial", trial(number))
            if number % 10 == 0:
                writer.flush()
    channel.send(number)


def test_gc_and_prune_during_a_run(repository: Path) -> None:
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=keep_writing, args=(repository, theirs))
    process.start()
    theirs.close()
    live, runs = repository / "research" / "ledger.jsonl", 0
    while runs < 6 or live.read_bytes().count(b"\n") < 60:
        assert process.is_alive()
        git(repository, "gc", "-q", "--prune=now")
        runs += live.exists()
    ours.send("enough")
    count = ours.recv()
    process.join()
    assert process.exitcode == 0
    git(repository, "gc", "-q", "--prune=now")
    with ledger.open(repository / "research") as book:
        assert book.verify() == ledger.Verification(count, 1, 1, ())
    assert git(repository, "fsck", "--strict", "--no-dangling").strip() == ""


def test_automatic_gc_is_not_tripped_by_records(repository: Path) -> None:
    git(repository, "config", "gc.auto", "20")
    git(repository, "config", "gc.autoPackLimit", "3")
    fill(repository, 100)
    fill(repository, 100)
    counts = dict(line.split(": ") for line in git(repository, "count-objects", "-v").splitlines())
    assert int(counts["packs"]) <= 3
    assert int(counts["count"]) < 20
