"""A journal that dies, as a process does that is killed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mjolnir.tuner.journal import MemoryJournal, Record


class Killed(BaseException):
    """The process is gone."""


class MortalJournal(MemoryJournal):
    """Keeps `lives` more records and dies: `acknowledge` tells whether the last one is kept or lost."""

    def __init__(self, lives: int, acknowledge: bool, records: Iterable[Record] = ()) -> None:
        super().__init__(records=records)
        self._lives = lives
        self._acknowledge = acknowledge

    def append(self, kind: str, body: Mapping[str, Any]) -> Record:
        self._lives -= 1
        if self._lives < 0 and not self._acknowledge:
            raise Killed
        record = super().append(kind, body)
        if self._lives < 0:
            raise Killed
        return record
