"""Where the ledger lies."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

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
    """The ledger's folder: `folder`, else `$MJOLNIR_LEDGER`, else the checkout's `research/`, else the user's data."""
    if folder is not None:
        return Place(Path(folder).expanduser().absolute(), "--ledger")
    named = os.environ.get(VARIABLE)
    if named:
        return Place(Path(named).expanduser().absolute(), f"${VARIABLE}")
    root = checkout()
    if root is not None:
        return Place(root / "research", "checkout")
    import platformdirs

    return Place(Path(platformdirs.user_data_dir("mjolnir", appauthor=False)) / "ledger", "user data folder")


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
