"""Commands to run next, as a message names them: they work where they are printed."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mjolnir.ledger import Ledger

SCRATCH = Path("scratch.json")
"""A scratch table that commands name where none was given."""


def command(ledger: Ledger, *words: object) -> str:
    """`mjolnir` and `words`, quoted for a shell, with `--ledger` where it was given."""
    place = ledger.place
    named = ("--ledger", place.folder) if place.origin == "--ledger" else ()
    return shlex.join(map(str, ("mjolnir", *words, *named)))
