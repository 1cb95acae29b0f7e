"""`autoresearch why`: the story of a trial, of a bucket's decision, or of a row in force."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mjolnir.research import row_story, trial_story
from mjolnir.research.answer import Answer, Failure, UsageFailure
from mjolnir.research.pick import pick
from mjolnir.research.story import Part, text

if TYPE_CHECKING:
    from mjolnir.backend.table import Table
    from mjolnir.research.evidence import Evidence


def why(what: str, evidence: Evidence, tag: str) -> Answer:
    """The story of one trial (`42`) or of one bucket (`bucket=8`) of a campaign.

    Raises:
        UsageFailure: `what` is neither.
        Failure: there is no such tag, trial or bucket.
    """
    found = evidence.require(tag)
    match = re.fullmatch(r"(?:(bucket|batch)=)?(\d+)", what)
    if not match:
        raise UsageFailure(f"{what!r} is neither a trial's number nor bucket=<batch>, such as bucket=8")
    number = int(match.group(2))
    try:
        if match.group(1):
            return _answer({"tag": tag, "bucket": number}, row_story.of_bucket(found, number))
        return _answer({"tag": tag, "trial": number}, trial_story.of_trial(found, number))
    except LookupError as error:
        raise Failure(f"{tag}: {error.args[0]}") from error


def why_row(text_of_key: str, device: str | None, tables: Sequence[Table], evidence: Evidence) -> Answer:
    """The story of a row in force, as `pick` finds it.

    Raises:
        UsageFailure: no row fits, or several do.
    """
    table, row = pick(tables, text_of_key, device)
    return _answer({"table": table.name, "row": row.as_dict()}, row_story.of_row(table.name, row, evidence))


def _answer(facts: Mapping[str, Any], parts: Sequence[Part]) -> Answer:
    return Answer({**facts, "story": [part.as_dict() for part in parts]}, text(parts))
