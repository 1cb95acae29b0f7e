"""The tuner's journal over the ledger: appending is durable, and each record has the hash that certificates cite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mjolnir.ledger import Ledger, Record, Writer


class LedgerJournal:
    """One tag of a ledger, with one writer to append to it."""

    def __init__(self, ledger: Ledger, writer: Writer, tag: str) -> None:
        self._ledger = ledger
        self._writer = writer
        self._tag = tag
        self._records = [as_mapping(record) for record in ledger.records(tag)]

    def append(self, kind: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Append a record and return it; durable when this returns."""
        record = as_mapping(self._writer.append(kind, body))
        self._records.append(record)
        return record

    def history(self) -> Sequence[Mapping[str, Any]]:
        """Every record of the tag known so far, in order."""
        return self._records

    def elsewhere(self) -> Sequence[Mapping[str, Any]]:
        """See `decided_elsewhere`."""
        campaigns = self._ledger.records(self._tag, "campaign")
        simulated = any(record.body.get("simulated") for record in campaigns)
        return decided_elsewhere(self._ledger, self._tag, simulated)


def decided_elsewhere(ledger: Ledger, tag: str, simulated: bool) -> Sequence[Mapping[str, Any]]:
    """The promotion records of other live campaigns, each an attempt that was made before `tag`.

    There are none for a replay: it proves nothing of a device, spends no alpha, and comes to the same whatever else
    the ledger holds.
    """
    if simulated:
        return ()
    replays = {record.tag for record in ledger.records(kind="campaign") if record.body.get("simulated")}
    promotions = ledger.records(kind="promotion")
    found = [as_mapping(record) for record in promotions if record.tag not in {*replays, tag}]
    return [*found, *_removed(ledger, {record.sha256 for record in promotions})]


def _removed(ledger: Ledger, there: set[str]) -> list[Mapping[str, Any]]:
    """What tombstones tell of promotions that are no longer there: alpha that was spent stays spent."""
    remains = [record.body.get("remains", {}) for record in ledger.records(kind="tombstone")]
    attempts = (attempt for left in remains if left.get("simulated") is False for attempt in left["attempts"])
    return [{"kind": "promotion", "body": attempt} for attempt in attempts if attempt["record"] not in there]


def remains_of(ledger: Ledger, tag: str) -> dict[str, Any] | None:
    """What has to be known of a tag's promotions after its records are gone; None where it decided nothing."""
    attempts = [
        {
            "key": record.body["key"],
            "certificate": {name: record.body["certificate"][name] for name in ("kernel_hash", "instances")},
            "record": record.sha256,
        }
        for record in ledger.records(tag, "promotion")
    ]
    simulated = any(record.body.get("simulated") for record in ledger.records(tag, "campaign"))
    return {"simulated": simulated, "attempts": attempts} if attempts else None


def as_mapping(record: Record) -> dict[str, Any]:
    """A ledger record as the mapping that the tuner reads, with `hash` = sha256 of its line."""
    return {**record.as_dict(), "hash": record.sha256}
