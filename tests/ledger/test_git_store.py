"""The git side: one commit a record, ids that follow from the records, and nothing of the user's touched."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import subprocess
import time
from pathlib import Path

import pytest

from mjolnir import ledger
from mjolnir.ledger.commits import subject
from mjolnir.ledger.git_store import MOST_PACKS, GitError, GitStore
from tests.ledger.samples import TAG, git, ledger_refs, trial

FORK = multiprocessing.get_context("fork")


def fingerprint(folder: Path) -> dict[str, str]:
    """All that is the user's: branch, index, work tree, stash, configuration, other refs."""
    found = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not {"research", "objects"} & set(path.relative_to(folder).parts)
    }
    for name in [name for name in found if name.startswith((".git/refs/mjolnir", ".git/mjolnir"))]:
        del found[name]
    return found


def fill(folder: Path, count: int = 3, tag: str = TAG) -> tuple[ledger.Record, ...]:
    with ledger.open(folder / "research") as book, book.writer(tag, {"driver": "580", "name": "Müller"}) as writer:
        return tuple(writer.append("trial", trial(number)) for number in range(1, count + 1))


def test_one_commit_a_record(repository: Path) -> None:
    records = fill(repository)
    (ref,) = ledger_refs(repository)
    assert ref == f"refs/mjolnir/ledger/{TAG}/{records[0].writer}"
    commits = git(repository, "rev-list", "--reverse", ref).split()
    with ledger.open(repository / "research") as book:
        assert [book.commit(record) for record in records] == commits
    for record, commit in zip(records, commits, strict=True):
        assert git(repository, "show", f"{commit}:record.json").encode() == record.line
        assert git(repository, "show", f"{commit}:environment.json") == '{"driver":"580","name":"Müller"}'
        facts = git(repository, "show", "-s", "--format=%s|%an|%ae|%cn|%ce|%ai|%ci", commit).strip().split("|")
        moment = record.time[:19].replace("T", " ") + " +0000"
        person = ["mjolnir", "ledger@mjolnir.invalid"]
        assert facts == [subject(record), *person, *person, moment, moment]
    assert git(repository, "fsck", "--strict", "--no-dangling").strip() == ""


def test_what_is_the_users_stays(repository: Path) -> None:
    before = fingerprint(repository)
    status = git(repository, "status", "--porcelain")
    assert ".git/index" in before
    fill(repository, 150)
    assert git(repository, "status", "--porcelain") == status
    assert fingerprint(repository) == before
    assert git(repository, "stash", "list").count("\n") == 1
    assert git(repository, "diff", "--cached", "--stat", "--", "code.py") != ""


HOOKS = ("pre-commit", "commit-msg", "post-commit", "reference-transaction", "post-rewrite", "pre-auto-gc", "update")


def test_the_users_settings_do_not_matter(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trap = tmp_path / "trap"
    trap.mkdir()
    for hook in HOOKS:
        path = repository / ".git" / "hooks" / hook
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\ntouch {tmp_path}/hook-ran\nexit 1\n")
        path.chmod(0o755)
    for setting, value in {
        "commit.gpgsign": "true",
        "gpg.program": "/bin/false",
        "core.autocrlf": "true",
        "core.logAllRefUpdates": "always",
        "fastimport.unpackLimit": "100000",
        "gc.auto": "1",
        "i18n.commitEncoding": "latin1",
        "user.useConfigOnly": "true",
    }.items():
        git(repository, "config", setting, value)
    git(repository, "config", "--unset", "user.name")
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_INDEX_FILE"):
        monkeypatch.setenv(name, str(trap / name))
    for name, value in {
        "GIT_NAMESPACE": "elsewhere",
        "GIT_QUARANTINE_PATH": str(trap),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.bare",
        "GIT_CONFIG_VALUE_0": "true",
        "GIT_AUTHOR_DATE": "nonsense",
        "GIT_COMMITTER_NAME": "Nobody",
        "GIT_DEFAULT_HASH": "sha256",
        "LC_ALL": "de_DE.UTF-8",
    }.items():
        monkeypatch.setenv(name, value)
    records = fill(repository, 40)
    (ref,) = ledger_refs(repository)
    assert len(git(repository, "rev-list", ref).split()) == len(records)
    assert list(trap.iterdir()) == []
    assert not (tmp_path / "hook-ran").exists()
    assert not (repository / ".git" / "logs" / ref).exists()
    assert git(repository, "fsck", "--strict", "--no-dangling").strip() == ""
    with ledger.open(repository / "research") as book:
        assert book.verify().ok


def test_importing_elsewhere_makes_the_same_commits_and_twice_changes_nothing(repository: Path, tmp_path: Path) -> None:
    fill(repository, 40)
    fill(repository, 2, "other")
    other = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repository), str(other))
    source = repository / "research" / "ledger.jsonl"
    with ledger.open(other / "research") as book:
        assert book.import_file(source) == ledger.Imported(added=42, known=0, torn=False)
        refs = ledger_refs(other)
        content = book.live.read_bytes(), book.tsv.read_bytes()
        assert book.import_file(source) == ledger.Imported(added=0, known=42, torn=False)
        assert (book.live.read_bytes(), book.tsv.read_bytes()) == content
        assert book.verify().ok
    assert refs == ledger_refs(repository) == ledger_refs(other)
    assert git(other, "fsck", "--strict", "--no-dangling").strip() == ""
    assert (repository / "research" / "ledger.tsv").read_text() == (other / "research" / "ledger.tsv").read_text()


