"""`autoresearch note`: a remark about a campaign or one of its trials, kept as a record like everything else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mjolnir.research.answer import Answer, Failure, UsageFailure
from mjolnir.research.journal import as_mapping
from mjolnir.research.listing import find
from mjolnir.research.plain import plain
from mjolnir.research.removal import require_in_force

if TYPE_CHECKING:
    from mjolnir.ledger import Ledger

MOST = 4000
"""Characters of a note; what is longer belongs into a file."""


def note(ledger: Ledger, tag: str, words: Sequence[str]) -> Answer:
    """Record a note: `words` are its text, and before it, where it is about a trial, the trial's number.

    Raises:
        UsageFailure: there is no text, or too much, or the tag was removed.
        Failure: there is no such tag or trial.
    """
    from mjolnir.ledger import LedgerError

    number, text = _read(words)
    name = find(ledger, tag).tag
    require_in_force(ledger, name, "a note would be lost with it; note it under another tag")
    try:
        about = None if number is None else ledger.trial(name, number)
    except LedgerError as error:
        raise Failure(str(error)) from error
    body = {
        "text": text,
        "about": "" if about is None else f"trial {number}",
        "trial": number,
        "record": "" if about is None else about.sha256,
    }
    with ledger.writer(name) as writer:
        record = writer.append("note", body)
    subject = name if number is None else f"trial {number} of {name}"
    return Answer(as_mapping(record), f"noted about {subject} in {ledger.live}")


def notes(ledger: Ledger, tag: str, trial: int | None = None) -> list[dict[str, Any]]:
    """The notes of a tag in order, or those about one of its trials."""
    found = [(record, record.body) for record in ledger.records(tag, "note")]
    return [
        {"time": record.time, "trial": body.get("trial"), "text": str(body.get("text", ""))}
        for record, body in found
        if trial is None or body.get("trial") == trial
    ]


def note_lines(found: Sequence[dict[str, Any]]) -> list[str]:
    """Notes for a person; empty where there are none."""
    lines = []
    for entry in found:
        about = "" if entry["trial"] is None else f" on trial {entry['trial']}"
        lines.append(plain(f"Note{about}, {entry['time'][:16]}Z: {entry['text']}"))
    return ["", *lines] if lines else []


def _read(words: Sequence[str]) -> tuple[int | None, str]:
    first, *rest = words or ("",)
    number = int(first) if first.isascii() and first.isdigit() and len(first) < 19 else None
    text = " ".join(words if number is None else rest).strip()
    if not text:
        raise UsageFailure("a note needs a text: note TAG 'what is to be remembered', or note TAG 42 'about trial 42'")
    if len(text) > MOST:
        raise UsageFailure(f"the note has {len(text)} characters; {MOST} are kept at most")
    return number, text
