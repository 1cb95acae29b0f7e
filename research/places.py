"""Where things lie: the ledger and what goes beside it, exports, tables, compiled variants."""

from __future__ import annotations

import tempfile
from pathlib import Path


def ledger_folder(given: Path | None) -> Path:
    """The ledger's folder: `given`, `$MJOLNIR_LEDGER`, the checkout's research/ or the user data folder."""
    from mjolnir import ledger

    return ledger.locate(given).folder


def state_folder(ledger: Path) -> Path:
    """Locks and stop requests of runs, beside the ledger and never committed."""
    return ledger / ".ledger"


def export_folder(ledger: Path, tag: str) -> Path:
    """Where `export` writes without `--out`: `runs/<tag>` beside the ledger; in a checkout, research/runs/<tag>."""
    return ledger / "runs" / tag


def check_folder(folder: Path) -> None:
    """Make sure that files can be put into `folder`, made with its parents; leaves nothing behind.

    Raises:
        OSError: they cannot; the message names what is in the way.
    """
    existing = folder
    while not existing.exists():
        existing = existing.parent
    with tempfile.TemporaryFile(dir=existing):
        return


def user_table() -> Path:
    """The user's defaults table."""
    from mjolnir.backend.lookup import user_path

    return user_path()


def compile_cache() -> Path:
    """The folder of compiled variants."""
    from mjolnir.kernel.cache import default_folder

    return default_folder()
