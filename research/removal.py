"""Campaigns that were removed: what is said of one, and what it is no longer taken for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mjolnir.research.answer import Failure, UsageFailure
from mjolnir.research.hints import command
from mjolnir.research.naming import counted
from mjolnir.research.plain import plain

if TYPE_CHECKING:
    from mjolnir.ledger import Ledger


def removal(ledger: Ledger, tag: str) -> dict[str, Any] | None:
    """When and why a tag was removed, and how many later records are here; None where it was not."""
    from mjolnir.ledger import tombstone

    gone = tombstone.removal(ledger, tag)
    if gone is None:
        return None
    return {"time": gone.stone.time, "reason": str(gone.stone.body.get("text", "")), "later": gone.later}


def removal_lines(ledger: Ledger, tag: str, gone: Mapping[str, Any] | None) -> list[str]:
    """A removal for a person; empty where there is none."""
    if gone is None:
        return []
    if gone["later"]:
        again = command(ledger, "ledger", "remove", tag)
        rest = f"{counted(gone['later'], 'record')} came later, for which it is kept; to remove all of it: {again}"
    else:
        rest = "its records stay until `ledger gc`"
    return ["", f"{_said(tag, gone)}; {rest}"]


def require_in_force(ledger: Ledger, tag: str, refused: str) -> None:
    """Refuse to go on with a tag that was removed.

    Args:
        ledger: holds it.
        tag: the campaign.
        refused: what does not happen, and what to do in its place.

    Raises:
        UsageFailure: it was removed; says when and why.
    """
    if gone := removal(ledger, tag):
        raise UsageFailure(f"{_said(tag, gone)}; {refused}")


def require_records(ledger: Ledger, tag: str) -> None:
    """Refuse a tag whose records were collected: only its tombstone is left.

    Raises:
        Failure: they were; says when and why.
    """
    gone = removal(ledger, tag)
    if gone and not ledger.records(tag, "campaign"):
        raise Failure(f"{_said(tag, gone)}; its records are gone from {ledger.live}")


def _said(tag: str, gone: Mapping[str, Any]) -> str:
    return f"{tag} was removed, {gone['time'][:16]}Z: {plain(gone['reason']) or 'no reason given'}"
