"""Reading a result file that a command wrote before."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mjolnir.research.answer import UsageFailure


def read(path: Path, schema: str, of: str, whole: Callable[[Mapping[str, Any]], object]) -> dict[str, Any]:
    """A result file.

    Args:
        path: the file.
        schema: that it has to have.
        of: whose results they are, for messages.
        whole: whether what is read has all that it needs; it may stumble over what is missing.

    Raises:
        UsageFailure: it cannot be read, or is none of these.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
        fits = data["schema"] == schema and whole(data)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageFailure(f"{path} cannot be read as results of {of}: {type(error).__name__}: {error}") from error
    if not fits:
        raise UsageFailure(f"{path} holds no results of {of}: its schema is {data['schema']!r}, not {schema!r}")
    return dict(data)
