"""A campaign of several hosts: the tuner's team over the ledger's shared tag, and how a process joins it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mjolnir.ledger import LedgerError
from mjolnir.research.answer import MissingFailure, UsageFailure
from mjolnir.research.journal import LedgerJournal, as_mapping
from mjolnir.tuner.leases import Lease, LeaseLost

if TYPE_CHECKING:
    from mjolnir.ledger import Ledger, Record, Writer
    from mjolnir.ledger.leases import LeaseTable
    from mjolnir.ledger.shared import SharedTag
    from mjolnir.research.request import Request
    from mjolnir.tuner.options import Options

_log = logging.getLogger(__name__)


@contextmanager
def joined(request: Request, ledger: Ledger, tag: str) -> Iterator[SharedTag]:
    """The campaign's place in the storage, with what is there brought home to the ledger first.

    Raises:
        UsageFailure: the storage cannot be used as it is, or the ledger has records of the tag that it lacks.
        MissingFailure: the server cannot be reached, or a package is missing.
    """
    from mjolnir.ledger.database import StorageError, StorageMissing
    from mjolnir.ledger.shared import SharedTag

    try:
        store = SharedTag(request.storage or "", tag)
    except StorageError as error:
        raise UsageFailure(str(error)) from None
    except StorageMissing as error:
        raise MissingFailure(str(error)) from None
    with store:
        there = [record for _, record in store.lines()]
        _require_shared(ledger, tag, there, store.shown)
        ledger.import_records(there)
        yield store


def _require_shared(ledger: Ledger, tag: str, there: Sequence[Record], shown: str) -> None:
    """Refuse a tag that was run without the storage: its trials would have the numbers of others."""
    known = {record.identity for record in there}
    if alone := [record for record in ledger.records(tag) if record.identity not in known]:
        raise UsageFailure(
            f"the ledger has {len(alone)} records of {tag} that the storage {shown} lacks: "
            "that campaign was run without it; choose another --tag or another --ledger"
        )


class SharedJournal:
    """The tuner's `Team`: records and leases of one tag, seen by one process with one writer.

    Args:
        ledger: of this process.
        store: the tag in the storage.
        writer: appends here.
        tag: the campaign.
        seconds: how long a lease holds unless it is renewed.
    """

    def __init__(self, ledger: Ledger, store: SharedTag, writer: Writer, tag: str, seconds: float) -> None:
        self.tag = tag
        self.leases = SharedLeases(self, store.leases(writer.id, seconds))
        self._ledger = ledger
        self._store = store
        self._writer = writer
        self._local = LedgerJournal(ledger, writer, tag)
        self._records: list[Record] = []
        self._place = 0
        self._lamport = 0
        self._closed = False

    @property
    def writer(self) -> str:
        """See `Team`."""
        return self._writer.id

    def append(self, kind: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `Journal`."""
        return as_mapping(self._writer.append(kind, body, publish=self._store.add, after=self._lamport))

    def append_under(
        self, table: LeaseTable, lease: Any, kind: str, body: Mapping[str, Any], keep: bool
    ) -> Mapping[str, Any]:
        """Append a record if the lease is held, which then is done unless it is to be kept; LeaseLost otherwise."""

        def publish(record: Record) -> None:
            self._store.add(record, table, lease, keep)

        return as_mapping(self._writer.append(kind, body, publish=publish, after=self._lamport))

    def history(self) -> Sequence[Mapping[str, Any]]:
        """See `Journal`."""
        self._read()
        return [as_mapping(record) for record in self._records]

    def elsewhere(self) -> Sequence[Mapping[str, Any]]:
        """See `Journal`; the other tags of this ledger."""
        return self._local.elsewhere()

    def news(self) -> Sequence[Mapping[str, Any]]:
        """See `Team`."""
        return [as_mapping(record) for record in self._read()]

    def agree(self, name: str, value: Any) -> Any:
        """See `Team`."""
        return self._store.agree(name, value)

    def agreed(self, name: str) -> Any:
        """See `Team`."""
        return self._store.agreed(name)

    def studies(self) -> Any:
        """See `Team`; Optuna's tables are made by one process at a time.

        There are none in SQLite, where one transaction that writes keeps out all others: trials would wait for studies.
        """
        if self._store.single_host:
            return None
        from optuna.storages import RDBStorage

        while (lease := self.leases.take(["studies"])) is None:
            time.sleep(0.05)
        try:
            return RDBStorage(self._store.driver_url)
        finally:
            self.leases.abandon(lease)

    def bring_home(self) -> None:
        """Take what the others recorded into the ledger of this process, which then is whole by itself; once."""
        try:
            self._read()
            self._ledger.import_records(self._records)
        except LedgerError as error:
            _log.warning("the records of other hosts were not brought home: %s", error)
        self._closed = True

    def _read(self) -> list[Record]:
        """Records that were added since it was asked last."""
        if self._closed:
            return []
        found = self._store.lines(self._place)
        records = [record for _, record in found]
        if found:
            self._place = found[-1][0]
            self._lamport = max(self._lamport, *(record.lamport for record in records))
            self._records.extend(records)
        return records


