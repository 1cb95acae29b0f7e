"""Applying what was proven: the rows of a tag go into a checkout, into the user's table, or into a scratch table."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjolnir.backend.table import Row, Table, packaged_path, user_path
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import resolve
from mjolnir.research.answer import Answer, Exit, Failure, NotWrittenFailure, UsageFailure
from mjolnir.research.checkout import TABLE_PATH, Change, Checkout
from mjolnir.research.evidence import Evidence
from mjolnir.research.hints import SCRATCH, command
from mjolnir.research.naming import Names, interval, written
from mjolnir.research.rows import LeftOut, Proven, RowFailure, left_out_lines, proven
from mjolnir.research.verify_rows import examined

if TYPE_CHECKING:
    from mjolnir.ledger import Ledger

Record = Mapping[str, Any]

REPLAY_REFUSED = "rows from a replay go only into a scratch table; name one with --table"


def promote(
    tag: str,
    records: Sequence[Record],
    ledger: Ledger,
    table: Path | None = None,
    start: Path | None = None,
    *,
    replace: bool = False,
) -> Answer:
    """Write the rows that `tag` proved, and say of each of them what became of it; exit code 4 when one was left out.

    Nothing is written on the word of a promotion record: each row is derived again from the records that it cites.

    Args:
        tag: the campaign.
        records: its records.
        ledger: where the records that the rows cite are looked for, beside the exported runs.
        table: a scratch table; None = the checkout that holds `start`, else the user's table.
        start: where to look for a checkout; None = the current folder.
        replace: replace also rows in force that the campaign was not compared with.

    Raises:
        UsageFailure: a replayed tag without a scratch table.
        NotWrittenFailure: the rows could not be written; the message says why.
    """
    try:
        evidence = proven(records)
    except RowFailure as failure:
        raise NotWrittenFailure(f"nothing was written: {failure}") from failure
    if evidence.simulated and table is None:
        again = _again(ledger, tag, SCRATCH, replace=replace)
        raise UsageFailure(f"{tag} is a replay: {REPLAY_REFUSED}, such as: {again}")
    target = _Target.of(table, start or Path.cwd())
    unfounded = list(_unfounded(evidence.rows, str(target.place), Evidence.to_the_letter(ledger)))
    instead = _again(ledger, tag, table, replace=True)
    uncompared = [] if replace else list(_uncompared(tag, evidence, target.tables(), instead))
    refused = {out.row.key: out for out in (*uncompared, *unfounded)}
    kept = [row for row in evidence.rows if row.key not in refused]
    new = [row for row in kept if target.table.get(row.key) != row]
    left_out = [*evidence.left_out, *refused.values()]
    data = {
        "tag": tag,
        "rows": [row.as_dict() for row in kept],
        "left_out": [out.as_dict() for out in left_out],
        "commits": target.write(new) if new else [],
        "place": str(target.place) if kept or left_out else None,
        "changed": len(new),
    }
    if not kept and not left_out:
        return Answer(data, f"{tag} proved no row: nothing to write")
    return Answer(data, _text(kept, new, left_out, data), Exit.NOT_WRITTEN if left_out else Exit.DONE)


def _again(ledger: Ledger, tag: str, table: Path | None, *, replace: bool) -> str:
    """The command that promotes `tag`, as it is typed."""
    words = [*(("--table", table) if table else ()), *(("--replace",) if replace else ())]
    return command(ledger, "defaults", "promote", tag, *words)


@dataclass(frozen=True, slots=True)
class _Target:
    """Where rows are written: the table of a checkout, or a file, below which the packaged table is in force."""

    place: Path
    table: Table
    checkout: Checkout | None = None

    @classmethod
    def of(cls, table: Path | None, start: Path) -> _Target:
        """A scratch table, else the table of the checkout that holds `start`, else the user's."""
        if table is None and (checkout := Checkout.find(start)):
            try:
                found = Table.parse(checkout.read(TABLE_PATH), TABLE_PATH)
            except Failure as error:
                raise NotWrittenFailure(str(error)) from error
            return cls(checkout.root / TABLE_PATH, found, checkout)
        path = table or user_path()
        return cls(path, Table.read(path, missing_ok=True))

    def tables(self) -> list[Table]:
        """What is in force, the first first."""
        return [self.table] if self.checkout else [self.table, Table.read(packaged_path())]

    def write(self, rows: Sequence[Row]) -> list[str]:
        """Write rows that differ from the table's; returns the commits that were made."""
        if self.checkout:
            return commit_rows(self.checkout, rows)
        _write(self.place, self.table, rows)
        return []


