"""The defaults that one server uses: read once in a process, and the same rows on all ranks of a tensor-parallel group.

Ranks that disagree would only differ in speed, and then the slowest would hold up the rest.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Sequence

from mjolnir.backend.lookup import Defaults
from mjolnir.kernel.sources import kernel_hash

log = logging.getLogger(__name__)

Gather = Callable[[str], Sequence[str]]
"""From this rank's value to those of all ranks, in their order."""

_known: dict[str, Defaults] = {}


def defaults(gather: Gather) -> Defaults:
    """The process's defaults; the first call reads the tables, and asks the other ranks for theirs.

    Raises:
        ValueError: an environment variable of a knob does not parse.
    """
    if "all" not in _known:
        _known["all"] = agree(Defaults.load(os.environ, kernel_hash=kernel_hash()), gather)
    return _known["all"]


def forget() -> None:
    """Read the tables anew at the next call; for tests."""
    _known.clear()


def agree(mine: Defaults, gather: Gather) -> Defaults:
    """These defaults, where all ranks have the same rows; else none, so that all use the built-in rule."""
    digests = gather(digest(mine))
    if len(set(digests)) == 1:
        return mine
    log.warning(
        "the ranks of this tensor-parallel group have different defaults tables (%s): all use the built-in rule; "
        "give them the same files",
        ", ".join(f"rank {rank}: {value[:12]}" for rank, value in enumerate(digests)),
    )
    return Defaults((), mine.overrides, mine.kernel_hash)


def digest(defaults: Defaults) -> str:
    """sha256 (hex) over the rows of all tables, in the order in which they are asked."""
    total = hashlib.sha256()
    for table in defaults.tables:
        total.update(table.render())
    return total.hexdigest()