def test_a_flush_comes_within_a_second(repository: Path) -> None:
    with ledger.open(repository / "research") as book, book.writer(TAG) as writer:
        writer.append("trial", trial(1))
        end = time.monotonic() + 1.0
        while not ledger_refs(repository) and time.monotonic() < end:
            time.sleep(0.02)
        assert len(ledger_refs(repository)) == 1
        for number in range(2, 70):
            writer.append("trial", trial(number))
        writer.flush()
        (ref,) = ledger_refs(repository)
        assert len(git(repository, "rev-list", ref).split()) == 69


def die_before_the_flush(folder: Path) -> None:
    writer = ledger.open(folder).writer(TAG, {"driver": "580"})
    for number in range(1, 6):
        writer.append("trial", trial(number))
    os.kill(os.getpid(), 9)


def test_whoever_opens_next_flushes_what_a_dead_writer_left(repository: Path) -> None:
    process = FORK.Process(target=die_before_the_flush, args=(repository / "research",))
    process.start()
    process.join()
    assert ledger_refs(repository) == {}
    with ledger.open(repository / "research") as book:
        assert book.tags()[0].trials == 5
        (ref,) = ledger_refs(repository)
        assert len(git(repository, "rev-list", ref).split()) == 5
        assert book.flush() == 0
        git(repository, "update-ref", ref, f"{ref}~3")
        assert book.flush() == 3
        git(repository, "update-ref", "-d", ref)
        assert book.flush() == 5
        assert book.verify().ok


def test_records_in_refs_alone_are_part_of_the_ledger(repository: Path) -> None:
    records = fill(repository)
    for path in (repository / "research").iterdir():
        path.unlink()
    with ledger.open(repository / "research") as book:
        assert book.records(TAG) == records
        with book.writer(TAG) as writer:
            assert writer.append("end", {"reason": "trials"}).lamport == 4
        assert len(book.records(TAG)) == 4
        assert book.verify().ok


def packs(folder: Path) -> set[str]:
    return {path.name for path in (folder / ".git" / "objects" / "pack").glob("*.pack")}


def test_own_packs_become_one_and_the_users_stay(repository: Path) -> None:
    git(repository, "repack", "-q", "-d")
    loose, users = git(repository, "count-objects"), packs(repository)
    fill(repository, 40)
    with ledger.open(repository / "research") as book, book.writer(TAG) as writer:
        for number in range(MOST_PACKS + 3):
            writer.append("trial", trial(number + 1))
            writer.flush()
            assert len(packs(repository) - users) <= MOST_PACKS + 1
    assert users < packs(repository)
    assert len(packs(repository) - users) == 1
    assert git(repository, "count-objects") == loose
    assert git(repository, "fsck", "--strict", "--no-dangling").strip() == ""
    git(repository, "gc", "-q", "--prune=now")
    fill(repository, 2)
    with ledger.open(repository / "research") as book:
        assert book.verify() == ledger.Verification(40 + MOST_PACKS + 3 + 2, 3, 1, ())


