"""Who takes which step of a campaign that several processes share: the protocol, and the heartbeat of what is held."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mjolnir.tuner.journal import Record


@dataclass(frozen=True, slots=True)
class Lease:
    """A step that is held.

    Attributes:
        name: of the step.
        token: number of the grant: what tells a late answer from that of the present holder.
    """

    name: str
    token: int


class LeaseLost(Exception):
    """A lease ran out and another has taken it: what was made under it does not count."""


class Leases(Protocol):
    """Steps of a shared campaign. A lease ends when it is finished or abandoned, or runs out unless it is renewed."""

    @property
    def seconds(self) -> float:
        """How long a lease holds unless it is renewed."""

    def take(self, names: Sequence[str]) -> Lease | None:
        """Lease the first of these steps that is neither done nor held; None when there is none."""

    def renew(self, lease: Lease) -> bool:
        """Hold it for another while; False when it is lost. Called from the thread of the heartbeat."""

    def finish(self, lease: Lease, kind: str, body: Mapping[str, Any], *, keep: bool = False) -> Record:
        """Append the step's record and end the lease, both or neither; with `keep` the lease goes on.

        Raises:
            LeaseLost: it was not held any more; nothing was appended.
        """

    def abandon(self, lease: Lease) -> None:
        """Give it back, for anybody to take."""


class Heartbeat:
    """Renews what is held, from a thread of its own, until it is stopped.

    A renewal that fails is not reported: `Leases.finish` finds out, and nothing else depends on it.
    """

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._held: dict[str, Lease] = {}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, lease: Lease) -> None:
        """Renew this lease from now on."""
        self._held[lease.name] = lease
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lease-heartbeat", daemon=True)
            self._thread.start()

    def drop(self, lease: Lease) -> None:
        """Renew it no longer."""
        self._held.pop(lease.name, None)

    def stop(self) -> None:
        """Give back what is held, and end the thread. Idempotent."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        for lease in tuple(self._held.values()):
            self.drop(lease)
            self._leases.abandon(lease)

    def _run(self) -> None:
        # Three beats a lease: one may fail and one may be slow.
        while not self._stopped.wait(self._leases.seconds / 3):
            for lease in tuple(self._held.values()):
                self._beat(lease)

    def _beat(self, lease: Lease) -> None:
        try:
            held = self._leases.renew(lease)
        except Exception:  # the database is away: the next beat tries again
            return
        if not held:
            self.drop(lease)
