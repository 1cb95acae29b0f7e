"""Text of records on its way to a terminal or a table: whoever wrote a record does not steer either."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_FORMULA = ("=", "+", "-", "@", "\t")


def plain(text: object) -> str:
    """`text` with a `?` for each control character that could move the cursor; tabs and line feeds stay."""
    return _CONTROL.sub("?", str(text))


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Rows as CSV with a header, without a line feed at the end. No text begins as a formula of a spreadsheet does."""
    page = StringIO()
    writer = csv.DictWriter(page, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(row.get(name)) for name in columns} for row in rows)
    return page.getvalue().rstrip("\n")


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = plain(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
