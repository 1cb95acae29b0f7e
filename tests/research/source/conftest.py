"""A checkout to try changes in, and how they are tried."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mjolnir import ledger as ledgers
from mjolnir.research.answer import Answer
from mjolnir.research.progress import screen
from mjolnir.research.request import Request
from mjolnir.research.source.experiment import Ask, attempt
from tests.fakes.sources import PLACE, FakeOpener
from tests.research.conftest import git

Try = Callable[..., Answer]


@pytest.fixture
def opener() -> FakeOpener:
    return FakeOpener()


@pytest.fixture
def attempt_in(checkout: Path, opener: FakeOpener) -> Try:
    """Tries what the checkout's work tree holds, with `speed` or another word written into it first."""

    def run(text: str | None = None, message: str = "shorter loop", **options: Any) -> Answer:
        if text is not None:
            (checkout / PLACE).write_text(text)
        asked = {name: options.pop(name) for name in ("branch", "base", "retune") if name in options}
        request = Request(ledger=checkout / "research", **options)
        return attempt(request, Ask(message, start=checkout, **asked), screen(Console(quiet=True)), opener)

    return run


@pytest.fixture
def trials(checkout: Path) -> Callable[[], list[dict[str, Any]]]:
    """The bodies of the trials on record."""

    def read() -> list[dict[str, Any]]:
        with ledgers.open(checkout / "research") as book:
            return [dict(record.body) for record in book.trials("try")]

    return read


def state(root: Path) -> tuple[str, ...]:
    """What of a checkout is the user's: HEAD, index, work tree, branches but ours, worktrees, stash."""
    index = (root / ".git" / "index").read_bytes().hex()
    heads = git(root, "for-each-ref", "--format=%(refname) %(objectname)", "refs/heads", "refs/tags", "refs/stash")
    ours = [line for line in heads.splitlines() if "autoresearch/" not in line]
    files = sorted((str(path), path.read_bytes()) for path in root.rglob("*") if path.is_file() and _users(path, root))
    facts = (git(root, "symbolic-ref", "HEAD"), git(root, "rev-parse", "HEAD"), git(root, "worktree", "list"))
    return (*facts, index, *ours, repr(files))


def _users(path: Path, root: Path) -> bool:
    parts = path.relative_to(root).parts
    return parts[0] != ".git" and parts[:2] != ("research", ".ledger") and not path.name.startswith("ledger.")
