"""Applying what was proven: the rows of a tag go into a checkout, into the user's table, or into a scratch table."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mjolnir.backend.lookup import user_path
from mjolnir.backend.table import Row, Table
from mjolnir.research.answer import Answer, Failure, NotWrittenFailure, UsageFailure
from mjolnir.research.checkout import TABLE_PATH, Change, Checkout
from mjolnir.research.naming import Names, interval, written
from mjolnir.research.rows import proven

Record = Mapping[str, Any]

REPLAY_REFUSED = "rows from a replay go only into a scratch table; name one with {option} PATH"


def promote(tag: str, records: Sequence[Record], table: Path | None = None, start: Path | None = None) -> Answer:
    """Write the rows that `tag` proved.

    Args:
        tag: the campaign.
        records: its records.
        table: a scratch table; None = the checkout that holds `start`, else the user's table.
        start: where to look for a checkout; None = the current folder.

    Raises:
        UsageFailure: a replayed tag without a scratch table.
        NotWrittenFailure: the rows could not be written; the message says why.
    """
    evidence = proven(records)
    if evidence.simulated and table is None:
        raise UsageFailure(f"{tag} is a replay: " + REPLAY_REFUSED.format(option="--table"))
    data: dict[str, Any] = {"tag": tag, "rows": [row.as_dict() for row in evidence.rows], "commits": [], "place": None}
    if not evidence.rows:
        return Answer(data, f"{tag} proved no row: nothing to write")
    if table is not None:
        changed, place = write_rows(table, evidence.rows), str(table)
    elif checkout := Checkout.find(start or Path.cwd()):
        data["commits"] = commit_rows(checkout, evidence.rows)
        changed, place = len(data["commits"]), str(checkout.root / TABLE_PATH)
    else:
        changed, place = write_rows(user_path(), evidence.rows), str(user_path())
    data |= {"place": place, "changed": changed}
    return Answer(data, _text(evidence.rows, changed, place, data["commits"]))


def write_rows(path: Path, rows: Sequence[Row]) -> int:
    """Put `rows` into the table file at `path`, made when it is missing; returns how many changed.

    Raises:
        NotWrittenFailure: the file is malformed, or cannot be written.
    """
    old = Table.read(path, missing_ok=True)
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


def _text(rows: Sequence[Row], changed: int, place: str, commits: Sequence[str]) -> str:
    lines = [written(changed, len(rows), place)]
    lines += [
        f"  batch up to {row.key.batch}: {Names(row.key.geometry, row.key.hardware)(row.setting)}" for row in rows
    ]
    lines += [f"  commit {commit[:12]}" for commit in commits]
    return "\n".join(lines)
