"""`autoresearch show` with filters: the trials of a campaign as a table, as JSON or as CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mjolnir.research.answer import Answer
from mjolnir.research.choosing import Filters, TrialOrder, statuses
from mjolnir.research.listing import find
from mjolnir.research.plain import csv_text, plain

if TYPE_CHECKING:
    from rich.table import Table

    from mjolnir.ledger import Ledger

MOST = 200
"""Lines of the table where no limit is given; JSON and CSV have all trials."""


def trials(
    ledger: Ledger, tag: str | None, filters: Filters, order: TrialOrder, limit: int | None, as_csv: bool
) -> Answer:
    """The trials that the filters choose, sorted; without a tag those of the one with the latest activity.

    Raises:
        UsageFailure: a filter that means nothing.
        Failure: there is no such tag.
    """
    from mjolnir.ledger import frame

    summary = find(ledger, tag)
    wanted = filters.wanted(ledger, summary.tag)
    found = ledger.trials(
        summary.tag, sort=order.value, limit=limit, status=wanted.status, bucket=wanted.bucket, knobs=wanted.knobs,
        since=wanted.since,
    )  # fmt: skip
    rows = frame.rows(ledger.with_commits(found))
    data = {"tag": summary.tag, "trials": rows, "of": summary.trials}
    if as_csv:
        return Answer(data, csv_text(rows, list(rows[0]) if rows else frame.COLUMNS))
    if not rows:
        ended = statuses(summary.statuses.items())
        return Answer(data, f"none of the {summary.trials} trials of {summary.tag} is like that; they ended: {ended}")
    changed = {row["record"]: record.body.get("changed") for row, record in zip(rows, found, strict=True)}
    return Answer(data, _view(rows, changed, wanted.bucket, summary.trials, limit))


def _view(
    rows: Sequence[Mapping[str, Any]], changed: Mapping[str, Any], bucket: int | None, every: int, limit: int | None
) -> Any:
    from rich.console import Group

    most = limit or MOST
    table = _table(rows[:most], changed, bucket)
    left = f", {len(rows) - most} of them not shown: --limit, --csv or --json has them" if len(rows) > most else ""
    return Group(table, "", f"{len(rows)} of {every} trials{left}")


def _table(rows: Sequence[Mapping[str, Any]], changed: Mapping[str, Any], bucket: int | None) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    column = "ratio" if bucket is None else f"ratio_{bucket}"
    for title in ("trial", "batch", "status", "verdict", column.replace("_", " "), "time", "setting or reason"):
        table.add_column(title, overflow="fold")
    for row in rows:
        ratio = row.get(column)
        what = row["reason"] or _assignments(changed[row["record"]])
        cells = (row["trial"], row["bucket"], row["status"], row["verdict"])
        shown = f"{ratio:.4f}" if isinstance(ratio, int | float) else "-"
        words = ["-" if cell is None else plain(cell) for cell in cells]
        table.add_row(*words, shown, row["time"][:19] + "Z", plain(what))
    return table


def _assignments(changed: object) -> str:
    if not isinstance(changed, Mapping):
        return ""
    return " ".join(f"{name}={value}" for name, value in changed.items()) or "the built-in default"
