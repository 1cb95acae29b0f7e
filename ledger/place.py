"""Where the ledger lies."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

from mjolnir.ledger.errors import LedgerError

VARIABLE = "MJOLNIR_LEDGER"
_DISTRIBUTION = "mjolnir-autoresearch"


@dataclass(frozen=True, slots=True)
class Place:
    """A ledger folder, and what chose it.

    Attributes:
        folder: absolute; it need not exist yet.
        origin: "--ledger", "$MJOLNIR_LEDGER", "checkout" or "user data folder".
    """

    folder: Path
    origin: str

    def __str__(self) -> str:
        return f"{self.folder} ({self.origin})"


def locate(folder: Path | str | None = None) -> Place:
    """The ledger's folder: `folder`, else `$MJOLNIR_LEDGER`, else the checkout's `research/`, else the user's data.

    Raises:
        LedgerError: what was named can be no folder.
    """
    if folder is not None:
        return _named(Path(folder), "--ledger")
    if named := os.environ.get(VARIABLE):
        return _named(Path(named), f"${VARIABLE}")
    root = checkout()
    if root is not None:
        return Place(root / "research", "checkout")
    import platformdirs

    return Place(Path(platformdirs.user_data_dir("mjolnir", appauthor=False)) / "ledger", "user data folder")


def _named(folder: Path, origin: str) -> Place:
    try:
        folder = folder.expanduser().absolute()
    except RuntimeError as error:
        raise LedgerError(f"{origin} {folder}: {error}") from error
    if folder.exists() and not folder.is_dir():
        raise LedgerError(f"{origin} {folder} is a file; name the folder that holds, or shall hold, ledger.jsonl")
    return Place(folder, origin)


def checkout(start: Path | None = None) -> Path | None:
    """The Mjolnir work tree that holds `start` (the current folder): its pyproject.toml names the distribution."""
    start = Path.cwd() if start is None else start.absolute()
    for folder in (start, *start.parents):
        try:
            project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            continue
        if isinstance(project, dict) and project.get("name") == _DISTRIBUTION:
            return folder
    return None
