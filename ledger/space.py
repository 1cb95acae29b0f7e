"""Room on the disk: looked at before a campaign and while it runs, so that it ends in order and not in the middle."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mjolnir.ledger.errors import LedgerFull

MIB = 1024 * 1024

CAMPAIGN = 256 * MIB
"""Room that a campaign should find; the longest one (600 trials) takes a tenth of it in live file, git and index."""

LEAST = 16 * MIB
"""With less nothing is appended any more: what is left is for git, the index and the last words of a run."""

_SECONDS = 5.0

_log = logging.getLogger(__name__)


def free(folder: Path) -> int:
    """Bytes that can be written into `folder`, or where it will be made."""
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


class Room:
    """Watches the disks that a ledger lies on: its own, and that of its repository.

    Args:
        folders: one on each disk.
        look: free bytes of a folder.
        clock: seconds; it is looked no oftener than every five.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        look: Callable[[Path], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folders = tuple(folders)
        self._look = look
        self._clock = clock
        self._due = float("-inf")
        self._warned = False

    def check(self) -> None:
        """Look, when it is time to; below `CAMPAIGN` warn once.

        Raises:
            LedgerFull: there is less than `LEAST`.
        """
        if (now := self._clock()) < self._due:
            return
        self._due = now + _SECONDS
        for folder in self._folders:
            try:
                left = (self._look or free)(folder)
            except OSError:
                # A disk that does not tell is no reason to stop: the write itself will.
                continue
            if left < LEAST:
                self._due = float("-inf")
                raise LedgerFull(
                    f"the disk of {folder} is nearly full: {left // MIB} MiB are left, and {LEAST // MIB} are kept "
                    "for git and the index; free some space and run again, a campaign with --resume"
                )
            if left < CAMPAIGN and not self._warned:
                self._warned = True
                _log.warning(
                    "the disk of %s has %d MiB left; a campaign may need %d", folder, left // MIB, CAMPAIGN // MIB
                )
