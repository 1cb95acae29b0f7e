"""`mjolnir ledger`: rebuild the index, take in files, check what is there and repair it, move it, remove a tag."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjolnir.research import places
from mjolnir.research.answer import Answer, Exit, Failure, UsageFailure
from mjolnir.research.hints import command
from mjolnir.research.naming import counted
from mjolnir.research.stopping import is_running

if TYPE_CHECKING:
    from mjolnir.backend.table import Table
    from mjolnir.ledger import Ledger, Problem

MOST_SHOWN = 20
"""So many of the problems a person is shown; JSON has all."""


def reindex(ledger: Ledger) -> Answer:
    """Rebuild the index from the live file and the refs."""
    count = ledger.reindex()
    data = {"records": count, "ledger": str(ledger.live)}
    return Answer(data, f"{counted(count, 'record')} indexed from {_source(ledger)}")


def import_file(ledger: Ledger, path: Path) -> Answer:
    """Take the records of an exported or carried `ledger.jsonl` into this ledger; what is known stays as it is.

    Raises:
        UsageFailure: there is no such file, or it is a folder or a pipe.
        Failure: a line is malformed, or contradicts a record that is known.
    """
    if path.is_dir():
        raise UsageFailure(f"{path} is a folder; give the file of an exported run: {path / 'ledger.jsonl'}")
    if not path.is_file():
        raise UsageFailure(f"{path} is no regular file" if path.exists() else f"there is no file {path}")
    with _in_words():
        result = ledger.import_file(path)
        ledger.flush()
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


def verify(ledger: Ledger, tables: Sequence[Table] = ()) -> Answer:
    """Check schema, hash chains, live file against git against index, and certificates against records.

    Rows of `tables` count when the ledger holds their campaign. Exit code 1 when something is wrong; the first thing
    that is comes first.
    """
    result = ledger.verify()
    problems = [*result.problems, *_certificates(ledger, tables)]
    data = {
        "ok": not problems,
        "records": result.records,
        "writers": result.writers,
        "tags": result.tags,
        "unflushed": result.unflushed,
        "problems": [asdict(problem) for problem in problems],
    }
    if problems:
        head = f"{counted(len(problems), 'problem')} in {_source(ledger)}; the first one:"
        return Answer(data, "\n".join((head, *_told(problems))), Exit.FAILED)
    kinds = (result.records, "record"), (result.writers, "writer"), (result.tags, "tag")
    records, writers, tags = (counted(number, noun) for number, noun in kinds)
    later = f"; {result.unflushed} of them are not in git yet" if result.unflushed else ""
    return Answer(data, f"{_source(ledger)}: {records} of {writers} in {tags}, all whole{later}")


def repair(ledger: Ledger, dry_run: bool = False) -> Answer:
    """Keep what is provably whole and set the rest aside; exit code 1 when something is wrong and `dry_run` left it.

    Raises:
        Failure: the live file cannot be written, or a newer Mjolnir wrote some of it.
    """
    from mjolnir.ledger.repair import repair as mend

    with _in_words():
        done = mend(ledger, dry_run=dry_run)
    problems = [*done.lines, *done.refs]
    data = {
        "needed": done.needed,
        "dry_run": dry_run,
        "kept": done.kept,
        "lines": [asdict(problem) for problem in done.lines],
        "refs": [asdict(problem) for problem in done.refs],
        "file": str(done.file) if done.file else None,
        "note": done.note,
    }
    note = [f"git was left out: {done.note}"] if done.note else []
    if not done.needed:
        return Answer(data, "\n".join([f"{_source(ledger)}: nothing to repair", *note]))
    verb = "would be set aside" if dry_run else "set aside"
    lines = f"{counted(len(done.lines), 'line')} and {counted(len(done.refs), 'ref')} {verb}, {done.kept} lines kept"
    where = [f"the lines lie in {done.file}"] if done.file else []
    if done.refs and not dry_run:
        where.append("the refs are kept under refs/mjolnir/aside")
    text = "\n".join([lines, *_told(problems), *where, *note])
    return Answer(data, text, Exit.FAILED if dry_run else Exit.DONE)


def remove(ledger: Ledger, tag: str, reason: str, tables: Sequence[Table] = ()) -> Answer:
    """Put a tombstone on a tag; its records stay until they are collected.

    Raises:
        UsageFailure: a run holds the tag.
        Failure: there is no such tag, or a row in force rests on it.
    """
    from mjolnir.ledger import tombstone
    from mjolnir.research.bodies import process_environment
    from mjolnir.research.journal import remains_of

    _require_free(ledger, [tag], tables)
    with _in_words():
        record = tombstone.bury(ledger, tag, reason, process_environment(), remains_of(ledger, tag))
    data = {"tag": tag, "record": record.sha256, "writers": len(record.body["writers"])}
    hint = command(ledger, "ledger", "gc")
    return Answer(data, f"{tag} is marked as removed; its records stay until you run: {hint}")


def collect(ledger: Ledger, dry_run: bool = False, tables: Sequence[Table] = ()) -> Answer:
    """Delete, for good, the records of removed tags from this ledger; exports and other clones keep theirs.

    Raises:
        UsageFailure: a run holds such a tag.
        Failure: a row in force rests on such a tag, or the ledger cannot be written.
    """
    from mjolnir.ledger import tombstone

    with _in_words():
        planned = tombstone.collect(ledger, dry_run=True)
        _require_free(ledger, planned.records, tables)
        done = planned if dry_run else tombstone.collect(ledger)
    data = {"dry_run": dry_run, **asdict(done)}
    kept = [
        f"{tag} was kept: {counted(later, 'record')} of it came after the removal; "
        f"to remove them too: {command(ledger, 'ledger', 'remove', tag)}"
        for tag, later in done.kept.items()
    ]
    if not done.records:
        return Answer(data, "\n".join(["nothing to collect: no removed tag has records here", *kept]))
    verb = "would be deleted" if dry_run else "deleted"
    tags = ", ".join(f"{tag} ({counted(count, 'record')})" for tag, count in done.records.items())
    return Answer(data, "\n".join([f"{tags} {verb}: {done.bytes} bytes of {ledger.live}", *kept]))


def push(ledger: Ledger, remote: str) -> Answer:
    """Send the ledger refs to a remote.

    Raises:
        Failure: no repository or no such remote, or it has records that are not here.
    """
    from mjolnir.ledger import remotes

    with _in_words():
        done = remotes.push(ledger, remote)
    refs = f"{done.new} new, {done.moved} moved on, {done.known} there already"
    return Answer({"remote": remote, **asdict(done)}, f"{remote}: ledger refs {refs}")


def fetch(ledger: Ledger, remote: str) -> Answer:
    """Take what a remote has and this ledger has not; exit code 1 when some of it is not whole.

    Raises:
        Failure: no repository or no such remote.
    """
    from mjolnir.ledger import remotes

    with _in_words():
        done = remotes.fetch(ledger, remote)
    gone = f", {done.buried} left out as removed" if done.buried else ""
    if done.later:
        gone += f" ({counted(done.later, 'record')} of them later than the removal)"
    head = f"{remote}: {counted(done.records, 'new record')} of {counted(done.writers, 'writer')}"
    lines = [f"{head}, {counted(done.known, 'ref')} with nothing new{gone}"]
    if done.problems:
        lines += [f"{counted(len(done.problems), 'ref')} not taken:", *_told(done.problems)]
    data = {"remote": remote, **asdict(done)}
    return Answer(data, "\n".join(lines), Exit.FAILED if done.problems else Exit.DONE)


def _source(ledger: Ledger) -> str:
    """Where the records are: the live file, the refs of the repository, or both."""
    sources = [str(ledger.live)] if ledger.live.exists() else []
    if ledger.repository:
        sources.append(f"the ledger refs of {ledger.repository}")
    return " and ".join(sources) or f"{ledger.live}, which is not there"


def _told(problems: Sequence[Problem]) -> list[str]:
    lines = [str(problem) for problem in problems[:MOST_SHOWN]]
    more = len(problems) - len(lines)
    return [*lines, f"and {more} more; --json lists all"] if more else lines


@contextmanager
def _in_words() -> Iterator[None]:
    from mjolnir.ledger import LedgerError

    try:
        yield
    except LedgerError as error:
        raise Failure(str(error)) from error


def _certificates(ledger: Ledger, tables: Sequence[Table]) -> Iterator[Problem]:
    """Promotions that cite records which are not here, and rows that do not follow from those that are."""
    from mjolnir.ledger import Problem
    from mjolnir.ledger.tombstone import removals

    hashes: dict[str, set[str]] = {}
    remedy = "import the file that holds it, or run `mjolnir ledger fetch`"
    gone = removals(ledger)
    for record in ledger.records(kind="promotion"):
        if record.tag in gone:  # nothing is promoted from it any more, and its evidence may be collected elsewhere
            continue
        if record.tag not in hashes:
            hashes[record.tag] = {every.sha256 for every in ledger.records(record.tag)}
        for digest in _cited(record.body.get("certificate")):
            if digest not in hashes[record.tag]:
                where = f"promotion record {record.seq} of writer {record.writer} in {record.tag}"
                yield Problem(where, f"its certificate cites record {digest[:12]}, which is not here", remedy)
                break
    yield from _rows(ledger, tables)


def _cited(certificate: object) -> list[str]:
    cited = certificate.get("records") if isinstance(certificate, Mapping) else None
    return [digest for digest in cited if isinstance(digest, str)] if isinstance(cited, list) else []


def _rows(ledger: Ledger, tables: Sequence[Table]) -> Iterator[Problem]:
    """Rows of campaigns that this ledger holds, where they do not follow from the records."""
    from mjolnir.backend.table import Table
    from mjolnir.ledger import Problem
    from mjolnir.research.evidence import Evidence
    from mjolnir.research.verify_rows import verify as verify_rows

    tags = {summary.tag for summary in ledger.tags() if summary.trials}
    mine = [Table(table.name, tuple(row for row in table.rows if _tag(row) in tags)) for table in tables]
    if not any(table.rows for table in mine):
        return
    for entry in verify_rows(mine, Evidence.of(ledger)).data["rows"]:
        if not entry["ok"]:
            where = f"{entry['table']}, {entry['key']['device']} batch {entry['key']['batch']}"
            what = f"the row does not follow from the records of {entry['tag']}: {entry['problem']}"
            yield Problem(where, what, "run `mjolnir defaults verify` for all its checks, and demote the row")


def _tag(row: Any) -> object:
    return row.certificate.get("tag")


def _require_free(ledger: Ledger, tags: Iterable[str], tables: Sequence[Table]) -> None:
    """Refuse to remove what is in use: a tag that runs, or one that a row in force rests on."""
    for tag in tags:
        if is_running(places.state_folder(ledger.folder), tag):
            raise UsageFailure(f"a run holds {tag}; stop it first: {command(ledger, 'autoresearch', 'stop', tag)}")
        for table in tables:
            if row := next((row for row in table.rows if _tag(row) == tag), None):
                raise Failure(
                    f"a row of the {table.name} (batch {row.key.batch}) rests on {tag}: its certificate could not be "
                    "checked any more; demote the row first, or export the tag and keep the export"
                )
