"""A repository with things in it that must stay as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ledger.samples import git


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One commit, a staged change, an unstaged change, an untracked file and a stash."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    git(folder, "config", "user.name", "Someone")
    git(folder, "config", "user.email", "someone@example.org")
    (folder / ".gitignore").write_text("/research/\n")
    (folder / "code.py").write_text("one = 1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    (folder / "code.py").write_text("one = 11\n")
    git(folder, "stash", "-q")
    (folder / "code.py").write_text("one = 2\n")
    git(folder, "add", "code.py")
    (folder / "code.py").write_text("one = 3\n")
    (folder / "notes.txt").write_text("mine\n")
    return folder