def _unfounded(rows: Sequence[Row], place: str, evidence: Evidence) -> Iterator[LeftOut]:
    """The rows that do not follow from the records that they cite: some were altered, or are gone."""
    for row in rows:
        if problem := examined(place, row, evidence).problem:
            yield LeftOut(row, f"it does not follow from its records: {problem}")


def _uncompared(tag: str, evidence: Proven, tables: Sequence[Table], instead: str) -> Iterator[LeftOut]:
    """The rows that would take the place of one that the campaign was not compared with; `instead` does it."""
    for row in evidence.rows:
        there = next((found for table in tables if (found := table.get(row.key))), None)
        compared = [Setting(), row.setting]
        if incumbent := evidence.incumbents.get(row.key.batch):
            compared.append(incumbent)
        resolved = [resolve(setting, row.key.geometry, row.key.hardware) for setting in compared]
        if there and resolve(there.setting, row.key.geometry, row.key.hardware) not in resolved:
            names = Names(row.key.geometry, row.key.hardware)
            old = f"{names(there.setting)}, of {there.certificate.get('tag')}"
            yield LeftOut(
                row,
                f"{tag} was not compared with the row in force ({old}); a new campaign with that table in force would "
                f"be, and `{instead}` replaces it all the same",
            )


def write_rows(path: Path, rows: Sequence[Row]) -> int:
    """Put `rows` into the table file at `path`, made when it is missing; returns how many changed.

    Raises:
        NotWrittenFailure: the file is malformed, or cannot be written.
    """
    return _write(path, Table.read(path, missing_ok=True), rows)


def _write(path: Path, old: Table, rows: Sequence[Row]) -> int:
    try:
        new = old
        for row in rows:
            new = new.with_row(row)
        changed = sum(old.get(row.key) != row for row in rows)
        if changed:
            replace_file(path, new.render())
    except (ValueError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise NotWrittenFailure(f"{path}: {reason}") from error
    return changed


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old bytes or the new ones, through a link where `path` is one."""
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(target)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def commit_rows(checkout: Checkout, rows: Sequence[Row]) -> list[str]:
    """Commit each row that differs from HEAD's table by itself; returns the commit ids.

    Raises:
        NotWrittenFailure: refused (see `Checkout.check`), a kernel hash that is not HEAD's, or a malformed table.
    """
    checkout.check()
    _require_kernel(checkout, rows)
    try:
        table = Table.parse(checkout.read(TABLE_PATH), TABLE_PATH)
        changes = []
        for row in rows:
            if table.get(row.key) == row:
                continue
            table = table.with_row(row)
            changes.append(Change(table.render(), message(row)))
    except (ValueError, Failure) as error:
        raise NotWrittenFailure(str(error)) from error
    return checkout.commit(changes)


def _require_kernel(checkout: Checkout, rows: Sequence[Row]) -> None:
    from mjolnir.kernel.sources import DEVICE_SOURCES, hash_sources

    try:
        head = hash_sources({name: checkout.read(f"kernel/{name}") for name in DEVICE_SOURCES})
    except Failure as error:
        raise NotWrittenFailure(f"the kernel of HEAD cannot be read: {error}") from error
    for row in rows:
        if row.kernel_hash != head:
            raise NotWrittenFailure(
                f"the row for {row.key} was proven with kernel {row.kernel_hash[:12]}, and HEAD has {head[:12]}; "
                "check out the kernel that was measured, or tune this one"
            )


def message(row: Row) -> str:
    """The commit message of a row: what it serves and how much faster, then the evidence as trailers."""
    key, certificate = row.key, row.certificate
    changed = Names(key.geometry, key.hardware)(row.setting)
    subject = f"defaults: {key.device} {key.heads_q}/{key.heads_kv}xd{key.head_dim} batch {key.batch}: {changed}"
    trailers = [
        f"Tag: {certificate['tag']}",
        f"Ratio-To-Default: {interval(certificate['ratio_default'])}",
        f"Ratio-To-Incumbent: {interval(certificate['ratio_incumbent'])}",
        f"Kernel-Hash: {row.kernel_hash}",
    ]
    return "\n".join([subject, "", f"Serves {key}.", "", *trailers, ""])


def _text(kept: Sequence[Row], new: Sequence[Row], left_out: Sequence[LeftOut], data: Mapping[str, Any]) -> str:
    lines = [written(len(new), len(kept) + len(left_out), data["place"])]
    for row in kept:
        there = "" if row in new else "   (in force already)"
        lines.append(f"  batch up to {row.key.batch}: {Names(row.key.geometry, row.key.hardware)(row.setting)}{there}")
    lines += [f"  {line}" for line in left_out_lines(data)]
    lines += [f"  commit {commit[:12]}" for commit in data["commits"]]
    return "\n".join(lines)
