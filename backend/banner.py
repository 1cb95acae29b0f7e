"""The hammer, once in a process's log."""

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

_shown = False


def show(log: logging.Logger, *, wanted: bool) -> None:
    """Log the hammer, if it is wanted and was not shown before."""
    global _shown
    if wanted and not _shown:
        _shown = True
        log.info("%s", HAMMER)