@pytest.mark.parametrize("kind", ["sha256", "bare", "worktree"])
def test_other_kinds_of_repository(repository: Path, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / kind
    if kind == "worktree":
        git(repository, "worktree", "add", "-q", str(folder), "-b", "side")
    else:
        flag = "--bare" if kind == "bare" else "--object-format=sha256"
        subprocess.run(["git", "init", "-q", flag, str(folder)], check=True)
    records = fill(folder, 4)
    (head,) = ledger_refs(folder).values()
    with ledger.open(folder / "research") as book:
        assert book.commit(records[-1]) == head
        assert len(head) == (64 if kind == "sha256" else 40)
        assert book.verify().ok
        assert book.reindex() == 4


def test_without_git_the_live_file_is_the_ledger(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "/nonexistent")
        records = fill(repository)
        with ledger.open(repository / "research") as book:
            assert book.git_note == "there is no git binary on the PATH"
            assert book.repository is None
            assert book.records() == records
            early = [book.commit(record) for record in records]
            assert book.verify().ok
    assert ledger_refs(repository) == {}
    with ledger.open(repository / "research") as book:
        assert book.flush() == 3
        assert book.records() == records
        assert ledger_refs(repository) == {f"refs/mjolnir/ledger/{TAG}/{records[0].writer}": early[-1]}


def test_without_a_repository_there_are_no_refs(tmp_path: Path) -> None:
    records = fill(tmp_path)
    with ledger.open(tmp_path / "research") as book:
        assert book.git_note.endswith("research lies in no git repository")
        assert book.records() == records
    with ledger.open(tmp_path / "research", git="off") as book:
        assert book.git_note == "git is switched off"


def test_a_failing_git_costs_no_record(repository: Path, caplog: pytest.LogCaptureFixture) -> None:
    with ledger.open(repository / "research") as book, book.writer(TAG) as writer:
        blocked = repository / ".git" / "refs" / "mjolnir"
        blocked.write_text("in the way")
        writer.append("trial", trial(1))
        with pytest.raises(GitError, match="fast-import"):
            writer.flush()
    assert "safe in the live file" in caplog.text
    assert list((repository / ".git").glob("fast_import_crash_*")) == []
    blocked.unlink()
    with ledger.open(repository / "research") as book:
        assert book.flush() == 1
        assert len(book.records()) == len(ledger_refs(repository)) == 1


def test_a_lock_that_a_killed_git_left_is_cleared_when_it_is_old(repository: Path) -> None:
    with ledger.open(repository / "research") as book, book.writer(TAG) as writer:
        writer.append("trial", trial(1))
        writer.flush()
        (ref,) = ledger_refs(repository)
        lock = repository / ".git" / f"{ref}.lock"
        lock.touch()
        writer.append("trial", trial(2))
        with pytest.raises(GitError, match="lock"):
            writer.flush()
        os.utime(lock, (time.time() - 60, time.time() - 60))
        writer.flush()
        assert len(git(repository, "rev-list", ref).split()) == 2


@pytest.mark.parametrize("left", ["keep", "keep and pack", "keep, pack and index"])
def test_what_a_git_killed_while_packing_left_is_in_nobodys_way(repository: Path, left: str) -> None:
    folder = repository / ".git" / "objects" / "pack"
    fill(repository, 3)
    (pack,) = folder.glob("*.pack")
    users = folder / f"pack-{'0' * 40}.keep"
    users.write_text("mine\n")
    for ref in ledger_refs(repository):
        git(repository, "update-ref", "-d", ref)
    pack.with_suffix(".keep").write_text("fast-import")
    for suffix in {"keep": (".idx", ".pack"), "keep and pack": (".idx",)}.get(left, ()):
        pack.with_suffix(suffix).unlink()
    with ledger.open(repository / "research") as book:
        assert book.flush() == 3
        assert book.verify() == ledger.Verification(3, 1, 1, ())
    # Where pack and index were whole nothing had to be written, and the mark harms nobody.
    kept = {users.name} if left != "keep, pack and index" else {users.name, pack.with_suffix(".keep").name}
    assert {path.name for path in folder.glob("*.keep")} == kept
    users.unlink()
    assert git(repository, "fsck", "--strict", "--no-dangling").strip() == ""


def test_a_ref_that_was_moved_elsewhere_is_left_alone(repository: Path) -> None:
    with ledger.open(repository / "research") as book, book.writer(TAG) as writer:
        writer.append("trial", trial(1))
        writer.flush()
        (ref,) = ledger_refs(repository)
        git(repository, "update-ref", ref, "HEAD")
        writer.append("trial", trial(2))
        with pytest.raises(GitError, match="did not put it"):
            writer.flush()
        assert ledger_refs(repository)[ref] == git(repository, "rev-parse", "HEAD").strip()
        assert [record.body["trial"] for record in book.records(TAG)] == [1, 2]
        assert not book.verify().ok


def test_the_lock_is_said_to_be_held(repository: Path) -> None:
    store = GitStore.discover(repository)
    with store.locked(1.0), pytest.raises(GitError, match="another process"), store.locked(0.0):
        pass
