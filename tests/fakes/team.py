"""A team in memory: what the processes of a shared campaign have in common, for threads that stand in for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mjolnir.tuner.journal import MemoryJournal, Record
from mjolnir.tuner.leases import Lease, LeaseLost


@dataclass
class Grant:
    """A row of the lease table."""

    token: int = 0
    owner: str = ""
    expires: float = 0.0
    done: bool = False


@dataclass
class Headquarters:
    """What lies in the database: one for all members."""

    seconds: float = 30.0
    journal: MemoryJournal = field(default_factory=lambda: MemoryJournal("shared"))
    grants: dict[str, Grant] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    storage: Any = None
    lock: threading.RLock = field(default_factory=threading.RLock)


class MemoryTeam:
    """`Team` and `Leases` of one member. `dead` is a process that was killed: whatever it still says is not heard."""

    def __init__(self, headquarters: Headquarters, writer: str) -> None:
        self._all = headquarters
        self._read = 0
        self.tag = headquarters.journal.tag
        self.writer = writer
        self.dead = False
        self.leases = self

    @property
    def seconds(self) -> float:
        return self._all.seconds

    def append(self, kind: str, body: Mapping[str, Any]) -> Record:
        with self._all.lock:
            if self.dead:
                return {"kind": kind, "body": body, "hash": "", "writer": self.writer, "lamport": 0}
            record = {**self._all.journal.append(kind, body), "writer": self.writer}
            self._all.journal.records[-1] = record
            return record

    def history(self) -> Sequence[Record]:
        with self._all.lock:
            self._read = len(self._all.journal.records)
            return tuple(self._all.journal.records)

    def elsewhere(self) -> Sequence[Record]:
        return ()

    def news(self) -> Sequence[Record]:
        with self._all.lock:
            before, self._read = self._read, len(self._all.journal.records)
            return self._all.journal.records[before : self._read]

    def agree(self, name: str, value: Any) -> Any:
        with self._all.lock:
            return self._all.facts.setdefault(name, value)

    def agreed(self, name: str) -> Any:
        return self._all.facts.get(name)

    def studies(self) -> Any:
        return self._all.storage

    def take(self, names: Sequence[str]) -> Lease | None:
        with self._all.lock:
            for name in names:
                grant = self._all.grants.setdefault(name, Grant())
                if not grant.done and grant.expires <= time.monotonic():
                    grant.token, grant.owner = grant.token + 1, self.writer
                    grant.expires = time.monotonic() + self.seconds
                    return Lease(name, grant.token)
        return None

    def renew(self, lease: Lease) -> bool:
        with self._all.lock:
            grant = self._mine(lease)
            if grant is not None and not self.dead:
                grant.expires = time.monotonic() + self.seconds
            return grant is not None

    def finish(self, lease: Lease, kind: str, body: Mapping[str, Any], *, keep: bool = False) -> Record:
        with self._all.lock:
            grant = self._mine(lease)
            if grant is None:
                raise LeaseLost(lease.name)
            grant.done = not keep
            return self.append(kind, body)

    def abandon(self, lease: Lease) -> None:
        with self._all.lock:
            grant = self._mine(lease)
            if grant is not None and not self.dead:
                grant.expires = 0.0

    def _mine(self, lease: Lease) -> Grant | None:
        grant = self._all.grants[lease.name]
        held = (grant.token, grant.owner, grant.done) == (lease.token, self.writer, False)
        return grant if held else None