class SharedLeases:
    """The tuner's `Leases` over the ledger's table."""

    def __init__(self, journal: SharedJournal, table: LeaseTable) -> None:
        self._journal = journal
        self._table = table

    @property
    def seconds(self) -> float:
        """See `Leases`."""
        return self._table.seconds

    def take(self, names: Sequence[str]) -> Lease | None:
        """See `Leases`."""
        found = self._table.take(names)
        return None if found is None else Lease(found.name, found.token)

    def renew(self, lease: Lease) -> bool:
        """See `Leases`."""
        return self._table.renew(_row(lease))

    def finish(self, lease: Lease, kind: str, body: Mapping[str, Any], *, keep: bool = False) -> Mapping[str, Any]:
        """See `Leases`."""
        from mjolnir.ledger import leases

        try:
            return self._journal.append_under(self._table, _row(lease), kind, body, keep)
        except leases.LeaseLost as lost:
            raise LeaseLost(str(lost)) from None

    def abandon(self, lease: Lease) -> None:
        """See `Leases`."""
        self._table.abandon(_row(lease))


def _row(lease: Lease) -> Any:
    from mjolnir.ledger import leases

    return leases.Lease(lease.name, lease.token)


@contextmanager
def opening(journal: SharedJournal, fresh: bool) -> Iterator[None]:
    """Hold the right to open, change or join the campaign: one process at a time, each after the other.

    Raises:
        UsageFailure: another process holds it for too long, or has opened the tag before this one.
    """
    deadline = time.monotonic() + 2 * journal.leases.seconds
    while (lease := journal.leases.take(["open"])) is None:
        if time.monotonic() > deadline:
            raise UsageFailure(f"another process has been opening {journal.tag} for long; try again when it is done")
        time.sleep(0.05)
    try:
        if fresh and journal.history():
            raise UsageFailure(f"another process has just opened {journal.tag}; join it: mjolnir autoresearch worker")
        yield
    finally:
        journal.leases.abandon(lease)


def require_consent(request: Request, options: Options) -> None:
    """A command that stands in the storage is run here only when whoever started this worker has named it too.

    Raises:
        UsageFailure: the campaign's proposer is such a command, and it was not named.
    """
    if options.proposer == "external" and request.proposer_command is None:
        raise UsageFailure(
            f"{request.tag} asks the command {options.proposer_command!r} for settings, which would run here too: "
            "allow that by naming it in --proposer-command"
        )


def require_same_epoch(journal: SharedJournal, epoch: Mapping[str, Any]) -> None:
    """Refuse to measure for a campaign under other circumstances than its own.

    Raises:
        UsageFailure: device, driver, versions, policy or kernel differ; names which.
    """
    epochs = [record["body"] for record in journal.history() if record["kind"] == "epoch"]
    if not epochs:
        raise UsageFailure(
            f"{journal.tag} was not opened to its end: mjolnir autoresearch run --resume goes on with it"
        )
    if epochs[-1]["epoch"] == epoch["epoch"]:
        return
    theirs, mine = epochs[-1]["parts"], epoch["parts"]
    differing = [
        f"{name} is {mine.get(name)!r}, not {theirs[name]!r}" for name in theirs if mine.get(name) != theirs[name]
    ]
    raise UsageFailure(
        f"this host cannot measure for {journal.tag}, whose times would not be comparable: {'; '.join(differing)}"
    )
