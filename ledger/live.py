"""The live file: where a record becomes durable.

A record is appended under a file lock with one write and one fsync; then it is acknowledged. The cost does not
depend on how much the file holds: what others appended meanwhile is read, nothing else.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from mjolnir.ledger import aside
from mjolnir.ledger.errors import LedgerError, LedgerFull, RecordError
from mjolnir.ledger.lock import Lock
from mjolnir.ledger.parsing import parse
from mjolnir.ledger.record import MAX_LINE, Record

NAME = "ledger.jsonl"
LOCK = "ledger.lock"

LOCK_SECONDS = 60.0
_NO_SPACE = {"ENOSPC", "EDQUOT", "EFBIG"}
_CHUNK = 1 << 20


class LiveFile:
    """One open live file. Not thread-safe by itself; its owner holds a mutex.

    Attributes:
        path: the file.
        size: bytes of it that are known.
        lamport: the largest lamport known.
    """

    def __init__(self, folder: Path, size: int = 0, lamport: int = 0) -> None:
        """Open the file of `folder`, made when missing; its first `size` bytes are known to hold at most `lamport`."""
        self.path = folder / NAME
        self.lamport = lamport
        self._folder = folder
        self.size = size
        self._fd = -1
        make_folder(folder)
        self._lock = Lock(folder / LOCK)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the file lock: no other process appends meanwhile."""
        try:
            held = self._lock.acquire(LOCK_SECONDS)
        except OSError as error:
            raise LedgerError(f"{self._folder / LOCK} cannot be locked: {error.strerror}") from error
        if not held:
            raise LedgerError(
                f"another process has held {self._folder / LOCK} for {LOCK_SECONDS:.0f} s; "
                "end the one that hangs (the lock goes with it) and run again"
            )
        try:
            yield
        finally:
            self._lock.release()

    def catch_up(self) -> list[Record]:
        """Read what others appended since; move a torn tail aside. To be called while locked."""
        self._reopen()
        size = os.fstat(self._fd).st_size
        if size < self.size:
            # An older copy was put back: what it lacks is in git, what it holds is read again.
            self.size = 0
        if size == self.size:
            return []
        records = []
        for _, end, line in scan(self.path, self.size):
            self.size = end
            try:
                record = parse(line)
            except RecordError:
                continue
            self.lamport = max(self.lamport, record.lamport)
            records.append(record)
        if self.size < size and (last := self._settle(self.size, size)) is not None:
            self.lamport = max(self.lamport, last.lamport)
            records.append(last)
        return records

    def mend(self) -> None:
        """Go to the end without reading what is there; move a torn tail aside. To be called while locked."""
        self._reopen()
        end = os.fstat(self._fd).st_size
        self.size = _end_of_lines(self._fd, end)
        if self.size < end:
            self._settle(self.size, end)

    def append(self, *records: Record) -> None:
        """Write `records` at the end, durably. To be called while locked, after `catch_up`.

        Raises:
            LedgerFull: no space; the file was cut back to what it was.
            LedgerError: it could not be written for another reason; cut back likewise.
        """
        data = b"".join(record.line + b"\n" for record in records)
        try:
            written = os.write(self._fd, data)
            if written < len(data):
                raise LedgerFull(
                    f"the disk of {self.path} is full; free some space and run again, a campaign with --resume"
                )
            os.fsync(self._fd)
        except BaseException as error:
            # Also for a Ctrl-C in between: what was not acknowledged is not left half written.
            self._cut_back()
            if isinstance(error, OSError):
                raise self._failure(error) from error
            raise
        self.size += len(data)
        self.lamport = max(self.lamport, *(record.lamport for record in records))

    def close(self) -> None:
        """Close the file and its lock. Idempotent."""
        self._lock.close()
        self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _reopen(self) -> None:
        """Make sure that the open file is the one at `path`: it may have been removed or replaced."""
        if self._fd >= 0:
            try:
                if os.path.samestat(self.path.stat(), os.fstat(self._fd)):
                    return
            except FileNotFoundError:
                pass
            self._close()
            self.size = 0
        try:
            flags = os.O_RDWR | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
            try:
                self._fd = os.open(self.path, flags)
            except FileNotFoundError:
                self._fd = os.open(self.path, flags | os.O_CREAT | os.O_EXCL, 0o666)
                aside.sync_folder(self._folder)
        except OSError as error:
            raise LedgerError(f"{self.path} cannot be opened for writing: {error.strerror}") from error

    def _cut_back(self) -> None:
        try:
            os.ftruncate(self._fd, self.size)
            os.fsync(self._fd)
        except OSError:
            # The next `catch_up`, here or elsewhere, meets the rest as a torn tail.
            return

    def _settle(self, start: int, end: int) -> Record | None:
        """Give a last line the newline that it lacks when it is whole; else it was torn, and is moved aside."""
        try:
            record = self._whole(start, end)
            if record is None:
                aside.put(self._folder, "torn", aside.piece(self._fd, start, end))
                os.ftruncate(self._fd, start)
            else:
                os.write(self._fd, b"\n")
                self.size = end + 1
            os.fsync(self._fd)
        except OSError as error:
            raise self._failure(error) from error
        return record

    def _whole(self, start: int, end: int) -> Record | None:
        """The record between `start` and `end`, if that is one: a kill, or an editor, took nothing but the newline."""
        if end - start > MAX_LINE:
            return None
        try:
            return parse(os.pread(self._fd, end - start, start))
        except RecordError:
            return None

    def _failure(self, error: OSError) -> LedgerError:
        if errno.errorcode.get(error.errno or 0) in _NO_SPACE:
            return LedgerFull(
                f"the disk of {self.path} is full; free some space and run again, a campaign with --resume"
            )
        return LedgerError(f"{self.path} cannot be written: {error.strerror}")


