"""`mjolnir defaults verify`: derives the certificate of every row again, from records alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjolnir.backend.table import Row, Table
from mjolnir.research.answer import Answer, Exit
from mjolnir.research.derive import Check, derive
from mjolnir.research.evidence import Evidence
from mjolnir.research.naming import interval

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True)
class Verified:
    """What became of one row.

    Attributes:
        table: the table that holds it.
        row: the row.
        checks: every claim that was looked at.
        places: where its records were found.
    """

    table: str
    row: Row
    checks: tuple[Check, ...]
    places: tuple[str, ...]

    @property
    def problem(self) -> str:
        """The first thing that does not hold; empty when everything does."""
        return next((f"{check.name}: {check.problem}" for check in self.checks if check.problem), "")

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "table": self.table,
            "key": self.row.key.as_dict(),
            "tag": self.row.certificate.get("tag"),
            "method": self.row.certificate.get("method"),
            "ok": not self.problem,
            "problem": self.problem,
            "checks": [check.as_dict() for check in self.checks],
            "places": list(self.places),
        }


def verify(tables: Sequence[Table], evidence: Evidence) -> Answer:
    """Derive every row of `tables` again; exit code 1 when one does not follow, or a table skips rows."""
    verified = [examined(table.name, row, evidence) for table in tables for row in table.rows]
    problems = [f"{table.name}: {problem}" for table in tables for problem in table.problems]
    failed = [entry for entry in verified if entry.problem]
    data = {
        "ok": not failed and not problems,
        "rows": [entry.as_dict() for entry in verified],
        "problems": problems,
    }
    return Answer(data, _view(verified, problems), Exit.DONE if data["ok"] else Exit.FAILED)


def tables_in(table: Path | None) -> list[Table]:
    """The table at `table`, else those in force."""
    from mjolnir.research.explain import load

    return [Table.read(table, str(table))] if table else list(load(None).tables)


def examined(table: str, row: Row, evidence: Evidence) -> Verified:
    """One row of the table of that name, derived again."""
    tag, cited = row.certificate.get("tag"), row.certificate.get("records")
    if not isinstance(tag, str) or not isinstance(cited, list) or not all(isinstance(entry, str) for entry in cited):
        return Verified(table, row, (Check("records", "the certificate names no tag, or cites no records"),), ())
    found = evidence.of_tag(tag)
    return Verified(table, row, tuple(derive(row, found)), found.where(cited))


def _ratio(ratio: Any) -> str:
    """The ratio in words, or as it stands in a row that somebody spoiled."""
    try:
        return interval(ratio)
    except (TypeError, ValueError):
        return str(ratio)


def _view(verified: Sequence[Verified], problems: Sequence[str]) -> RenderableType:
    from rich.console import Group
    from rich.table import Table as View

    view = View(box=None, pad_edge=False)
    for title in ("row", "of the default's time", "instances", "tag", "records", "outcome"):
        view.add_column(title, overflow="fold")
    for entry in verified:
        paper = entry.row.certificate
        cited = paper.get("records")
        view.add_row(
            f"{entry.row.key.device} batch <= {entry.row.key.batch}",
            _ratio(paper.get("ratio_default")),
            str(paper.get("instances")),
            str(paper.get("tag", "-")),
            str(len(cited)) if isinstance(cited, list) else "-",
            f"does NOT follow: {entry.problem}" if entry.problem else f"follows ({len(entry.checks)} checks)",
        )
    count = sum(not entry.problem for entry in verified)
    places = dict.fromkeys(place for entry in verified for place in entry.places)
    where = f"; records from {', '.join(places)}" if places else ""
    total = f"{count} of {len(verified)} rows follow from their records{where}"
    head: list[RenderableType] = [view, ""] if verified else []
    return Group(*head, total, *problems)
