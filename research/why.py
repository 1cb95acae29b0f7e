"""`autoresearch why`: the story of a trial, of a bucket's decision, or of a row in force."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjolnir.research import row_story, story, trial_story
from mjolnir.research.answer import Answer, Exit, Failure, UsageFailure, understood
from mjolnir.research.hints import command
from mjolnir.research.pick import NoRowFailure, pick
from mjolnir.research.removal import require_records
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
    with understood(tag):
        try:
            if match.group(1):
                resume = command(evidence.ledger, "autoresearch", "run", "--tag", tag, "--resume")
                return _answer({"tag": tag, "bucket": number}, row_story.of_bucket(found, number, resume))
            return _answer({"tag": tag, "trial": number}, trial_story.of_trial(found, number))
        except story.NoStory as error:
            require_records(evidence.ledger, tag)
            raise Failure(f"{tag}: {error}") from error


def why_row(
    text_of_key: str, device: str | None, tables: Sequence[Table], evidence: Evidence, scratch: Path | None = None
) -> Answer:
    """The story of a row in force, as `pick` finds it; exit code 1 when records that it cites are nowhere.

    Args:
        text_of_key: the row, as `pick` takes it.
        device: the device's name, or a part of it.
        tables: those in force.
        evidence: where records are looked for.
        scratch: the table that was named in the place of the user's.

    Raises:
        UsageFailure: no row fits, or several do.
    """
    try:
        table, row = pick(tables, text_of_key, device)
    except NoRowFailure as failure:
        batch = text_of_key if text_of_key.isdigit() else failure.batch
        raise UsageFailure(f"{failure}\n{_served_all_the_same(batch, device, scratch)}") from failure
    facts = {"table": table.name, "row": row.as_dict()}
    lost = row_story.lost_records(row, evidence)
    return _answer(facts, row_story.of_row(table.name, row, evidence), Exit.FAILED if lost else Exit.DONE)


def _served_all_the_same(batch: Any, device: str | None, scratch: Path | None) -> str:
    """What serves where there is no row, and the command that tells it."""
    given = {"--batch": batch, "--device": device, "--table": scratch}
    words = [str(word) for flag, value in given.items() if value is not None for word in (flag, value)]
    explain = shlex.join(["mjolnir", "defaults", "explain", *words])
    return f"without a row the built-in rule serves, or a row of a batch nearby; each step is told by: {explain}"


def _answer(facts: Mapping[str, Any], parts: Sequence[Part], code: Exit = Exit.DONE) -> Answer:
    return Answer({**facts, "story": [part.as_dict() for part in parts]}, text(parts), code)