def scan(path: Path, start: int = 0, *, must_exist: bool = False) -> Iterator[tuple[int, int, bytes]]:
    """(start, end, line) of each whole line from byte `start` on; what follows the last newline is not a line yet.

    Of a line that is longer than any record, only so much is given that it is refused for its length.
    """
    try:
        file = _opened(path)
    except FileNotFoundError:
        if must_exist:
            raise
        return
    with file:
        file.seek(start)
        begun, length = b"", 0
        while chunk := file.read(_CHUNK):
            *lines, rest = chunk.split(b"\n")
            for line in lines:
                end = start + length + len(line) + 1
                yield start, end, _bounded(begun + line)
                start, begun, length = end, b"", 0
            length += len(rest)
            begun = _bounded(begun + rest) if len(begun) <= MAX_LINE else begun


def last_lines(path: Path) -> Iterator[bytes]:
    """The whole lines of the file from the last to the first."""
    try:
        file = _opened(path)
    except FileNotFoundError:
        return
    with file:
        position = file.seek(0, os.SEEK_END)
        rest, torn = b"", True
        while position:
            step = min(_CHUNK, position)
            position -= step
            file.seek(position)
            chunk = file.read(step)
            if len(rest) > MAX_LINE and b"\n" not in chunk:
                continue
            rest, *lines = (chunk + rest).split(b"\n")
            for line in reversed(lines):
                if not torn:
                    yield line
                torn = False
        if not torn:
            yield rest


def _opened(path: Path) -> BinaryIO:
    """A file for reading. What is none, such as a pipe, would be waited for.

    Raises:
        LedgerError: it is no file.
    """
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise LedgerError(f"{path} is no file of records; move it away, or name another place")
    return os.fdopen(fd, "rb")


def _bounded(line: bytes) -> bytes:
    return line if len(line) <= MAX_LINE else line[: MAX_LINE + 1]


def _end_of_lines(fd: int, end: int) -> int:
    """Where the last whole line before byte `end` ends."""
    while end:
        start = max(end - _CHUNK, 0)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def make_folder(folder: Path) -> None:
    """Make a ledger folder, and have git leave it alone; one that was there is left as it is.

    Raises:
        LedgerError: it cannot be made.
    """
    if folder.is_dir():
        return
    try:
        folder.mkdir(parents=True)
        (folder / ".gitignore").write_text("*\n")
    except FileExistsError:
        return
    except OSError as error:
        raise LedgerError(f"{folder} cannot be made: {error.strerror}; name another with --ledger") from error
