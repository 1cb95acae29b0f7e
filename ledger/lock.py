"""The lock of a live file: held for one append, by one process at a time.

It is `flock` on a file that stays open, since opening it anew for each append would cost as much as all else that an
append does beside its fsync. The system frees it when its holder ends, however that ends.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

POLL_SECONDS = 0.001


class Lock:
    """A lock between processes; within one its owner holds a mutex.

    Args:
        path: of its file, made when missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle = -1

    def acquire(self, seconds: float) -> bool:
        """Take it, waiting so long at most; whether it was had.

        Raises:
            OSError: its file cannot be opened or locked.
        """
        end = time.monotonic() + seconds
        while not self._taken():
            if time.monotonic() >= end:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def release(self) -> None:
        """Let others have it."""
        fcntl.flock(self._handle, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close its file, and with that let go of it. Idempotent."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _taken(self) -> bool:
        if self._handle < 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._handle = os.open(self._path, flags, 0o666)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if self._is_there():
            return True
        self.close()  # somebody removed or replaced the file, and others lock another by now
        return False

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._handle))
        except FileNotFoundError:
            return False
