"""The names of tags and writers."""

from __future__ import annotations

import re
import secrets

from mjolnir.ledger.errors import RecordError

_TAG = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))}


def new_writer() -> str:
    """Ten random base32 characters."""
    return "".join(secrets.choice("abcdefghijklmnopqrstuvwxyz234567") for _ in range(10))


def check_tag(tag: str) -> str:
    """Return `tag`, which serves as part of a ref, as a folder and as an argument.

    Raises:
        RecordError: it cannot serve as all three; says why.
    """
    problem = ""
    if not isinstance(tag, str) or not _TAG.fullmatch(tag):
        problem = "use 1 to 63 of a-z, 0-9, '.', '_' and '-', starting with a letter or a digit"
    elif ".." in tag:
        problem = "two dots in a row cannot be part of a git ref"
    elif tag.endswith((".", ".lock")):
        problem = "a git ref cannot end in '.' or '.lock'"
    elif tag.split(".")[0] in _DEVICES:
        problem = "Windows reserves that name"
    if problem:
        raise RecordError(f"{shown(tag)} is no tag: {problem}")
    return tag


def shown(value: object) -> str:
    """A value of a hostile line, short enough for a message."""
    text = repr(value)
    return text if len(text) < 100 else text[:100] + "..."
