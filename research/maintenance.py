"""`mjolnir ledger`: rebuild the index, take in files, check what is there."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from mjolnir.research.answer import Answer, Exit, Failure, UsageFailure

if TYPE_CHECKING:
    from mjolnir.ledger import Ledger


def reindex(ledger: Ledger) -> Answer:
    """Rebuild the index from the live file and the refs."""
    count = ledger.reindex()
    return Answer({"records": count, "ledger": str(ledger.live)}, f"{count} records indexed from {ledger.live}")


def import_file(ledger: Ledger, path: Path) -> Answer:
    """Take the records of an exported or carried `ledger.jsonl` into this ledger; what is known stays as it is.

    Raises:
        UsageFailure: there is no such file.
        Failure: a line is malformed, or contradicts a record that is known.
    """
    from mjolnir.ledger import LedgerError

    if not path.is_file():
        raise UsageFailure(f"there is no file {path}")
    try:
        result = ledger.import_file(path)
        ledger.flush()
    except LedgerError as error:
        raise Failure(str(error)) from error
    data = {
        "file": str(path),
        "added": result.added,
        "known": result.known,
        "torn": result.torn,
        "ledger": str(ledger.live),
    }
    torn = "; its last line is torn and was left out" if result.torn else ""
    return Answer(data, f"{result.added} records added to {ledger.live}, {result.known} were there already{torn}")


def verify(ledger: Ledger) -> Answer:
    """Check schema and hash chain of every record; exit code 1 when something is wrong."""
    result = ledger.verify()
    problems = [asdict(problem) for problem in result.problems]
    data = {
        "ok": result.ok,
        "records": result.records,
        "writers": result.writers,
        "tags": result.tags,
        "problems": problems,
    }
    if result.ok:
        text = f"{ledger.live}: {result.records} records of {result.writers} writers in {result.tags} tags, all whole"
        return Answer(data, text)
    lines = [f"{problem.where}: {problem.what}" for problem in result.problems]
    return Answer(data, "\n".join([f"{len(lines)} problems in {ledger.live}", *lines]), Exit.FAILED)
