"""`mjolnir ledger`: rebuild the index, take in files, check what is there."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from mjolnir.research.answer import Answer, Exit, Failure, UsageFailure
from mjolnir.research.naming import counted

if TYPE_CHECKING:
    from mjolnir.ledger import Ledger


def reindex(ledger: Ledger) -> Answer:
    """Rebuild the index from the live file and the refs."""
    count = ledger.reindex()
    data = {"records": count, "ledger": str(ledger.live)}
    return Answer(data, f"{counted(count, 'record')} indexed from {_source(ledger)}")


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
    added = f"{counted(result.added, 'record')} added to {ledger.live}"
    return Answer(data, f"{added}, {result.known} there already{torn}")


def _source(ledger: Ledger) -> str:
    """Where the records are: the live file, the refs of the repository, or both."""
    sources = [str(ledger.live)] if ledger.live.exists() else []
    if ledger.repository:
        sources.append(f"the ledger refs of {ledger.repository}")
    return " and ".join(sources) or f"{ledger.live}, which is not there"


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
        kinds = (result.records, "record"), (result.writers, "writer"), (result.tags, "tag")
        records, writers, tags = (counted(number, noun) for number, noun in kinds)
        return Answer(data, f"{_source(ledger)}: {records} of {writers} in {tags}, all whole")
    lines = [f"{problem.where}: {problem.what}" for problem in result.problems]
    return Answer(data, "\n".join([f"{counted(len(lines), 'problem')} in {_source(ledger)}", *lines]), Exit.FAILED)
