"""Lines of the start-up log: each once in a process, however often vLLM builds what they are about."""

from __future__ import annotations

import logging

HAMMER = r"""
      .----------.
      |  MJOLNIR |===.
      '----------'   |
            ||
            ||
            ||
            ()
"""

_said: set[str] = set()


def once(log: logging.Logger, text: str, level: int = logging.INFO) -> None:
    """Log `text`, if it was not logged before."""
    if text not in _said:
        _said.add(text)
        log.log(level, "%s", text)


def plain(text: object) -> str:
    """Text of a table on its way to the log: what would break a line or steer a terminal is a `?`."""
    return "".join(character if character.isprintable() else "?" for character in str(text))


def banner(log: logging.Logger, *, wanted: bool) -> None:
    """The hammer, if it is wanted."""
    if wanted:
        once(log, HAMMER)


def forget() -> None:
    """Say everything again; for tests."""
    _said.clear()
