"""The seam between a campaign and the ledger. `research` hands a journal to the coordinator."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

Record = Mapping[str, Any]
"""One record, as a mapping: the keys of `mjolnir.record/1`, and `hash`."""


class Journal(Protocol):
    """The records of one tag.

    A record is a mapping with the keys of `mjolnir.record/1` (schema, kind, tag, writer, seq, lamport, prev, time,
    body). Beside them it has `hash`: the sha256, in hex, of the record's line as it stands in the ledger (without the
    line break). Certificates cite it.
    """

    def append(self, kind: str, body: Mapping[str, Any]) -> Record:
        """Append a record and return it; durable when this returns."""

    def history(self) -> Sequence[Record]:
        """Every record of the tag known so far, in order."""

    def elsewhere(self) -> Sequence[Record]:
        """The promotion records of other live campaigns; none for a replay."""


class MemoryJournal:
    """A journal that lives and dies with the process: for benchmarks of the tuner itself, and for trials without trace.

    Args:
        tag: the tag of its records.
        records: what is known already, in order.
    """

    def __init__(self, tag: str = "memory", records: Iterable[Record] = ()) -> None:
        self.tag = tag
        self.records: list[Record] = list(records)

    def append(self, kind: str, body: Mapping[str, Any]) -> Record:
        """See `Journal`; refuses what is not JSON, as a ledger does (TypeError, or ValueError for NaN)."""
        seq = len(self.records)
        record = {
            "schema": "mjolnir.record/1",
            "kind": kind,
            "tag": self.tag,
            "writer": "memory2222",
            "seq": seq,
            "lamport": seq + 1,
            "prev": self.records[-1]["hash"] if seq else "",
            "time": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "body": body,
        }
        line = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        kept = {**record, "hash": hashlib.sha256(line.encode()).hexdigest()}
        self.records.append(kept)
        return kept

    def history(self) -> Sequence[Record]:
        """See `Journal`."""
        return tuple(self.records)

    def elsewhere(self) -> Sequence[Record]:
        """See `Journal`; there are no other tags."""
        return ()
