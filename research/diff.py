"""`mjolnir defaults diff`: what differs between two tables, or two revisions of the packaged one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjolnir.backend.lookup import user_path
from mjolnir.backend.table import Row, Table, packaged_path
from mjolnir.research.answer import Answer, Failure, UsageFailure
from mjolnir.research.checkout import TABLE_PATH, Checkout
from mjolnir.research.naming import Names, interval

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True)
class Difference:
    """One key whose rows differ.

    Attributes:
        kind: "added", "removed", "changed" (another engine or setting) or "evidence" (the certificate alone).
        old, new: the rows; None where there is none.
    """

    kind: str
    old: Row | None
    new: Row | None

    @property
    def row(self) -> Row:
        """The newer row that there is."""
        row = self.new or self.old
        assert row is not None
        return row

    def as_dict(self) -> dict[str, Any]:
        """JSON form: settings, and their ratios to the built-in default."""
        return {
            "kind": self.kind,
            "key": self.row.key.as_dict(),
            "old": _side(self.old),
            "new": _side(self.new),
            "ratio_incumbent": self.new.certificate.get("ratio_incumbent") if self.new else None,
        }


def diff(first: str | None, second: str | None, start: Path | None = None) -> Answer:
    """What `second` has that `first` has not, and the other way round.

    Args:
        first: a table file or a git revision; None = HEAD in a checkout, else the packaged table.
        second: the same; None = the packaged table of the checkout's work tree, else the user's table.
        start: where to look for a checkout; None = the current folder.

    Raises:
        UsageFailure: neither a file nor a revision that has the table.
        Failure: a table that is malformed.
    """
    checkout = Checkout.find(start or Path.cwd())
    if first is None:
        old = _revision(checkout, "HEAD") if checkout else Table.read(packaged_path(), "packaged table")
    else:
        old = _table(checkout, first)
    if second is None:
        path = checkout.root / TABLE_PATH if checkout else user_path()
        new = Table.read(path, TABLE_PATH if checkout else str(path), missing_ok=not checkout)
    else:
        new = _table(checkout, second)
    for table in (old, new):
        if table.problems:
            raise Failure(f"{table.name}: {table.problems[0]}; nothing can be said of rows that do not parse")
    found = differences(old, new)
    data = {"old": old.name, "new": new.name, "differences": [entry.as_dict() for entry in found]}
    return Answer(data, _view(old.name, new.name, found))


def differences(old: Table, new: Table) -> list[Difference]:
    """The keys whose rows differ, in the order of keys."""
    found = []
    for key in sorted({row.key for table in (old, new) for row in table.rows}):
        before, after = old.get(key), new.get(key)
        if before == after:
            continue
        if before is None or after is None:
            kind = "added" if before is None else "removed"
        else:
            same = (before.engine, before.setting) == (after.engine, after.setting)
            kind = "evidence" if same else "changed"
        found.append(Difference(kind, before, after))
    return found


def _table(checkout: Checkout | None, text: str) -> Table:
    if Path(text).is_file():
        return Table.read(Path(text), text)
    if checkout is None:
        raise UsageFailure(f"{text!r} is no table file, and no git revision can be read outside of a Mjolnir checkout")
    return _revision(checkout, text)


def _revision(checkout: Checkout, revision: str) -> Table:
    try:
        return Table.parse(checkout.read(TABLE_PATH, revision), f"{revision}:{TABLE_PATH}")
    except Failure as failure:
        raise UsageFailure(f"{revision!r} is neither a file nor a git revision that has {TABLE_PATH}") from failure


def _side(row: Row | None) -> dict[str, Any] | None:
    if row is None:
        return None
    paper = row.certificate
    return {
        "value": row.as_dict()["value"],
        "ratio_default": paper.get("ratio_default"),
        "tag": paper.get("tag"),
        "kernel_hash": row.kernel_hash,
    }


def _view(old: str, new: str, found: list[Difference]) -> RenderableType:
    from rich.console import Group
    from rich.table import Table as View

    head = f"{old} -> {new}"
    if not found:
        return f"{head}: no difference"
    view = View(box=None, pad_edge=False)
    for title in ("row", "", "setting", "of the default's time", "new over old"):
        view.add_column(title, overflow="fold")
    for entry in found:
        key = entry.row.key
        sides = [row for row in (entry.old, entry.new) if row]
        names = [Names(key.geometry, key.hardware)(row.setting) for row in sides]
        ratios = [interval(row.certificate.get("ratio_default")) for row in sides]
        where = f"{key.device} {key.heads_q}/{key.heads_kv}xd{key.head_dim} page {key.page_size} batch <= {key.batch}"
        view.add_row(where, entry.kind, "\n-> ".join(names), "\n-> ".join(ratios), _gain(entry))
    return Group(head, "", view)


def _gain(entry: Difference) -> str:
    """The new row over the old one: measured when it had to beat it, else by their ratios to the default."""
    if entry.old is None or entry.new is None:
        return "-"
    against = entry.new.certificate.get("ratio_incumbent")
    if against:
        return f"{interval(against)} measured"
    old, new = (_value(row.certificate.get("ratio_default")) for row in (entry.old, entry.new))
    return f"{new / old:.3f} by their ratios" if old and new else "-"


def _value(ratio: Any) -> float | None:
    value = ratio.get("value") if isinstance(ratio, Mapping) else ratio
    return float(value) if isinstance(value, int | float) else None
