"""Rows become commits of one path, and nothing else of the user's changes."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from mjolnir.research.answer import NotWrittenFailure
from mjolnir.research.checkout import TABLE_PATH, Checkout
from mjolnir.research.promote import commit_rows
from tests.research.conftest import git, make_row


def opened(root: Path) -> Checkout:
    checkout = Checkout.find(root)
    assert checkout is not None
    return checkout


def test_one_commit_a_row_touches_the_table_alone(checkout):
    start = git(checkout, "rev-parse", "HEAD")
    commits = commit_rows(opened(checkout), [make_row(8), make_row(32, kv_stages=5)])
    assert git(checkout, "rev-list", "--reverse", f"{start}..HEAD").split() == commits
    for commit in commits:
        assert git(checkout, "diff-tree", "--no-commit-id", "--name-only", "-r", commit) == TABLE_PATH
    assert git(checkout, "log", "-1", "--format=%an") == "Someone"
    assert git(checkout, "symbolic-ref", "HEAD") == "refs/heads/main"
    rows = json.loads((checkout / TABLE_PATH).read_text())["rows"]
    assert [row["key"]["batch"] for row in rows] == [8, 32]
    assert git(checkout, "status", "--porcelain") == ""
    assert git(checkout, "fsck", "--strict") == ""
    subject = git(checkout, "log", "-1", "--format=%s", commits[0])
    assert subject == "defaults: NVIDIA H200 32/8xd128 batch 8: kv_stages=4"
    assert "Ratio-To-Default: 0.873 [0.861, 0.885]" in git(checkout, "log", "-1", "--format=%b", commits[0])


def test_a_row_in_force_is_not_committed_again(checkout):
    assert len(commit_rows(opened(checkout), [make_row(8)])) == 1
    assert commit_rows(opened(checkout), [make_row(8)]) == []


def test_index_work_tree_and_stash_stay(checkout):
    (checkout / "README.md").write_text("stashed\n")
    git(checkout, "stash")
    (checkout / "README.md").write_text("staged\n")
    git(checkout, "add", "README.md")
    (checkout / "README.md").write_text("unstaged\n")
    (checkout / "new.txt").write_text("untracked\n")
    (checkout / "intended.txt").write_text("intended\n")
    git(checkout, "add", "--intent-to-add", "intended.txt")
    before = {
        name: git(checkout, *name.split()) for name in ("status --porcelain", "diff", "diff --cached", "stash list")
    }
    commit_rows(opened(checkout), [make_row(8)])
    assert {name: git(checkout, *name.split()) for name in before} == before
    assert (checkout / "README.md").read_text() == "unstaged\n"


def test_hooks_signing_and_surrounding_variables_do_not_matter(checkout, tmp_path, monkeypatch):
    marker = tmp_path / "hook-ran"
    for name in (
        "pre-commit",
        "commit-msg",
        "post-commit",
        "reference-transaction",
        "post-checkout",
        "post-index-change",
    ):
        hook = checkout / ".git/hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {marker}\nexit 1\n")
        hook.chmod(hook.stat().st_mode | stat.S_IXUSR)
    git(checkout, "config", "commit.gpgsign", "true")
    git(checkout, "config", "gpg.program", "/bin/false")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "no-index"))
    commits = commit_rows(opened(checkout), [make_row(8)])
    monkeypatch.delenv("GIT_DIR")
    monkeypatch.delenv("GIT_INDEX_FILE")
    assert git(checkout, "rev-parse", "HEAD") == commits[0]
    assert not marker.exists()
    assert git(checkout, "status", "--porcelain") == ""


def test_a_user_without_a_name_can_promote(checkout):
    git(checkout, "config", "--unset", "user.name")
    git(checkout, "config", "--unset", "user.email")
    git(checkout, "config", "user.useConfigOnly", "true")
    commit_rows(opened(checkout), [make_row(8)])
    assert git(checkout, "log", "-1", "--format=%an <%ae>") == "mjolnir <defaults@mjolnir.invalid>"


def test_line_endings_of_the_work_tree_follow_the_user(checkout):
    git(checkout, "config", "core.autocrlf", "true")
    git(checkout, "rm", "--quiet", "--cached", TABLE_PATH)
    git(checkout, "reset", "--quiet", "--hard")
    commit_rows(opened(checkout), [make_row(8)])
    assert git(checkout, "status", "--porcelain") == ""
    assert b"\r" not in opened(checkout).read(TABLE_PATH)
    assert b"\r\n" in (checkout / TABLE_PATH).read_bytes()


def detach(root: Path) -> None:
    git(root, "checkout", "--quiet", "--detach")


def begin_merge(root: Path) -> None:
    git(root, "checkout", "--quiet", "-b", "other")
    git(root, "commit", "--quiet", "--allow-empty", "-m", "other")
    git(root, "checkout", "--quiet", "main")
    git(root, "merge", "--quiet", "--no-ff", "--no-commit", "other")


def begin_rebase(root: Path) -> None:
    (root / ".git/rebase-merge").mkdir()


def change_in_work_tree(root: Path) -> None:
    (root / TABLE_PATH).write_text("{}")


def change_in_index(root: Path) -> None:
    old = (root / TABLE_PATH).read_text()
    (root / TABLE_PATH).write_text("{}")
    git(root, "add", TABLE_PATH)
    (root / TABLE_PATH).write_text(old)


def look_away(root: Path) -> None:
    git(root, "update-index", "--assume-unchanged", TABLE_PATH)
    (root / TABLE_PATH).write_text("{}")


def change_kernel(root: Path) -> None:
    (root / "kernel/plan.py").write_text("# changed\n")
    git(root, "commit", "--quiet", "-am", "kernel")


def lock_index(root: Path) -> None:
    (root / ".git/index.lock").touch()


def link_table(root: Path) -> None:
    (root / "elsewhere.json").write_text((root / TABLE_PATH).read_text())
    (root / TABLE_PATH).unlink()
    (root / TABLE_PATH).symlink_to("../elsewhere.json")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "link")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (detach, "detached"),
        (begin_merge, "a merge is under way"),
        (begin_rebase, "a rebase is under way"),
        (change_in_work_tree, "changes of yours"),
        (change_in_index, "changes of yours"),
        (look_away, "look away"),
        (change_kernel, "HEAD has"),
        (lock_index, "another git command"),
        (link_table, "symbolic link"),
    ],
)
def test_refusals_change_nothing(checkout, spoil, words):
    spoil(checkout)
    head, table = git(checkout, "rev-parse", "HEAD"), (checkout / TABLE_PATH).read_bytes()
    with pytest.raises(NotWrittenFailure, match=words):
        commit_rows(opened(checkout), [make_row(8)])
    assert git(checkout, "rev-parse", "HEAD") == head
    assert (checkout / TABLE_PATH).read_bytes() == table


def test_a_branch_that_moved_meanwhile_is_left_alone(checkout, monkeypatch):
    place = opened(checkout)
    write = Checkout._write

    def and_somebody_commits(self, *arguments):
        git(checkout, "commit", "--quiet", "--allow-empty", "-m", "meanwhile")
        return write(self, *arguments)

    monkeypatch.setattr(Checkout, "_write", and_somebody_commits)
    with pytest.raises(NotWrittenFailure, match="could not be moved"):
        commit_rows(place, [make_row(8)])
    assert git(checkout, "log", "-1", "--format=%s") == "meanwhile"
    assert git(checkout, "status", "--porcelain") == ""


def test_a_worktree_of_the_checkout_has_its_own_branch(checkout, tmp_path):
    other = tmp_path / "worktree"
    git(checkout, "worktree", "add", "--quiet", "-b", "side", str(other))
    commits = commit_rows(opened(other), [make_row(8)])
    assert git(checkout, "rev-parse", "side") == commits[0]
    assert git(checkout, "rev-parse", "main") != commits[0]
    assert git(other, "status", "--porcelain") == git(checkout, "status", "--porcelain") == ""


def test_other_repositories_are_no_checkout(tmp_path):
    git(tmp_path, "init", "--quiet")
    assert Checkout.find(tmp_path) is None
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "other"\n')
    assert Checkout.find(tmp_path) is None
