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
        """The promotion records of other tags, those of replays for a replay and the others for a live campaign."""
        campaigns = self._ledger.records(kind="campaign")
        simulated = {record.tag for record in campaigns if record.body.get("simulated")}
        alike = self._tag in simulated
        found = self._ledger.records(kind="promotion")
        return [as_mapping(r) for r in found if r.tag != self._tag and (r.tag in simulated) == alike]


def as_mapping(record: Record) -> dict[str, Any]:
    """A ledger record as the mapping that the tuner reads, with `hash` = sha256 of its line."""
    return {**record.as_dict(), "hash": record.sha256}
