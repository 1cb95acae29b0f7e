"""Push and fetch: clones become the union of both, and nothing unproven comes in."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from mjolnir import ledger
from mjolnir.ledger import git_run, remotes
from mjolnir.ledger.git_store import GitStore
from mjolnir.ledger.remotes import Fetched, Pushed, fetch, push
from mjolnir.ledger.tombstone import Collected, bury, collect, hidden, removal
from tests.ledger.samples import TAG, git, ledger_refs, trial


@pytest.fixture
def hub(tmp_path: Path, repository: Path) -> Path:
    """A bare repository, and `repository` and `clone` that have it for their origin."""
    folder = tmp_path / "hub.git"
    git(tmp_path, "clone", "-q", "--bare", str(repository), str(folder))
    git(repository, "remote", "add", "origin", str(folder))
    git(tmp_path, "clone", "-q", str(folder), str(tmp_path / "clone"))
    return folder


def fill(folder: Path, count: int, tag: str = TAG) -> str:
    with ledger.open(folder / "research") as book, book.writer(tag, {"driver": "580"}) as writer:
        for number in range(1, count + 1):
            writer.append("trial", trial(number))
        return writer.id


def lines(folder: Path) -> set[bytes]:
    with ledger.open(folder / "research") as book:
        assert book.verify().ok
        return {record.line for record in book.records()}


def test_two_clones_become_the_union(hub: Path, repository: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    fill(repository, 40)
    fill(clone, 3)
    fill(clone, 2, "other")
    with ledger.open(repository / "research") as here, ledger.open(clone / "research") as there:
        assert push(here) == Pushed(1, 0, 0)
        assert fetch(there) == Fetched(40, 1, 0, 0, ())
        assert push(there) == Pushed(2, 0, 1)
        assert fetch(here) == Fetched(5, 2, 1, 0, ())
        assert fetch(here) == Fetched(0, 0, 3, 0, ())
        assert push(here) == Pushed(0, 0, 3)
    assert lines(repository) == lines(clone)
    assert len(lines(clone)) == 45
    assert ledger_refs(repository) == ledger_refs(clone) == ledger_refs(hub)
    for folder in (repository, clone):
        assert git(folder, "fsck", "--strict", "--no-dangling").strip() == ""
    assert not (clone / ".git" / "FETCH_HEAD").exists()


def test_a_writer_that_went_on_is_taken_further_and_one_that_is_behind_is_left(
    hub: Path, repository: Path, tmp_path: Path
) -> None:
    with ledger.open(repository / "research") as here, ledger.open(tmp_path / "clone" / "research") as there:
        with here.writer(TAG) as writer:
            writer.append("trial", trial(1))
            push(here)
            fetch(there)
            writer.append("trial", trial(2))
            assert fetch(here) == Fetched(0, 0, 1, 0, ())
            assert push(here) == Pushed(0, 1, 0)
        assert fetch(there) == Fetched(1, 1, 0, 0, ())
        assert len(there.records()) == 2
        (ref,) = ledger_refs(repository)
        git(repository, "update-ref", ref, f"{ref}~1")
        here.live.unlink()
        assert len(here.records()) == 1
        assert fetch(here) == Fetched(1, 1, 0, 0, ())


def test_a_relative_remote_is_taken_from_where_git_takes_it(hub: Path, repository: Path, tmp_path: Path) -> None:
    git(repository, "remote", "set-url", "origin", "../hub.git")
    fill(repository, 2)
    with ledger.open(repository / "research") as here:
        assert push(here) == Pushed(1, 0, 0)
        assert fetch(here, "../hub.git") == Fetched(0, 0, 1, 0, ())
    beside = tmp_path / "trees" / "beside"
    git(repository, "worktree", "add", "-q", str(beside), "-b", "beside")
    git(repository, "remote", "set-url", "origin", "../../hub.git")
    with ledger.open(beside / "research") as there:
        assert fetch(there) == Fetched(0, 0, 1, 0, ())
    git(hub, "remote", "add", "mirror", "../checkout")
    with ledger.open(hub / "research") as bare:
        assert fetch(bare, "mirror") == Fetched(0, 0, 1, 0, ())


def test_a_remote_that_cannot_be_reached_is_told_in_the_words_of_git(hub: Path, repository: Path) -> None:
    git(repository, "remote", "set-url", "origin", "../gone.git")
    with ledger.open(repository / "research") as here, pytest.raises(ledger.LedgerError) as caught:
        fetch(here)
    assert "the remote origin cannot be reached: git fetch in " in str(caught.value)
    assert "'../gone.git' does not appear to be a git repository" in str(caught.value)
    assert "neither" not in str(caught.value)


def test_what_is_not_whole_is_named_and_left_out(hub: Path, repository: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    good = fill(clone, 2, "good")
    bad = fill(clone, 2, "bad")
    with ledger.open(clone / "research") as there:
        push(there)
    ref = f"refs/mjolnir/ledger/bad/{bad}"
    tree = git(clone, "rev-parse", f"{ref}^{{tree}}").strip()
    who = ("-c", "user.name=somebody", "-c", "user.email=somebody@localhost")
    forged = git(clone, *who, "commit-tree", tree, "-p", f"{ref}~1", "-m", "trial 2 keep 0.1 forged").strip()
    git(clone, "push", "-q", "--force", "origin", f"{forged}:{ref}", "HEAD:refs/mjolnir/ledger/user/abcdefghij")
    git(clone, "push", "-q", "origin", f"refs/mjolnir/ledger/good/{good}:refs/mjolnir/ledger/good/klmnopqrst")
    before = ledger_refs(repository)
    with ledger.open(repository / "research") as here:
        done = fetch(here)
        assert (done.records, done.writers) == (2, 1)
        assert [problem.where for problem in done.problems] == [
            ref, "refs/mjolnir/ledger/good/klmnopqrst", "refs/mjolnir/ledger/user/abcdefghij",
        ]  # fmt: skip
        words = [problem.what for problem in done.problems]
        assert "is not the one that its record makes" in words[0]
        assert words[1] == f"holds the records of refs/mjolnir/ledger/good/{good}"
        assert "holds no record.json" in words[2]
        assert {record.tag for record in here.records()} == {"good"}
        assert here.verify().ok
    assert set(ledger_refs(repository)) - set(before) == {f"refs/mjolnir/ledger/good/{good}"}


def test_a_writer_that_was_altered_there_is_not_taken(hub: Path, repository: Path, tmp_path: Path) -> None:
    name = fill(repository, 2)
    (ref,) = ledger_refs(repository)
    source = tmp_path / "altered.jsonl"
    text = (repository / "research" / "ledger.jsonl").read_text().replace('"driver":"580"', '"driver":"999"')
    source.write_text(text.splitlines()[0] + "\n")
    with ledger.open(tmp_path / "clone" / "research") as there:
        there.import_file(source)
        push(there)
    with ledger.open(repository / "research") as here:
        (problem,) = fetch(here).problems
        assert problem == ledger.Problem(ref, "record 0 is here with other content: one of them was altered")
        with pytest.raises(ledger.LedgerError, match=r"refused some ledger refs.*mjolnir ledger fetch origin"):
            push(here)
        assert here.verify().ok
    assert name in ref


def test_a_fetch_does_not_bring_back_what_was_removed(hub: Path, repository: Path) -> None:
    fill(repository, 2)
    with ledger.open(repository / "research") as here:
        push(here)
        bury(here, TAG, "")
        collect(here)
        assert fetch(here) == Fetched(0, 0, 0, 1, ())
        assert [record.kind for record in here.records()] == ["tombstone"]


def test_what_another_host_records_of_a_removed_tag_stays_there_and_whole(
    hub: Path, repository: Path, tmp_path: Path
) -> None:
    clone = tmp_path / "clone"
    gone = fill(repository, 3)
    with ledger.open(repository / "research") as here, ledger.open(clone / "research") as there:
        push(here)
        fetch(there)
        bury(here, TAG, "a wrong workload")
        collect(here)
        later = fill(clone, 2)
        push(there)
        assert fetch(here) == Fetched(0, 0, 0, 2, (), 2)
        assert hidden(here) == {TAG}
        push(here)
        assert fetch(there) == Fetched(1, 1, 2, 0, ())
        there_too = removal(there, TAG)
        assert there_too is not None
        assert there_too.later == 2
        assert collect(there) == Collected({}, 0, {TAG: 2})
        assert {record.writer for record in there.records(kind="trial")} == {gone, later}
        # Whoever wants it gone there too says so there, and both hear of it.
        bury(there, TAG, "those too")
        assert collect(there).records == {TAG: 5}
        push(there)
        assert fetch(here) == Fetched(1, 1, 1, 2, (), 2)
        for book in (here, there):
            assert [record.kind for record in book.records()] == ["tombstone", "tombstone"]
            assert (fetch(book).records, fetch(book).later) == (0, 0)
            assert book.verify().ok


def test_a_writer_that_went_on_after_its_removal_does_not_block_a_push(
    hub: Path, repository: Path, tmp_path: Path
) -> None:
    with ledger.open(repository / "research") as here, ledger.open(tmp_path / "clone" / "research") as there:
        with here.writer(TAG) as writer:
            writer.append("trial", trial(1))
            push(here)
            fetch(there)
            bury(there, TAG, "")
            writer.append("trial", trial(2))
            push(here)
        assert fetch(there).records == 1
        assert push(there) == Pushed(1, 0, 1)
        gone = removal(there, TAG)
        assert gone is not None
        assert gone.later == 1


def test_what_a_killed_fetch_left_is_cleared(hub: Path, repository: Path) -> None:
    fill(repository, 1)
    git(repository, "update-ref", f"{remotes.INCOMING}/{TAG}/abcdefghij", "HEAD")
    with ledger.open(repository / "research") as here:
        assert fetch(here) == Fetched(0, 0, 0, 0, ())
    assert not [ref for ref in ledger_refs(repository) if ref.startswith(remotes.INCOMING)]


def test_settings_and_hooks_of_the_user_do_not_matter(hub: Path, repository: Path, tmp_path: Path) -> None:
    hook = repository / ".git" / "hooks" / "pre-push"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    git(repository, "tag", "-a", "-m", "mine", "v1", "HEAD")
    for setting, value in {
        "push.gpgSign": "true", "push.followTags": "true", "remote.origin.mirror": "false", "fetch.prune": "true",
        "remote.origin.tagOpt": "--tags", "fetch.recurseSubmodules": "true", "transfer.hideRefs": "refs/mjolnir",
    }.items():  # fmt: skip
        git(repository, "config", setting, value)
    fill(repository, 2)
    with ledger.open(repository / "research") as here:
        assert push(here) == Pushed(1, 0, 0)
        assert fetch(here) == Fetched(0, 0, 1, 0, ())
    assert git(hub, "tag").strip() == ""
    assert list(ledger_refs(hub)) == list(ledger_refs(repository))


def test_what_cannot_be_reached_is_said_without_passwords(repository: Path, tmp_path: Path) -> None:
    fill(repository, 1)
    with ledger.open(repository / "research") as book:
        with pytest.raises(ledger.LedgerError, match="'--upload-pack=touch x' is no remote"):
            fetch(book, "--upload-pack=touch x")
        with pytest.raises(ledger.LedgerError, match=r"'nowhere' is neither a remote .*\(it has no remotes\)"):
            push(book, "nowhere")
        with pytest.raises(ledger.LedgerError) as caught:
            fetch(book, "http://me:hunter2@127.0.0.1:9/x.git")
        assert "127.0.0.1:9" in str(caught.value)
        assert "hunter2" not in str(caught.value)
        with pytest.raises(ledger.LedgerError, match=r"ext.* not allowed"):
            fetch(book, f"ext::touch {tmp_path}/run")
    assert not (tmp_path / "run").exists()
    with ledger.open(tmp_path / "outside") as book, pytest.raises(ledger.LedgerError, match="no git repository; carry"):
        push(book)


def test_what_git_says_is_one_line_without_a_password() -> None:
    said = b"fatal: unable to access 'https://me:hunter2@example.org/x.git/':\n  Could not resolve host\n\nhint: so\n"
    assert git_run._said(said) == (
        "fatal: unable to access 'https://example.org/x.git/':; Could not resolve host; hint: so"
    )


def test_the_help_keeps_ledger_refs_out_of_sight(repository: Path) -> None:
    fill(repository, 3)
    assert "trial 3" in git(repository, "log", "--all", "--format=%s")
    assert "trial" not in git(repository, "log", "--exclude=refs/mjolnir/*", "--all", "--format=%s")
    # What git shows by itself since 2.39 leaves them out; before, and with this setting, it does not.
    git(repository, "config", "log.initialDecorationSet", "all")
    shown = ("log", "--all", "--format=%D", "--decorate=full")
    assert "refs/mjolnir" in git(repository, *shown)
    git(repository, "config", "--add", "log.excludeDecoration", "refs/mjolnir/")
    assert "refs/mjolnir" not in git(repository, *shown)


def test_a_shallow_remote_is_named(hub: Path, repository: Path, tmp_path: Path) -> None:
    fill(repository, 3)
    with ledger.open(repository / "research") as here:
        push(here)
    shallow = tmp_path / "shallow"
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{hub}", str(shallow)], check=True)
    (ref,) = ledger_refs(hub)
    git(shallow, "fetch", "-q", "--depth=1", "origin", f"{ref}:{ref}")
    with ledger.open(tmp_path / "clone" / "research") as there:
        done = fetch(there, f"file://{shallow}")
        assert done.records == 0
        assert all("records are missing" in problem.what for problem in done.problems)
    assert GitStore.discover(shallow).heads() == ledger_refs(hub)


def test_refs_that_were_fetched_in_part_are_made_whole_as_verify_says(
    hub: Path, repository: Path, tmp_path: Path
) -> None:
    fill(repository, 5)
    with ledger.open(repository / "research") as here:
        push(here)
    (ref,) = ledger_refs(hub)
    shallow = tmp_path / "clone"
    git(shallow, "fetch", "-q", "--depth=2", f"file://{hub}", f"{ref}:{ref}")
    with ledger.open(shallow / "research") as there:
        (problem, *_) = there.verify().problems
    assert "records are missing" in problem.what
    command = problem.remedy.split("`")[1].replace("REMOTE", f"file://{hub}")
    git(shallow, *shlex.split(command)[1:])
    with ledger.open(shallow / "research") as there:
        assert there.verify().ok
        assert len(there.records()) == 5
