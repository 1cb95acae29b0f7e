"""`ledger.tsv`: the trials at a glance, in the autoresearch convention.

One row a trial: commit, value (time over the default's; 0 when there is none, as the convention has it), status
(keep, discard or crash), description. Of a source experiment they are the commit of the change, time over its base's,
and what was changed and why. Then come columns of our own. It is made of records alone and costs no fsync:
rows lost in a crash are written again when the ledger is next opened for writing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from mjolnir.ledger.commits import knobs_of
from mjolnir.ledger.errors import RecordError
from mjolnir.ledger.live import last_lines, scan
from mjolnir.ledger.parsing import parse
from mjolnir.ledger.record import Record

NAME = "ledger.tsv"
COLUMNS = ("commit", "value", "status", "description", "tag", "trial", "bucket", "outcome", "time", "record")

_HEADER = "\t".join(COLUMNS) + "\n"
_CRASHES = frozenset({"compile-failed", "compile-timeout", "crashed", "hung", "infrastructure"})
_SHORT = 12


def tsv_text(rows: Iterable[tuple[Record, str]]) -> str:
    """The whole file for records and their commit ids; records of other kinds are left out."""
    return _HEADER + "".join(_row(record, commit) for record, commit in rows if record.kind == "trial")


def add_row(path: Path, record: Record, commit: str) -> None:
    """Append the row of `record`, with the header before the first one; does nothing for other kinds."""
    if record.kind != "trial":
        return
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    fd = os.open(path, flags, 0o666)
    try:
        row = _row(record, commit)
        os.write(fd, (row if os.fstat(fd).st_size else _HEADER + row).encode())
    finally:
        os.close(fd)


def is_current(path: Path, live: Path) -> bool:
    """True when the file's last row is that of the live file's last trial; looks at the ends alone."""
    wanted = next((record for record in map(_trial, last_lines(live)) if record is not None), None)
    if not path.exists():
        return wanted is None
    try:
        with path.open("rb") as file:
            whole = file.seek(0, os.SEEK_END) > 0 and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) == b"\n"
    except OSError:
        return False
    last = next(last_lines(path), b"").decode(errors="replace")
    return whole and (last + "\n" == _HEADER if wanted is None else last.endswith("\t" + wanted.sha256[:_SHORT]))


def mend(path: Path, live: Path, ids: Callable[[list[str]], Mapping[str, str]]) -> None:
    """Write the table anew where a crash or an import left it behind the live file; `ids` gives commits by hash."""
    if is_current(path, live):
        return
    trials = [record for _, _, line in scan(live) if (record := _trial(line)) is not None]
    commits = ids([record.sha256 for record in trials])
    replace(path, ((record, commits.get(record.sha256, "")) for record in trials))


def replace(path: Path, rows: Iterable[tuple[Record, str]]) -> None:
    """Write the file anew, at once: a reader sees the old one or the new one."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    draft.write_text(tsv_text(rows), encoding="utf-8", newline="\n")
    draft.replace(path)


def _trial(line: bytes) -> Record | None:
    # The cheap test first: most lines that are no trials need no parsing. Text in a body cannot hold a bare quote.
    if b'"kind":"trial"' not in line:
        return None
    try:
        record = parse(line)
    except RecordError:
        return None
    return record if record.kind == "trial" else None


def _row(record: Record, commit: str) -> str:
    body = record.content
    status = "crash" if body["status"] in _CRASHES else body.get("verdict") or "discard"
    ratio = body.get("ratio")
    value = f"{ratio:.6f}" if body["status"] == "measured" and isinstance(ratio, float | int) else "0.000000"
    source = body.get("source")
    tried = source if isinstance(source, Mapping) else {}
    what = str(tried.get("message") or "") or knobs_of(body)
    # Of an experiment that was measured the value says why it was not kept.
    reason = "" if tried and body["status"] == "measured" else str(body.get("reason") or "")
    description = " ".join(part for part in (what, reason) if part)
    bucket = body.get("bucket")
    cells = (
        str(tried.get("commit") or commit)[:_SHORT], value, status, description, record.tag, body["trial"],
        "" if bucket is None else bucket, body["status"], record.time, record.sha256[:_SHORT],
    )  # fmt: skip
    return "\t".join(" ".join(str(cell).split()) for cell in cells) + "\n"
