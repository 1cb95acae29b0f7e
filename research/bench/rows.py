"""Rows of `kernel-peers-<device>.json`: how they are made and told apart; how files are read, merged and written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from mjolnir.research.bench import result_file
from mjolnir.research.bench.points import Spot

SCHEMA = "mjolnir.bench/2"

WRONG = 1.0
"""An error of this many RMS of the output means another result, whatever formats a kernel computes in; such a row
is kept and compared with nothing."""

SPOT = ("heads_q", "heads_kv", "head_dim", "page_size", "q_len", "causal", "q_format", "lengths")
"""The fields that name a spot."""

HEAD_MAJOR, TOKEN_MAJOR = "BHN2D head-major", "BHN2D token-major"
"""The layouts of this kernel's rows."""

GRAPH, CHAIN = "graph", "chain"
"""How a row was timed: launches back to back, or as served, less the chain without the kernel."""

PRECISION = 3
"""Digits of a microsecond that are kept: nanoseconds."""

Row = Mapping[str, Any]


def make(
    kernel: str,
    spot: Spot,
    layout: str,
    samples: Sequence[float],
    error: float,
    timing: str = GRAPH,
    **facts: Any,
) -> dict[str, Any]:
    """A row.

    Args:
        kernel: the contender's name.
        spot: what was timed.
        layout: of the cache.
        samples: microseconds of one launch, one a replay; at least two.
        error: see `pool.Sets.error`.
        timing: `GRAPH` or `CHAIN`.
        facts: further members.
    """
    geometry = spot.geometry
    tenths = quantiles(samples, n=10)
    row = {
        "kernel": kernel, "heads_q": geometry.heads_q, "heads_kv": geometry.heads_kv, "head_dim": geometry.head_dim,
        "page_size": geometry.page_size, "q_len": geometry.q_len, "causal": geometry.causal,
        "q_format": geometry.q_format, "layout": layout,
        "batch": spot.batch, "context": spot.context, "lengths": spot.lengths, "timing": timing,
        "bytes": spot.kv_bytes, "us": round(median(samples), PRECISION), "us_p10": round(tenths[0], PRECISION),
        "us_p90": round(tenths[-1], PRECISION), "error": round(error, 6) if math.isfinite(error) else None,
    }  # fmt: skip
    return {**row, **facts, "samples": [round(value, PRECISION) for value in samples]}


def spot_of(row: Row) -> tuple[Any, ...]:
    """What names the spot of a row."""
    return tuple(row[name] for name in SPOT)


def identity(row: Row) -> tuple[Any, ...]:
    """What names a row: of two with the same name the newer one counts. A peer has one row, whichever its layout."""
    own = str(row["kernel"]).startswith("mjolnir")
    return row["kernel"], row["timing"], row["layout"] if own else "", *spot_of(row)


def name_of(row: Row) -> str:
    """As a person reads it: `fa3 32/8xd128,page=64,q=1 8x8192`; behind it what sets a row of ours apart."""
    more = [CHAIN] if row["timing"] == CHAIN else []
    if row["layout"] == TOKEN_MAJOR:
        more.append(row["layout"])
    return " ".join([row["kernel"], place_of(row), *more])


def place_of(row: Row) -> str:
    """A row's spot as `str(Spot)` has it."""
    heads = f"{row['heads_q']}/{row['heads_kv']}xd{row['head_dim']},page={row['page_size']},q={row['q_len']}"
    return f"{heads}{'' if row['causal'] else ',causal=no'} {row['lengths']}"


def is_wrong(row: Row) -> bool:
    """Whether the result was another than the right one."""
    return row["error"] is None or row["error"] >= WRONG


def merge(*parts: Sequence[Row]) -> list[Row]:
    """All rows, later ones in the place of earlier ones of the same name; sorted by spot, then kernel."""
    found: dict[tuple[Any, ...], Row] = {}
    for part in parts:
        found |= {identity(row): row for row in part}
    return sorted(found.values(), key=_order)


def _order(row: Row) -> tuple[Any, ...]:
    spot = (row["q_len"], row["head_dim"], row["heads_q"], -row["page_size"], row["q_format"])
    return *spot, row["batch"], row["context"], row["lengths"], row["kernel"], row["layout"], row["timing"]


def read(path: Path) -> dict[str, Any]:
    """A result file.

    Raises:
        UsageFailure: it cannot be read, or is none of this bench.
    """
    return result_file.read(path, SCHEMA, "this bench", _whole)


def _whole(data: Mapping[str, Any]) -> bool:
    rows = all(identity(row) and row["samples"] for row in data["rows"])
    return rows and all(part["device"] and part["date"] for part in data["taken"]["parts"])


def write(path: Path, data: Mapping[str, Any]) -> None:
    """Write a result file, one row or comparison a line, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.part")
    scratch.write_text(dumps(data), encoding="utf-8")
    scratch.replace(path)


def dumps(data: Mapping[str, Any]) -> str:
    """JSON with one element of each list a line, so that a row is a line of a diff."""
    members = []
    for name, value in data.items():
        if isinstance(value, list) and value:
            lines = ",\n".join(f"  {json.dumps(item, allow_nan=False)}" for item in value)
            members.append(f" {json.dumps(name)}: [\n{lines}\n ]")
        else:
            text = json.dumps(value, indent=1, allow_nan=False).replace("\n", "\n ")
            members.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(members) + "\n}\n"
