"""The ledger: every record of every campaign, durable, in git, and found again.

    from mjolnir import ledger

    with ledger.open("research") as book, book.writer("h200-decode8", {"driver": "580.95"}) as writer:
        writer.append("note", {"text": "first light", "about": ""})

The live file makes a record durable, the refs `refs/mjolnir/ledger/<tag>/<writer>` share it, the index finds it.
"""

from mjolnir.ledger.importer import Imported, read_file
from mjolnir.ledger.ledger import Ledger, open
from mjolnir.ledger.place import Place, locate
from mjolnir.ledger.record import (
    KINDS,
    SCHEMA,
    LedgerError,
    LedgerFull,
    Record,
    RecordError,
    check_tag,
    parse,
)
from mjolnir.ledger.summary import Best, TagSummary
from mjolnir.ledger.tsv import tsv_text
from mjolnir.ledger.verify import Problem, Verification
from mjolnir.ledger.writer import Writer

__all__ = [
    "KINDS",
    "SCHEMA",
    "Best",
    "Imported",
    "Ledger",
    "LedgerError",
    "LedgerFull",
    "Place",
    "Problem",
    "Record",
    "RecordError",
    "TagSummary",
    "Verification",
    "Writer",
    "check_tag",
    "locate",
    "open",
    "parse",
    "read_file",
    "tsv_text",
]
