"""`autoresearch show`: a campaign as a whole, or one of its trials in full."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from mjolnir.kernel.knobs import Setting
from mjolnir.research.answer import Answer, Failure, understood
from mjolnir.research.journal import as_mapping
from mjolnir.research.listing import find
from mjolnir.research.naming import Names
from mjolnir.research.note import note_lines, notes
from mjolnir.research.plain import plain
from mjolnir.research.removal import removal, removal_lines, require_records
from mjolnir.tuner.workload import Workload

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mjolnir.ledger import Ledger, Record

LOG_LINES = 30
"""The end of a failed trial's log that a person is shown; JSON has all of it."""


VERSION_OF = (
    "mjolnir.research.summary", "mjolnir.research.source.story", "mjolnir.research.effects",
    "mjolnir.tuner.effects", "mjolnir.tuner.additive", "mjolnir.tuner.statistics", "mjolnir.tuner.workload",
    "mjolnir.kernel.knobs", "mjolnir.kernel.geometry", "mjolnir.kernel.variant",
)  # fmt: skip
"""The code that a summary follows from; when it changes, remembered summaries are made anew."""

_BULK = ("correctness", "log")
"""Of a trial, what no summary looks at."""

_BULK_OF_REPLAYS = ("timings", "phases", "facts", *_BULK)
"""What most of a trial consists of, and what only the summary of a real device looks at."""


def show(ledger: Ledger, tag: str | None, trial: int | None = None) -> Answer:
    """A campaign, or one trial of it, with the notes about it.

    Raises:
        Failure: there is no such tag or trial.
    """
    name = find(ledger, tag).tag
    with understood(name):
        return _show_campaign(ledger, name) if trial is None else _show_trial(ledger, name, trial)


def _show_campaign(ledger: Ledger, name: str) -> Answer:
    from rich.console import Group

    from mjolnir.research.findings import overview

    summary = campaign_summary(ledger, name)
    found, gone = notes(ledger, name), removal(ledger, name)
    data = {**summary, "notes": found, "removed": gone}
    return Answer(data, Group(overview(summary), *note_lines(found), *removal_lines(ledger, name, gone)))


def _show_trial(ledger: Ledger, tag: str, number: int) -> Answer:
    from rich.console import Group

    from mjolnir.ledger import LedgerError

    require_records(ledger, tag)
    try:
        record = ledger.trial(tag, number)
    except LedgerError as error:
        raise Failure(str(error)) from error
    campaigns = ledger.records(tag, "campaign")
    if not campaigns:
        raise Failure(f"{tag}: these records hold no campaign: the run ended before its first record")
    found, gone = notes(ledger, tag, number), removal(ledger, tag)
    data = {
        **as_mapping(record),
        "commit": ledger.commit(record),
        "not_committed": ledger.git_note,
        "notes": found,
        "removed": gone,
    }
    view = _trial_view(data, campaigns[-1].body)
    return Answer(data, Group(view, *note_lines(found), *removal_lines(ledger, tag, gone)))


def campaign_summary(ledger: Ledger, tag: str) -> dict[str, Any]:
    """The summary of a tag, remembered in the index until there are other records.

    Raises:
        Failure: its records hold no campaign.
    """
    require_records(ledger, tag)
    try:
        return ledger.derived(tag, "summary", _version(), _summarize)
    except ValueError as error:
        raise Failure(f"{tag}: {error}") from error


def _summarize(records: Iterable[Record]) -> dict[str, Any]:
    from mjolnir.research.summary import summarize

    return summarize(list(_brief(records)))


def _brief(records: Iterable[Record]) -> Iterator[Mapping[str, Any]]:
    """The records without their bulk; that of the campaign comes before its trials."""
    bulk: tuple[str, ...] = _BULK
    for record in records:
        body = record.body
        if record.kind == "campaign":
            bulk = _BULK_OF_REPLAYS if body.get("simulated") else _BULK
        if record.kind == "trial":
            body = {name: value for name, value in body.items() if name not in bulk}
        yield {"kind": record.kind, "tag": record.tag, "body": body}


def _version() -> str:
    digest = hashlib.sha256()
    for name in VERSION_OF:
        spec = find_spec(name)
        digest.update(b"" if spec is None or spec.origin is None else Path(spec.origin).read_bytes())
    return digest.hexdigest()[:16]


def _trial_view(record: Mapping[str, Any], campaign: Mapping[str, Any]) -> RenderableType:
    from rich.console import Group

    body = record["body"]
    if "source" in body:
        from mjolnir.research.source import story

        return story.view(record)
    asked = "the campaign itself" if body["bucket"] is None else f"the search for batch {body['bucket']}"
    facts = [
        f"trial {body['trial']} of {record['tag']}: {body['status']}, {body['verdict']}",
        f"setting   {Names.of(campaign)(body['setting'])}",
        f"resolved  {Setting.from_dict(body['resolved'])}",
        f"asked by  {asked}",
    ]
    if body["reason"]:
        facts.append(plain(f"reason    {body['reason']}"))
    if body["ratio"] is not None:
        facts.append(f"ratio     {body['ratio']:.4f} of the built-in default's time, over the whole workload")
    phases = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in body["phases"].items())
    facts += [f"phases    {phases}", f"binary    {body['binary'] or 'none'}", f"record    {record['hash']}"]
    facts.append(f"commit    {_commit(record)}")
    parts: list[RenderableType] = ["\n".join(facts)]
    if body["timings"]:
        parts += ["", _points(body, campaign)]
    if log := body.get("log"):
        lines = plain(log).splitlines()
        left = f", its last {LOG_LINES} of {len(lines)} lines; --json has all" if len(lines) > LOG_LINES else ""
        parts += ["", f"log{left}:", *(f"  {line}" for line in lines[-LOG_LINES:])]
    return Group(*parts)


def _commit(record: Mapping[str, Any]) -> str:
    """The id of a trial's commit, or why git has none; the record is the same either way."""
    if record["not_committed"]:
        return plain(f"none: trials are not kept as git commits: {record['not_committed']}")
    return record["commit"] or "none: a record before it is missing"


def _points(body: Mapping[str, Any], campaign: Mapping[str, Any]) -> RenderableType:
    from rich.table import Table

    points = Workload.from_dict(campaign["workload"]).points
    table = Table(box=None, pad_edge=False)
    for title in ("point", "ratio", "default us", "this us", "chain us", "rounds"):
        table.add_column(title, justify="left" if title == "point" else "right")
    for timing, ratio in zip(body["timings"], body["point_ratios"], strict=False):
        baseline, empty = timing["baseline"], median(timing["empty"])
        candidate = [base + more for base, more in zip(baseline, timing["difference"], strict=True)]
        times = (median(baseline) - empty, median(candidate) - empty, empty)
        cells = [f"{nanoseconds / 1000:.2f}" for nanoseconds in times]
        table.add_row(points[timing["point"]].name, f"{ratio:.4f}", *cells, str(len(baseline)))
    return table
