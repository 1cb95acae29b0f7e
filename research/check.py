"""`mjolnir defaults check`: which rows are stale, cannot run, or lack evidence, and how much error budget is spent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mjolnir.backend.table import Row, Table
from mjolnir.research.answer import Answer, Exit

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mjolnir.research.evidence import Evidence


def check(tables: Sequence[Table], kernel_hash: str, evidence: Evidence) -> Answer:
    """Look at every row; exit code 1 when one cannot serve or lacks evidence. A stale row fits, and serves.

    Rows that cannot run, on their own device and with this kernel, are skipped by the reader: they are the problems.

    Args:
        tables: the tables.
        kernel_hash: of the kernel sources in use.
        evidence: where cited records are looked for.
    """
    rows = [_row(table.name, row, kernel_hash, evidence) for table in tables for row in table.rows]
    problems = [f"{table.name}: {problem}" for table in tables for problem in table.problems]
    spent = {table.name: _spent(table.rows) for table in tables}
    lacking = [entry for entry in rows if entry["missing"] or entry["lost_records"]]
    data = {
        "ok": not problems and not lacking,
        "kernel_hash": kernel_hash,
        "rows": rows,
        "stale": sum(entry["stale"] for entry in rows),
        "problems": problems,
        "alpha": spent,
    }
    return Answer(data, _view(data), Exit.DONE if data["ok"] else Exit.FAILED)


def _row(table: str, row: Row, kernel_hash: str, evidence: Evidence) -> dict[str, Any]:
    paper = row.certificate
    tag, cited = paper.get("tag"), [entry for entry in paper.get("records") or () if isinstance(entry, str)]
    found = evidence.of_tag(tag) if isinstance(tag, str) else None
    known = found.places if found else {}
    campaigns = [record["body"] for record in found.records if record["kind"] == "campaign"] if found else []
    return {
        "table": table,
        "key": row.key.as_dict(),
        "name": str(row.key),
        "stale": row.kernel_hash != kernel_hash,
        "kernel_hash": row.kernel_hash,
        "missing": list(row.missing_evidence()),
        "lost_records": sum(sha256 not in known for sha256 in cited),
        "records": len(cited),
        "alpha": paper.get("alpha"),
        "attempt": paper.get("attempt"),
        "replayed": any(bool(campaign.get("simulated")) for campaign in campaigns),
    }


def _spent(rows: Sequence[Row]) -> float:
    """The sum of what the rows spent of the error budget: at most this many of them are expected to be false."""
    return sum(float(alpha) for row in rows if isinstance(alpha := row.certificate.get("alpha"), int | float))


def _view(data: dict[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.table import Table as View

    view = View(box=None, pad_edge=False)
    for title in ("table", "row (batch)", "kernel", "evidence", "alpha", "attempt"):
        view.add_column(title, overflow="fold")
    for entry in data["rows"]:
        key = entry["key"]
        view.add_row(
            entry["table"],
            f"{key['device']} {key['heads_q']}/{key['heads_kv']}xd{key['head_dim']} page {key['page_size']} "
            f"batch <= {key['batch']}",
            f"stale ({entry['kernel_hash'][:12] or 'not told'})" if entry["stale"] else "current",
            _evidence(entry),
            "-" if entry["alpha"] is None else f"{entry['alpha']:.2g}",
            f"{entry['attempt']}{', a replay' if entry['replayed'] else ''}",
        )
    stale = f"{data['stale']} rows were measured with other kernel sources than {data['kernel_hash'][:12]}"
    notes = [f"{stale}; they fit and still serve: tune again to renew them"] if data["stale"] else []
    notes += [
        f"alpha spent by the {name}: {spent:.3g}: at most that many false rows are expected in it"
        for name, spent in data["alpha"].items()
        if spent
    ]
    if any(entry["replayed"] for entry in data["rows"]):
        notes.append(
            "a replay proves nothing of a device: it is no attempt on a row, and begins as the first each time"
        )
    head: list[RenderableType] = [view, ""] if data["rows"] else ["no rows; everything is served by the built-in rule"]
    return Group(*head, *notes, *data["problems"])


def _evidence(entry: dict[str, Any]) -> str:
    if entry["missing"]:
        return f"lacks {', '.join(entry['missing'])}"
    if entry["lost_records"]:
        return f"{entry['lost_records']} of {entry['records']} records are nowhere"
    return f"{entry['records']} records"
