"""What becomes of a campaign that has ended: its rows written where that was asked for, and its findings told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mjolnir.research.answer import Answer, Failure, NotWrittenFailure
from mjolnir.research.promote import promote

if TYPE_CHECKING:
    from mjolnir.ledger import Ledger
    from mjolnir.research.request import Request
    from mjolnir.tuner.coordinator import Result


def told(request: Request, ledger: Ledger, records: Sequence[Mapping[str, Any]], result: Result) -> Answer:
    """The findings; an export that fails at the end costs its files and never the summary."""
    from mjolnir.research.findings import findings

    applied = _applied(request, ledger, records, result)
    try:
        return findings(request, ledger, records, result, applied)
    except Failure as failure:
        if request.export is None:
            raise
        told = findings(replace(request, export=None), ledger, records, result, applied)
        return _with_failure(told, failure)


def _with_failure(told: Answer, failure: Failure) -> Answer:
    from rich.console import Group

    view = Group(told.view, f"NOT exported: {failure}")
    return Answer({**told.data, "not_exported": str(failure)}, view, told.code or failure.code)


def _applied(
    request: Request, ledger: Ledger, records: Sequence[Mapping[str, Any]], result: Result
) -> Answer | NotWrittenFailure | None:
    """What `--promote` did: an answer, why the rows could not be written, or None when nothing was to be done."""
    if not request.promote or result.void or result.reason == "interrupted":
        return None
    try:
        return promote(records[0]["tag"], records, ledger, request.defaults)
    except NotWrittenFailure as failure:
        return failure
    except Failure as failure:
        return NotWrittenFailure(str(failure))
