"""`mjolnir defaults demote`: takes a row out of its table, with a record of who was demoted and why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjolnir.backend.lookup import user_path
from mjolnir.backend.table import Row, Table
from mjolnir.research.answer import Answer, NotWrittenFailure
from mjolnir.research.checkout import TABLE_PATH, Change, Checkout
from mjolnir.research.naming import Names, interval
from mjolnir.research.pick import pick
from mjolnir.research.promote import replace_file

if TYPE_CHECKING:
    from mjolnir.ledger import Ledger

NO_REASON = "no reason given"
UNKNOWN_TAG = "demoted"
"""The tag of demotions of rows that were never a campaign's."""


def demote(
    text: str,
    ledger: Ledger,
    *,
    device: str | None = None,
    reason: str = "",
    table: Path | None = None,
    start: Path | None = None,
) -> Answer:
    """Take a row out: of the table at `table`, else of the checkout that holds `start`, else of the user's table.

    The `demotion` record is written first, so that a row never goes without a trace; `defaults promote` passes over
    what was demoted since it was proven. A kernel that has changed since is no reason to refuse: it is one to demote.

    Args:
        text: the row, as `pick` takes it.
        ledger: where the record goes.
        device: a part of the device's name, where the batch alone is not enough.
        reason: one sentence.
        table: a table file.
        start: where to look for a checkout; None = the current folder.

    Raises:
        UsageFailure: no row fits, or several do.
        NotWrittenFailure: the row cannot be taken out now (see `Checkout.check`); the message says why.
    """
    checkout = None if table else Checkout.find(start or Path.cwd())
    if checkout:
        checkout.check()
        old, place = Table.parse(checkout.read(TABLE_PATH), TABLE_PATH), str(checkout.root / TABLE_PATH)
    else:
        path = table or user_path()
        old, place = Table.read(path, str(path)), str(path)
    _, row = pick([old], text, device)
    try:
        new = old.without(row.key)
    except ValueError as error:
        raise NotWrittenFailure(f"the row was not demoted: {error}") from error
    record = _record(ledger, row, reason or NO_REASON, TABLE_PATH if checkout else Path(place).name)
    if checkout:
        commits = checkout.commit([Change(new.render(), message(row, reason or NO_REASON))])
    else:
        commits = []
        _write(Path(place), new.render())
    data = {"row": row.as_dict(), "reason": reason or NO_REASON, "place": place, "commits": commits, "record": record}
    return Answer(data, _text(row, data))


def _record(ledger: Ledger, row: Row, reason: str, place: str) -> str:
    """Append the demotion record to the campaign that proved the row; its hash."""
    from mjolnir.ledger import RecordError, check_tag
    from mjolnir.research.bodies import process_environment

    tag = row.certificate.get("tag")
    try:
        tag = check_tag(tag) if isinstance(tag, str) else UNKNOWN_TAG
    except RecordError:
        tag = UNKNOWN_TAG
    body = {
        "key": row.key.as_dict(),
        "value": row.as_dict()["value"],
        "reason": reason,
        "table": place,
        "bucket": row.key.batch,
        "kernel_hash": row.kernel_hash,
        "records": list(row.certificate.get("records") or ()),
    }
    with ledger.writer(tag, process_environment()) as writer:
        return str(writer.append("demotion", body).sha256)


def message(row: Row, reason: str) -> str:
    """The commit message: what no longer serves, then why, then where the evidence was."""
    key = row.key
    setting = Names(key.geometry, key.hardware)(row.setting)
    subject = f"defaults: demote {key.device} {key.heads_q}/{key.heads_kv}xd{key.head_dim} batch {key.batch}: {setting}"
    trailers = [f"Tag: {row.certificate.get('tag')}", f"Kernel-Hash: {row.kernel_hash}"]
    return "\n".join([subject, "", f"{reason}.".replace("..", "."), "", f"Served {key}.", "", *trailers, ""])


def _write(path: Path, data: bytes) -> None:
    try:
        replace_file(path, data)
    except OSError as error:
        raise NotWrittenFailure(f"{path} could not be written: {error}") from error


def _text(row: Row, data: Mapping[str, Any]) -> str:
    setting = Names(row.key.geometry, row.key.hardware)(row.setting)
    lines = [
        f"demoted in {data['place']}: {row.key}",
        f"  was {setting}, {interval(row.certificate.get('ratio_default'))} of the built-in default's time",
        f"  because: {data['reason']}",
        f"  record {data['record']}",
        *(f"  commit {commit[:12]}" for commit in data["commits"]),
    ]
    return "\n".join(lines)
