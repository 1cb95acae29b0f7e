"""`autoresearch list`: the tags of a ledger, and `autoresearch status`: how one of them stands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjolnir.research import places
from mjolnir.research.answer import Answer, Failure, understood
from mjolnir.research.choosing import ALL, Filters, TagOrder
from mjolnir.research.hints import command
from mjolnir.research.naming import counted
from mjolnir.research.plain import csv_text, plain
from mjolnir.research.removal import removal, removal_lines
from mjolnir.research.stopping import is_running

if TYPE_CHECKING:
    from rich.table import Table

    from mjolnir.ledger import Ledger
    from mjolnir.ledger.summary import TagSummary
    from mjolnir.ledger.tombstone import Removal


COLUMNS = ("tag", "state", "records", "trials", "matching", "kept", "best", "first", "last", "ended", "resumable")
"""The columns of the CSV; `best` is the lowest ratio of any bucket, or of the one that is asked for, `matching` the
trials that the filters choose."""


def listing(ledger: Ledger, filters: Filters = ALL, order: TagOrder = TagOrder.LAST, as_csv: bool = False) -> Answer:
    """Every tag with its trials, its best ratio and whether it runs; with filters the tags that have such trials.

    Tags that were removed are left out unless they hold later records, and those that no campaign has, only the
    demotion of a row.

    Raises:
        UsageFailure: a filter that means nothing.
    """
    from mjolnir.ledger.tombstone import removals

    wanted = filters.wanted(ledger, None)
    matching = ledger.tally(wanted) if wanted else None
    gone = removals(ledger)
    tags = [tag_data(ledger, tag, gone.get(tag.tag)) for tag in _present(ledger)]
    if matching is not None:
        tags = [{**tag, "matching": matching[tag["tag"]]} for tag in tags if tag["tag"] in matching]
    bucket = filters.bucket
    tags.sort(key=lambda tag: _place(tag, order, bucket))
    data = {"ledger": str(ledger.live), "tags": tags}
    if as_csv:
        return Answer(data, csv_text([{**tag, "best": _best(tag, bucket)} for tag in tags], COLUMNS))
    if not tags:
        return Answer(data, _none_yet(ledger) if matching is None else f"no trial in {ledger.live} is like that")
    return Answer(data, _table(tags, bucket))


def _best(tag: Mapping[str, Any], bucket: int | None) -> float | None:
    """The lowest ratio that a tag found in a bucket, or in any."""
    found = {int(name): float(entry["ratio"]) for name, entry in tag["best"].items()}
    return min(found.values(), default=None) if bucket is None else found.get(bucket)


def _place(tag: Mapping[str, Any], order: TagOrder, bucket: int | None) -> tuple[Any, ...]:
    """Where a tag lies in a list; those that are equal keep the ledger's own order, by their latest activity."""
    match order:
        case TagOrder.LAST:
            return ()
        case TagOrder.TAG:
            return (tag["tag"],)
        case TagOrder.TRIALS:
            return (-tag["trials"], tag["tag"])
        case TagOrder.BEST:
            best = _best(tag, bucket)
            return (math.inf if best is None else best, tag["tag"])


def _table(tags: Sequence[Mapping[str, Any]], bucket: int | None) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    more = ("matching",) if "matching" in tags[0] else ()
    ratio = "best ratio" if bucket is None else f"best ratio, batch {bucket}"
    for title in ("tag", "state", "trials", *more, "kept", ratio, "last activity"):
        table.add_column(title, overflow="fold")
    for tag in tags:
        best = _best(tag, bucket)
        counts = [str(tag[name]) for name in ("trials", *more, "kept")]
        table.add_row(
            tag["tag"], plain(tag["state"]), *counts, "-" if best is None else f"{best:.3f}", tag["last"][:19] + "Z"
        )
    return table


def tag_data(ledger: Ledger, summary: TagSummary, gone: Removal | None) -> dict[str, Any]:
    """The facts of one tag, ready for JSON."""
    return {
        "tag": summary.tag,
        "state": _state(ledger, summary, gone),
        "records": summary.records,
        "trials": summary.trials,
        "kept": summary.kept,
        "statuses": dict(summary.statuses),
        "best": {str(bucket): {"ratio": best.ratio, "trial": best.trial} for bucket, best in summary.best.items()},
        "first": summary.first,
        "last": summary.last,
        "ended": summary.ended,
        "resumable": summary.resumable,
    }


