"""The change of a source experiment: taken from the work tree or a branch, and made a commit that nothing points to.

It is built in an index of its own. Work tree, index, HEAD and branches of the user are read and never written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mjolnir.research.answer import Failure, UsageFailure
from mjolnir.research.checkout import Checkout
from mjolnir.research.source.allowed import MAY_CHANGE, refusal, sorted_out

MOST_DIFF = 1 << 20
"""Bytes of a diff: a record holds it."""

_RAW: dict[str, Any] = {"stdout_as_string": False, "strip_newline_in_stdout": False}


@dataclass(frozen=True, slots=True)
class Change:
    """One change on its base.

    Attributes:
        base: commit id.
        commit: of the change, its only parent the base.
        kernel: id of the base's tree `kernel/`: names the sources that everything is compared with.
        files: what it changes.
        diff: as text, as `git apply` takes it.
        left_out: other changed files, which do not matter for the kernel and are not part of it.
    """

    base: str
    commit: str
    kernel: str
    files: tuple[str, ...]
    diff: str
    left_out: tuple[str, ...]


def resolve(checkout: Checkout, revision: str) -> str:
    """The commit id of a revision.

    Raises:
        UsageFailure: there is no such commit.
    """
    from git import GitCommandError

    try:
        return str(checkout.git.rev_parse("--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"))
    except GitCommandError:
        raise UsageFailure(f"{checkout.root} has no commit {revision!r}") from None


def take(checkout: Checkout, base: str, message: str, branch: str | None = None) -> Change:
    """Take the change that the work tree, or `branch`, is from `base`.

    Args:
        checkout: whose.
        base: commit id.
        message: what and why; becomes the commit's message.
        branch: any revision; None = the work tree, with files that git does not know yet.

    Raises:
        UsageFailure: nothing is changed, or something that no experiment may change; the message names it.
        Failure: git failed.
    """
    from git import GitCommandError

    try:
        return _take(checkout, base, message, None if branch is None else resolve(checkout, branch))
    except GitCommandError as error:
        raise Failure(f"git could not take the change: {str(error.stderr).strip()}") from error


def _take(checkout: Checkout, base: str, message: str, other: str | None) -> Change:
    files, forbidden, others = sorted_out(_changed(checkout, base, other))
    if forbidden:
        raise UsageFailure(refusal(forbidden))
    if not files:
        place = "the work tree" if other is None else other[:12]
        raise UsageFailure(f"nothing to try: {MAY_CHANGE} of {place} is that of the base {base[:12]}")
    git = checkout.git
    with own_index(checkout):
        git.read_tree(base)
        if other is None:
            git.add("--all", "--", *files)
        else:
            _copy(checkout, other, files)
        tree = str(git.write_tree())
        commit = _commit(checkout, tree, base, message)
    _require_files(checkout, commit)
    diff = bytes(git.diff_tree("-p", "--binary", base, commit, **_RAW))
    if len(diff) > MOST_DIFF:
        raise UsageFailure(f"the diff has {len(diff)} bytes; {MOST_DIFF} are kept with an experiment: try less at once")
    kernel = str(git.rev_parse(f"{base}:kernel"))
    return Change(base, commit, kernel, tuple(files), diff.decode("utf-8", "replace"), tuple(others))


def _changed(checkout: Checkout, base: str, other: str | None) -> list[str]:
    """Paths that differ from the base; of files that git does not know only those that could be part of a change."""
    git = checkout.git
    if other is not None:
        return _paths(git.diff_tree("-r", "-z", "--name-only", "--no-renames", base, other, **_RAW))
    known = git.diff("-z", "--name-only", "--no-renames", "--no-ext-diff", base, "--", **_RAW)
    fresh = git.ls_files("-z", "--others", "--exclude-standard", "--", MAY_CHANGE, **_RAW)
    return [*_paths(known), *_paths(fresh)]


def _paths(listed: bytes) -> list[str]:
    try:
        return [path for path in bytes(listed).decode().split("\0") if path]
    except UnicodeDecodeError as error:
        raise UsageFailure("a changed file has a name that is not UTF-8; rename it") from error


def _copy(checkout: Checkout, commit: str, files: Sequence[str]) -> None:
    """Put files into the index as `commit` has them, or take them out where it has none."""
    for path in files:
        entry = str(checkout.git.ls_tree(commit, "--", path))
        if entry:
            mode, _, found = entry.split("\t")[0].split()
            checkout.git.update_index("--add", "--cacheinfo", f"{mode},{found},{path}")
        else:
            checkout.git.update_index("--force-remove", "--", path)


def _commit(checkout: Checkout, tree: str, base: str, message: str) -> str:
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write(message.strip() + "\n")
        file.flush()
        with checkout.git.custom_environment(**checkout.identity()):
            return str(checkout.git.commit_tree(tree, "-p", base, "--no-gpg-sign", "-F", file.name))


def _require_files(checkout: Checkout, commit: str) -> None:
    """Refuse links and submodules: what they lead to is no part of the record."""
    for entry in _paths(checkout.git.ls_tree("-r", "-z", commit, "--", MAY_CHANGE.rstrip("/"), **_RAW)):
        facts, _, path = entry.partition("\t")
        if not facts.startswith("100"):
            raise UsageFailure(f"{path} is a link or a submodule; a change consists of plain files")


@contextmanager
def own_index(checkout: Checkout) -> Iterator[None]:
    """The block's git commands have an index of their own, which is empty."""
    with (
        tempfile.TemporaryDirectory(prefix="mjolnir-") as folder,
        checkout.git.custom_environment(GIT_INDEX_FILE=str(Path(folder) / "index")),
    ):
        yield
