"""Trials as flat rows, for pandas, CSV and whoever has neither the time nor the wish to walk a record."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

from mjolnir.ledger.record import Record

COLUMNS = (
    "tag", "trial", "time", "bucket", "status", "verdict", "ratio", "reason", "origin", "writer", "record", "commit",
)  # fmt: skip
"""The columns that every row has; behind them one by knob, under its name, then `ratio_<bucket>` by bucket."""

_BUCKET = re.compile("[0-9]{1,9}")


def rows(trials: Iterable[tuple[Record, str]]) -> list[dict[str, Any]]:
    """One flat row a trial, from records and their commit ids; all rows have the same columns, None where unknown.

    A knob that is called like one of `COLUMNS` is left out: the record has it.
    """
    found = [_row(record, commit) for record, commit in trials]
    knobs = sorted({name for _, setting, _ in found for name in setting} - set(COLUMNS))
    buckets = sorted({bucket for _, _, ratios in found for bucket in ratios})
    return [
        facts
        | {name: setting.get(name) for name in knobs}
        | {f"ratio_{bucket}": ratios.get(bucket) for bucket in buckets}
        for facts, setting, ratios in found
    ]


def dataframe(trials: Iterable[tuple[Record, str]]) -> Any:
    """`rows` as a `pandas.DataFrame`; times are of UTC, whole numbers that can lack are `Int64`.

    Raises:
        ImportError: pandas is not installed.
    """
    # By name, so that the room runs where there is no pandas, and nobody pays for it who does not ask.
    pandas = import_module("pandas")
    flat = rows(trials)
    frame = pandas.DataFrame(flat, columns=list(flat[0]) if flat else list(COLUMNS))
    frame["time"] = pandas.to_datetime(frame["time"], utc=True)
    # Where one is missing pandas would make fractions of whole numbers.
    whole = {name: "Int64" for name in frame.columns if _is_whole(name, [row[name] for row in flat])}
    return frame.astype(whole)


def _is_whole(name: str, values: Sequence[object]) -> bool:
    known = [value for value in values if value is not None]
    if name.startswith("ratio") or not (known or name in ("trial", "bucket")):
        return False
    return all(type(value) is int and abs(value) < 2**63 for value in known)


def _row(record: Record, commit: str) -> tuple[dict[str, Any], Mapping[str, Any], dict[int, Any]]:
    body = record.body
    setting, ratios, proposal = (body.get(name) for name in ("setting", "ratios", "proposal"))
    facts = {
        "tag": record.tag, "trial": body["trial"], "time": record.time, "bucket": body.get("bucket"),
        "status": body["status"], "verdict": body.get("verdict"), "ratio": body.get("ratio"),
        "reason": body.get("reason"), "origin": proposal.get("origin") if isinstance(proposal, Mapping) else None,
        "writer": record.writer, "record": record.sha256, "commit": commit,
    }  # fmt: skip
    by_bucket = ratios.items() if isinstance(ratios, Mapping) else ()
    return (
        facts,
        setting if isinstance(setting, Mapping) else {},
        {int(bucket): ratio for bucket, ratio in by_bucket if _BUCKET.fullmatch(bucket)},
    )