def status(ledger: Ledger, tag: str | None = None) -> Answer:
    """How a campaign stands; without a tag the one with the latest activity.

    Raises:
        Failure: there is no such tag.
    """
    found = find(ledger, tag)
    with understood(found.tag):
        return _status(ledger, found)


def _status(ledger: Ledger, found: TagSummary) -> Answer:
    from rich.console import Group

    from mjolnir.ledger import tombstone
    from mjolnir.research.findings import bucket_table, effect_lines, tried
    from mjolnir.research.show import campaign_summary

    gone = removal(ledger, found.tag)
    data = tag_data(ledger, found, tombstone.removal(ledger, found.tag))
    summary = campaign_summary(ledger, data["tag"])
    head = f"{data['tag']}: {data['state']}, last record {data['last'][:19]}Z"
    if data["state"] == "interrupted":
        head += f"; go on with: {_resuming(ledger, data['tag'], summary['recording'])}"
    data |= {"buckets": summary["buckets"], "effects": summary["effects"], "removed": gone}
    said = removal_lines(ledger, found.tag, gone)
    return Answer(data, Group(head, *tried(summary), "", bucket_table(summary), *effect_lines(summary), *said))


def _resuming(ledger: Ledger, tag: str, recording: str | None) -> str:
    """The command that goes on; a recording from a folder has to be named, and records hold no folders."""
    from mjolnir.tuner.recording import packaged_names

    elsewhere = recording is not None and recording not in packaged_names()
    named = ("--recording", f"FOLDER-OF-{recording}") if elsewhere else ()
    return command(ledger, "autoresearch", "run", "--tag", tag, "--resume", *named)


def find(ledger: Ledger, tag: str | None) -> TagSummary:
    """The summary of `tag`, or of the tag with the latest activity.

    Raises:
        Failure: there is no such tag; the message lists some that exist.
    """
    known = ledger.tags() if tag is not None else _present(ledger)
    if tag is None and known:
        return known[-1]
    for summary in known:
        if summary.tag == tag:
            return summary
    if tag is not None and (exported := _exported(ledger, tag)):
        bring = command(ledger, "ledger", "import", exported)
        raise Failure(f"there is no tag {tag} in {ledger.live}, but an export of it; bring it in with: {bring}")
    if not known:
        raise Failure(_none_yet(ledger))
    names = ", ".join(summary.tag for summary in known[-5:])
    raise Failure(f"there is no tag {tag} in {ledger.live}; the latest are {names}")


def _exported(ledger: Ledger, tag: str) -> Path | None:
    """The records of an exported run with that name, where there is one."""
    from mjolnir.research.evidence import NAME, Evidence

    files = (folder / tag / NAME for folder in Evidence.of(ledger).sources)
    return next((file for file in files if file.is_file()), None)


def _present(ledger: Ledger) -> tuple[TagSummary, ...]:
    """The tags of campaigns that hold more than what was removed; any other tag is still found by its name.

    Demoting a row leaves a record under the row's tag, also where the campaign is in no record here.
    """
    from mjolnir.ledger.tombstone import hidden

    gone = hidden(ledger) | _demotions_only(ledger)
    return tuple(summary for summary in ledger.tags() if summary.tag not in gone)


def _demotions_only(ledger: Ledger) -> frozenset[str]:
    """The tags that hold demotions and nothing else."""
    tags = {record.tag for record in ledger.records(kind="demotion")}
    return frozenset(tag for tag in tags if all(record.kind == "demotion" for record in ledger.records(tag)))


def _none_yet(ledger: Ledger) -> str:
    return f"no campaigns yet in {ledger.live}; start one with: {command(ledger, 'autoresearch', 'run')}"


def _state(ledger: Ledger, summary: TagSummary, gone: Removal | None) -> str:
    if is_running(places.state_folder(ledger.folder), summary.tag):
        return "running"
    if gone:
        return f"removed, {counted(gone.later, 'later record')} here" if gone.later else "removed"
    if summary.ended in (None, "interrupted"):
        return "interrupted"
    return f"finished ({summary.ended})"
