"""`autoresearch show`: a campaign as a whole, or one of its trials in full."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

from mjolnir.kernel.knobs import Setting
from mjolnir.research.answer import Answer, Failure
from mjolnir.research.findings import overview
from mjolnir.research.journal import as_mapping
from mjolnir.research.listing import find
from mjolnir.research.naming import Names
from mjolnir.research.summary import summarize
from mjolnir.tuner.workload import Workload

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mjolnir.ledger import Ledger

LOG_LINES = 30
"""The end of a failed trial's log that a person is shown; JSON has all of it."""


def show(ledger: Ledger, tag: str | None, trial: int | None = None) -> Answer:
    """A campaign, or one trial of it.

    Raises:
        Failure: there is no such tag or trial.
    """
    name = find(ledger, tag).tag
    summary = campaign_summary(ledger, name)
    if trial is None:
        return Answer(summary, overview(summary))
    from mjolnir.ledger import LedgerError

    try:
        record = ledger.trial(name, trial)
    except LedgerError as error:
        raise Failure(str(error)) from error
    commit = ledger.commit(record)
    data = {**as_mapping(record), "commit": commit}
    return Answer(data, _trial_view(data, summary))


def campaign_summary(ledger: Ledger, tag: str) -> dict[str, Any]:
    """The summary of a tag.

    Raises:
        Failure: its records hold no campaign.
    """
    try:
        return summarize([as_mapping(record) for record in ledger.records(tag)])
    except ValueError as error:
        raise Failure(f"{tag}: {error}") from error


def _trial_view(record: Mapping[str, Any], summary: Mapping[str, Any]) -> RenderableType:
    from rich.console import Group

    body = record["body"]
    asked = "the campaign itself" if body["bucket"] is None else f"the search for batch {body['bucket']}"
    facts = [
        f"trial {body['trial']} of {record['tag']}: {body['status']}, {body['verdict']}",
        f"setting   {Names.of(summary)(body['setting'])}",
        f"resolved  {Setting.from_dict(body['resolved'])}",
        f"asked by  {asked}",
    ]
    if body["reason"]:
        facts.append(f"reason    {body['reason']}")
    if body["ratio"] is not None:
        facts.append(f"ratio     {body['ratio']:.4f} of the built-in default's time, over the whole workload")
    phases = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in body["phases"].items())
    facts += [f"phases    {phases}", f"binary    {body['binary'] or 'none'}", f"record    {record['hash']}"]
    facts.append(f"commit    {record['commit']}")
    parts: list[RenderableType] = ["\n".join(facts)]
    if body["timings"]:
        parts += ["", _points(body, summary)]
    if body["log"]:
        parts += ["", "\n".join(body["log"].splitlines()[-LOG_LINES:])]
    return Group(*parts)


def _points(body: Mapping[str, Any], summary: Mapping[str, Any]) -> RenderableType:
    from rich.table import Table

    points = Workload.from_dict(summary["workload"]).points
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
