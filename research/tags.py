"""The tag of a campaign: the one that was asked for, or a fresh one."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime

from mjolnir import ledger as ledgers
from mjolnir.research.answer import UsageFailure

ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"


def fresh_tag() -> str:
    """A tag that no other run has: the time in UTC and four random letters."""
    letters = "".join(secrets.choice(ALPHABET) for _ in range(4))
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{letters}"


def checked_tag(tag: str) -> str:
    """`tag`, which can be one.

    Raises:
        UsageFailure: it cannot; says why.
    """
    try:
        return ledgers.check_tag(tag)
    except ValueError as error:
        raise UsageFailure(str(error)) from error
