"""Setting aside: what cannot stay in the ledger is kept in a file of its own, and never lost.

The name of such a file follows from its content, so that setting the same aside twice makes one file.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from mjolnir.ledger.errors import LedgerError

FOLDER = ".ledger"
_CHUNK = 1 << 20


def put(ledger: Path, prefix: str, parts: Iterable[bytes]) -> Path:
    """Put `parts` durably into `.ledger/<prefix>-<hash>` of a ledger folder, and return that path.

    Raises:
        LedgerError: the folder is a link, which may lead anywhere.
        OSError: it cannot be written.
    """
    folder = ledger / FOLDER
    folder.mkdir(exist_ok=True)
    if folder.is_symlink():
        raise LedgerError(f"{folder} is a symbolic link, which is not followed; put a folder in its place")
    draft = folder / f".{prefix}-{secrets.token_hex(8)}"
    digest = hashlib.sha256()
    try:
        with os.fdopen(create(draft), "wb") as file:
            for part in parts:
                digest.update(part)
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        path = folder / f"{prefix}-{digest.hexdigest()[:16]}"
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(folder)
    return path


def create(path: Path) -> int:
    """Descriptor of a new file that only this process has opened; what lies there, a link too, is an error."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o666)


def piece(fd: int, start: int, end: int) -> Iterable[bytes]:
    """The bytes of an open file from `start` to `end`, however many, in portions."""
    while start < end and (part := os.pread(fd, min(_CHUNK, end - start), start)):
        yield part
        start += len(part)


def sync_folder(folder: Path) -> None:
    """Make a new name in `folder` durable."""
    if os.name == "nt":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
