"""What can be wrong with a ledger."""

from __future__ import annotations


class LedgerError(Exception):
    """Something of the ledger is wrong; the message says what, where, and what to do."""


class LedgerFull(LedgerError):
    """The disk is full: nothing was appended, and the file is as it was."""


class RecordError(LedgerError, ValueError):
    """Bytes that are no record, or values that cannot become one."""


class NewerRecord(RecordError):
    """A line of a schema that a newer Mjolnir wrote: nothing is wrong with it, but it cannot be read here."""
