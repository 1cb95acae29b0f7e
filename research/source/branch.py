"""The branch `autoresearch/<tag>`, on which the changes that were kept follow one another."""

from __future__ import annotations

from collections.abc import Sequence

from mjolnir.research.answer import NotWrittenFailure, UsageFailure
from mjolnir.research.checkout import Checkout
from mjolnir.research.source.change import resolve

PREFIX = "autoresearch"
_NOTHING = "0" * 40


class Branch:
    """The branch of a tag; it may not be there yet.

    Attributes:
        name: as git shows it.
    """

    def __init__(self, checkout: Checkout, tag: str) -> None:
        """Look at the branch.

        Raises:
            UsageFailure: it is checked out, and moving it would change what somebody works on; or it cannot be made.
        """
        self.name = f"{PREFIX}/{tag}"
        self._checkout = checkout
        listed = str(checkout.git.worktree("list", "--porcelain")).split("\n\n")
        trees = [entry.split("\n") for entry in listed]
        held = [lines[0].partition(" ")[2] for lines in trees if f"branch {self._ref}" in lines]
        if held:
            raise UsageFailure(
                f"{self.name} is checked out in {held[0]}, and `try` moves it: "
                f"run `git switch --detach` there, which keeps every file, and try again"
            )
        if self._find(f"refs/heads/{PREFIX}"):
            raise UsageFailure(f"there is a branch {PREFIX}, beside which git can have no {self.name}: rename it")

    @property
    def _ref(self) -> str:
        return f"refs/heads/{self.name}"

    @property
    def tip(self) -> str | None:
        """The commit that it is at; None where it is not there."""
        return self._find(self._ref)

    def _find(self, ref: str) -> str | None:
        found = str(self._checkout.git.for_each_ref("--format=%(refname) %(objectname)", ref))
        return next((line.split()[1] for line in found.splitlines() if line.split()[0] == ref), None)

    def base(self, asked: str | None) -> str:
        """The commit that a change is compared with: the tip, else `asked`, else HEAD.

        Raises:
            UsageFailure: there is no such commit, or the branch has gone on from another one.
        """
        tip = self.tip
        wanted = None if asked is None else resolve(self._checkout, asked)
        if tip is not None and wanted not in (None, tip):
            raise UsageFailure(
                f"{self.name} is at {tip[:12]}, and the next change is compared with that; "
                f"for another base than its tip begin a new --tag"
            )
        return tip or wanted or resolve(self._checkout, "HEAD")

    def catch_up(self, kept: Sequence[tuple[str, str]]) -> None:
        """Move to where the records say it is: (base, commit) of each change that was kept, in order.

        A process that was killed between the record and the branch left it one behind.
        """
        for base, commit in kept:
            if self.tip in (None, base) and self.tip != commit and self._there(commit):
                self.keep(commit, base)

    def _there(self, commit: str) -> bool:
        try:
            return resolve(self._checkout, commit) == commit
        except UsageFailure:
            return False

    def keep(self, commit: str, base: str) -> None:
        """Move from `base`, or from nowhere, to `commit`.

        Raises:
            NotWrittenFailure: it is somewhere else by now; the message says how to put it right.
        """
        from git import GitCommandError

        old = self.tip
        if old not in (None, base):
            raise NotWrittenFailure(f"{self.name} has moved to {old} meanwhile; the change is kept as commit {commit}")
        try:
            # A hash of zeros in the repository's length says that there is none yet.
            nothing = _NOTHING if len(commit) == len(_NOTHING) else "0" * len(commit)
            self._checkout.git.update_ref("-m", "autoresearch: keep", self._ref, commit, old or nothing)
        except GitCommandError as error:
            raise NotWrittenFailure(
                f"{self.name} could not be moved: {str(error.stderr).strip()}; the change is commit {commit}: "
                f"run `git branch {self.name} {commit}`"
            ) from error
