"""Commits of one file to the branch of a Mjolnir checkout, past the user's index, hooks and signing.

The commits are built with an index of their own (`read-tree`, `update-index`, `write-tree`, `commit-tree`), the branch
moves by `update-ref` with its old value, and only then is the one path brought up to date in the user's index and work
tree.
"""

from __future__ import annotations

import os
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mjolnir.research.answer import Failure, NotWrittenFailure

if TYPE_CHECKING:
    from git import Git, Repo

DISTRIBUTION = "mjolnir-autoresearch"
TABLE_PATH = "backend/defaults.json"

UNFINISHED = {
    "MERGE_HEAD": "a merge",
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
}
"""What lies in the git folder while an operation is under way."""

FALLBACK_NAME = "mjolnir"
FALLBACK_EMAIL = "defaults@mjolnir.invalid"


@dataclass(frozen=True, slots=True)
class Change:
    """One commit to come: the bytes of the whole file after it, and its message."""

    data: bytes
    message: str


class Checkout:
    """A work tree whose pyproject names this distribution, and one file in it."""

    def __init__(self, repo: Repo, path: str = TABLE_PATH) -> None:
        self._repo = repo
        self._path = path
        self._git = repo.git
        # Explicit, so that GIT_DIR or GIT_INDEX_FILE of a surrounding hook do not lead elsewhere.
        self._git.update_environment(
            GIT_DIR=str(repo.git_dir),
            GIT_WORK_TREE=str(repo.working_tree_dir),
            GIT_INDEX_FILE=str(Path(repo.git_dir) / "index"),
            GIT_LITERAL_PATHSPECS="1",
            GIT_OPTIONAL_LOCKS="0",
            GIT_CONFIG_COUNT="1",
            GIT_CONFIG_KEY_0="core.hooksPath",
            GIT_CONFIG_VALUE_0=os.devnull,
        )

    @classmethod
    def find(cls, start: Path) -> Checkout | None:
        """The checkout that holds `start`, or None when that is no Mjolnir work tree or there is no git."""
        for folder in (start.resolve(), *start.resolve().parents):
            if (folder / ".git").exists():
                return cls._open(folder) if _names_mjolnir(folder / "pyproject.toml") else None
        return None

    @classmethod
    def _open(cls, folder: Path) -> Checkout | None:
        try:
            from git import Repo

            return cls(Repo(folder))
        except ImportError:  # GitPython raises it when there is no git binary
            return None

    @property
    def git(self) -> Git:
        """git commands past the user's environment and hooks."""
        return self._git

    @property
    def root(self) -> Path:
        """The top folder of the work tree."""
        return Path(str(self._repo.working_tree_dir))

    def read(self, path: str, revision: str = "HEAD") -> bytes:
        """The bytes of `path` in the tree of `revision`.

        Raises:
            Failure: there is no such revision, or it has no such file.
        """
        from git import GitCommandError

        try:
            raw = {"stdout_as_string": False, "strip_newline_in_stdout": False}
            data = self._git.cat_file("blob", f"{revision}:{path}", **raw)
        except GitCommandError as error:
            raise Failure(f"{revision} of {self.root} has no {path}") from error
        return bytes(data)

    def check(self) -> str:
        """The branch that commits would go to, as a full ref.

        Raises:
            NotWrittenFailure: nothing may be committed now; the message says why and what to do.
        """
        from git import GitCommandError

        try:
            branch = str(self._git.symbolic_ref("-q", "HEAD"))
        except GitCommandError:
            raise NotWrittenFailure("HEAD is detached: a row needs a branch; check one out, then try again") from None
        for name, what in UNFINISHED.items():
            if Path(self.root, self._git.rev_parse("--git-path", name)).exists():
                raise NotWrittenFailure(f"{what} is under way in {self.root}; finish or abort it, then try again")
        if Path(self.root, self._git.rev_parse("--git-path", "index.lock")).exists():
            raise NotWrittenFailure(f"another git command holds the index of {self.root}; wait for it, then try again")
        if self._git.status("--porcelain=v1", "--untracked-files=all", "--ignored", "--", self._path):
            raise NotWrittenFailure(f"{self._path} has changes of yours; commit or stash them, then try again")
        flag = str(self._git.ls_files("-v", "--", self._path))[:1]
        if flag not in ("", "H"):
            raise NotWrittenFailure(
                f"git was told to look away from {self._path} (flag {flag}); clear it, then try again"
            )
        self._check_place()
        return branch

    def _check_place(self) -> None:
        place = self.root / self._path
        if place.is_symlink() or not place.parent.resolve().is_relative_to(self.root.resolve()):
            raise NotWrittenFailure(f"{self._path} is a symbolic link; rows are written to a plain file only")

    def commit(self, changes: Sequence[Change]) -> list[str]:
        """Commit each change on top of the last; returns the commit ids.

        Raises:
            NotWrittenFailure: refused (see `check`), or the branch moved meanwhile. Nothing has changed then.
        """
        branch = self.check()
        old = str(self._git.rev_parse("HEAD"))
        commits: list[str] = []
        blob = ""
        with tempfile.TemporaryDirectory(prefix="mjolnir-") as folder:
            environment = {**self.identity(), "GIT_INDEX_FILE": str(Path(folder) / "index")}
            with self._git.custom_environment(**environment):
                self._git.read_tree(old)
                for change in changes:
                    blob, commit = self._write(change, commits[-1] if commits else old, Path(folder))
                    commits.append(commit)
        if commits:
            self._move(branch, old, commits[-1])
            self._bring_up_to_date(blob)
        return commits

    def _write(self, change: Change, parent: str, folder: Path) -> tuple[str, str]:
        text, message = folder / "text", folder / "message"
        text.write_bytes(change.data)
        message.write_bytes(change.message.encode())
        blob = str(self._git.hash_object("-w", "--no-filters", "--", str(text)))
        self._git.update_index("--add", "--cacheinfo", f"100644,{blob},{self._path}")
        tree = str(self._git.write_tree())
        return blob, str(self._git.commit_tree(tree, "-p", parent, "--no-gpg-sign", "-F", str(message)))

    def _move(self, branch: str, old: str, new: str) -> None:
        from git import GitCommandError

        try:
            self._git.update_ref("-m", "mjolnir defaults", branch, new, old)
        except GitCommandError as error:
            raise NotWrittenFailure(f"{branch} could not be moved: {error.stderr.strip()}; try again") from error

    def _bring_up_to_date(self, blob: str) -> None:
        from git import GitCommandError

        try:
            self._git.update_index("--add", "--cacheinfo", f"100644,{blob},{self._path}")
            self._git.checkout_index("-f", "-u", "--", self._path)
        except GitCommandError as error:
            raise NotWrittenFailure(
                f"the rows are committed, but {self._path} in the work tree is still the old one "
                f"({error.stderr.strip()}); run: git restore --staged --worktree {self._path}"
            ) from error

    def identity(self) -> dict[str, str]:
        """The user's own identity where git knows one, else a fixed one: a missing name must not lose a row."""
        from git import GitCommandError

        try:
            self._git.var("GIT_COMMITTER_IDENT")
            self._git.var("GIT_AUTHOR_IDENT")
        except GitCommandError:
            roles = ("AUTHOR", "COMMITTER")
            names = {f"GIT_{role}_NAME": FALLBACK_NAME for role in roles}
            return names | {f"GIT_{role}_EMAIL": FALLBACK_EMAIL for role in roles}
        return {}


def _names_mjolnir(pyproject: Path) -> bool:
    try:
        project = tomllib.loads(pyproject.read_text(encoding="utf-8")).get("project", {})
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        return False
    return bool(project.get("name") == DISTRIBUTION)
