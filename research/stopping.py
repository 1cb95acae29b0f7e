"""How a run is stopped: by a signal, or by a request from another process through the ledger folder."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from mjolnir.research.answer import Exit, UsageFailure

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What asks for a stop; the last one comes when the terminal goes, unless `nohup` has it ignored."""


PATIENCE_SECONDS = 0.2
"""Whoever looks whether a tag runs, or clears what killed runs left, holds its lock for less than this."""


class Running:
    """The claim of one process on one tag, and the ways in which it is asked to stop.

    Calling it tells whether to stop. The first signal asks for a clean stop, the second ends the process at once.
    """

    def __init__(self, folder: Path, tag: str) -> None:
        self._folder = folder
        self._tag = tag
        self._signalled = False

    def __call__(self) -> bool:
        return self._signalled or self.requested

    @property
    def signalled(self) -> bool:
        """True once a signal has asked for a stop."""
        return self._signalled

    @property
    def requested(self) -> bool:
        """True when `mjolnir autoresearch stop` was called for this run."""
        return stop_file(self._folder, self._tag).exists()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._signalled:
            os._exit(Exit.INTERRUPTED)
        self._signalled = True
        # os.write, since a print inside a signal handler may interrupt another print; the terminal may be gone.
        with suppress(OSError):
            os.write(sys.stderr.fileno(), b"\nstopping after the step in hand; once more stops at once\n")

    @contextmanager
    def claim(self) -> Iterator[Running]:
        """Hold the tag and listen for signals until the block ends.

        Raises:
            UsageFailure: another process runs this tag.
        """
        self._folder.mkdir(exist_ok=True)
        _clear(self._folder)
        path = _lock_path(self._folder, self._tag)
        lock = _held(path, PATIENCE_SECONDS)
        if lock is None:
            raise UsageFailure(f"another process runs {self._tag}; wait for it, or stop it")
        stop_file(self._folder, self._tag).unlink(missing_ok=True)
        heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._on_signal) for number in heard}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for file in (stop_file(self._folder, self._tag), path):
                with suppress(OSError):
                    file.unlink()
            os.close(lock)


def _held(path: Path, patience: float = 0.0) -> int | None:
    """A handle that holds the lock file at `path`, made where there is none; None where another process holds it.

    Who holds a lock file may remove it: a handle on one that is no longer there holds nothing, and is taken anew.
    """
    last = time.monotonic() + patience
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        except BlockingIOError:
            if time.monotonic() >= last:
                os.close(handle)
                return None
            time.sleep(0.01)
        except FileNotFoundError:
            pass  # removed between the two looks
        os.close(handle)


def _clear(folder: Path) -> None:
    """Remove what runs left that were killed."""
    for path in folder.glob("*.run"):
        with suppress(OSError):  # another user's
            if (handle := _held(path)) is not None:
                stop_file(folder, path.stem).unlink(missing_ok=True)
                path.unlink(missing_ok=True)
                os.close(handle)


def is_running(folder: Path, tag: str) -> bool:
    """True while a process holds the tag. Looks through a handle for reading: the ledger may be another user's."""
    try:
        with _lock_path(folder, tag).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def request_stop(folder: Path, tag: str) -> None:
    """Ask the process that runs `tag` to stop."""
    stop_file(folder, tag).touch()


def stop_file(folder: Path, tag: str) -> Path:
    """The file whose presence asks a run to stop."""
    return folder / f"{tag}.stop"


def _lock_path(folder: Path, tag: str) -> Path:
    return folder / f"{tag}.run"
