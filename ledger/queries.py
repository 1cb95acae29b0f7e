"""What is asked of the index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sql

from mjolnir.ledger.chain import Link
from mjolnir.ledger.index import LINES, RATIOS, RECORDS, Index
from mjolnir.ledger.record import LedgerError, Record, parse
from mjolnir.ledger.summary import Best, TagSummary

_MANY = 500


def tags(index: Index) -> tuple[TagSummary, ...]:
    """Every tag; the one with the last record comes last."""
    count = sql.func.count()
    facts = index.query(
        sql.select(
            RECORDS.c.tag, count, sql.func.min(RECORDS.c.time), sql.func.max(RECORDS.c.time),
            sql.func.count(sql.distinct(RECORDS.c.writer)), sql.func.max(RECORDS.c.lamport),
        ).group_by(RECORDS.c.tag)
    )  # fmt: skip
    trials = RECORDS.c.kind == "trial"
    columns = (RECORDS.c.tag, RECORDS.c.status, RECORDS.c.verdict)
    counts = index.query(sql.select(*columns, count).where(trials).group_by(*columns))
    best = _best(index)
    found = []
    for tag, records, first, last, writers, _ in sorted(facts, key=lambda row: (row[3], row[5], row[0])):
        mine = [row for row in counts if row[0] == tag]
        statuses: dict[str, int] = {}
        for _, status, _, number in sorted(mine, key=lambda row: str(row[1])):
            statuses[status] = statuses.get(status, 0) + number
        kept = sum(row[3] for row in mine if row[2] == "keep")
        ended, resumable = _ending(index, tag)
        summary = TagSummary(
            tag, records, sum(statuses.values()), kept, statuses, best.get(tag, {}), first, last, writers,
            ended, resumable,
        )  # fmt: skip
        found.append(summary)
    return tuple(found)


def _best(index: Index) -> dict[str, dict[int, Best]]:
    joined = sql.join(RATIOS, RECORDS, sql.and_(RATIOS.c.writer == RECORDS.c.writer, RATIOS.c.seq == RECORDS.c.seq))
    rank = sql.func.row_number().over(
        partition_by=(RECORDS.c.tag, RATIOS.c.bucket), order_by=(RATIOS.c.ratio, RECORDS.c.trial)
    )
    columns = (RECORDS.c.tag, RATIOS.c.bucket, RATIOS.c.ratio, RECORDS.c.trial)
    ranked = sql.select(*columns, rank.label("rank")).select_from(joined).subquery()
    rows = index.query(sql.select(ranked).where(ranked.c.rank == 1).order_by(ranked.c.tag, ranked.c.bucket))
    found: dict[str, dict[int, Best]] = {}
    for tag, bucket, ratio, trial, _ in rows:
        found.setdefault(tag, {})[bucket] = Best(ratio, trial)
    return found


def _ending(index: Index, tag: str) -> tuple[str | None, bool]:
    """Reason and resumability from the last `end`, unless another run has begun or gone on since."""
    after = ("campaign", "epoch", "trial", "end")
    last = _records(index, RECORDS.c.tag == tag, RECORDS.c.kind.in_(after), latest=True)
    if not last or last[0].kind != "end":
        return None, True
    body = last[0].body
    return str(body.get("reason", "")), body.get("resumable") is True


def records(index: Index, tag: str | None, kind: str | None) -> tuple[Record, ...]:
    """The records of a tag and kind, in order."""
    conditions = []
    if tag is not None:
        conditions.append(RECORDS.c.tag == tag)
    if kind is not None:
        conditions.append(RECORDS.c.kind == kind)
    return _records(index, *conditions)


def trials(
    index: Index,
    tag: str,
    chosen: Mapping[str, object],
    knobs: Mapping[str, int],
    since: str | None,
    sort: str,
    limit: int | None,
) -> tuple[Record, ...]:
    """The trials of a tag whose columns have the `chosen` values, None being any."""
    conditions = [RECORDS.c.tag == tag, RECORDS.c.kind == "trial"]
    conditions += [RECORDS.c[name] == value for name, value in chosen.items() if value is not None]
    conditions += [RECORDS.c.setting[name].as_integer() == value for name, value in knobs.items()]
    if since is not None:
        conditions.append(RECORDS.c.time >= since)
    order = [RECORDS.c.trial]
    if sort == "ratio":
        conditions += [RECORDS.c.status == "measured", RECORDS.c.ratio.is_not(None)]
        order = [RECORDS.c.ratio, RECORDS.c.trial]
    return _records(index, *conditions, order=order, limit=limit)


def trial(index: Index, tag: str, number: int) -> Record:
    """The trial of that number; LedgerError when there is none."""
    asked = (RECORDS.c.tag == tag, RECORDS.c.kind == "trial", RECORDS.c.trial == number)
    # A number that no column can hold is that of no trial, and the database would not take the question.
    if abs(number) < 2**63 and (found := _records(index, *asked, limit=1)):
        return found[0]
    last = index.query(sql.select(sql.func.max(RECORDS.c.trial)).where(RECORDS.c.tag == tag))[0][0]
    if last is not None:
        raise LedgerError(f"{tag!r} has no trial {number}; its last one is {last}")
    names = ", ".join(row[0] for row in index.query(sql.select(RECORDS.c.tag).distinct().order_by(RECORDS.c.tag)))
    raise LedgerError(
        f"there are no trials under {tag!r}; " + (f"the tags are {names}" if names else "no tag is there")
    )


def by_hash(index: Index, sha256: str) -> Record | None:
    """The record with that hash."""
    found = _records(index, RECORDS.c.sha256 == sha256)
    return found[0] if found else None


def of_writer(index: Index, writer: str, first: int, last: int) -> tuple[Record, ...]:
    """A writer's records from seq `first` to `last`."""
    return _records(index, RECORDS.c.writer == writer, RECORDS.c.seq.between(first, last), order=[RECORDS.c.seq])


