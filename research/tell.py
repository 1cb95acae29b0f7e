"""Progress of long work, for who waits."""

from __future__ import annotations

import sys


def tell(text: str) -> None:
    """Print a line to stderr, at once."""
    print(text, file=sys.stderr, flush=True)