def place_of(index: Index, writer: str, commit: str) -> int | None:
    """The seq of the writer's record that makes `commit`."""
    mine = sql.and_(RECORDS.c.writer == writer, RECORDS.c.commit_id == commit)
    rows = index.query(sql.select(RECORDS.c.seq).where(mine)) if commit else ()
    return rows[0][0] if rows else None


def links(index: Index, writers: Iterable[str] | None = None) -> dict[tuple[str, int], Link]:
    """Links by identity, of some writers or of all."""
    columns = (RECORDS.c.tag, RECORDS.c.seq, RECORDS.c.lamport, RECORDS.c.sha256)
    statement = sql.select(RECORDS.c.writer, *columns)
    chosen = [()] if writers is None else [(RECORDS.c.writer.in_(part),) for part in _parts(writers)]
    rows = (row for conditions in chosen for row in index.query(statement.where(*conditions)))
    return {(writer, link[1]): Link(*link) for writer, *link in rows}


def commit_ids(index: Index, digests: Iterable[str]) -> dict[str, str]:
    """Commit id by sha256 of the record."""
    statement = sql.select(RECORDS.c.sha256, RECORDS.c.commit_id)
    found: dict[str, str] = {}
    for part in _parts(digests):
        found.update((digest, commit) for digest, commit in index.query(statement.where(RECORDS.c.sha256.in_(part))))
    return found


def last_lamport(index: Index) -> int:
    """The largest lamport there is, 0 without records."""
    return int(index.query(sql.select(sql.func.max(RECORDS.c.lamport)))[0][0] or 0)


def _records(
    index: Index,
    *conditions: Any,
    order: Iterable[Any] = (),
    limit: int | None = None,
    latest: bool = False,
) -> tuple[Record, ...]:
    """Parsed lines, by `order` and then in the order of records; `latest` gives the last of them alone."""
    keys: list[Any] = [*order, RECORDS.c.lamport, RECORDS.c.writer, RECORDS.c.seq]
    if latest:
        keys, limit = [key.desc() for key in keys], 1
    same = sql.and_(RECORDS.c.writer == LINES.c.writer, RECORDS.c.seq == LINES.c.seq)
    statement = sql.select(LINES.c.line).join_from(RECORDS, LINES, same).where(*conditions).order_by(*keys)
    return tuple(parse(row[0]) for row in index.query(statement.limit(limit)))


def _parts(values: Iterable[str]) -> Iterable[list[str]]:
    """`values` in portions that an IN clause can hold."""
    every = list(values)
    return (every[start : start + _MANY] for start in range(0, len(every), _MANY))
