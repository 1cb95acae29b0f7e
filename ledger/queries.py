"""What is asked of the index."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import sqlalchemy as sql

from mjolnir.ledger.chain import Link
from mjolnir.ledger.errors import LedgerError
from mjolnir.ledger.index import LINES, RATIOS, RECORDS, Index
from mjolnir.ledger.parsing import parse, trusted
from mjolnir.ledger.record import Record
from mjolnir.ledger.summary import Best, TagSummary
from mjolnir.ledger.wanted import Sort, Wanted

_MANY = 500


def tags(index: Index) -> tuple[TagSummary, ...]:
    """Every tag; the one with the last record comes last."""
    named = RECORDS.c
    groups = (named.tag, named.kind, named.status, named.verdict, named.writer)
    facts = (sql.func.count(), sql.func.min(named.time), sql.func.max(named.time), sql.func.max(named.lamport))
    by_tag: dict[str, list[_Group]] = {}
    for tag, *row in index.query(sql.select(*groups, *facts).group_by(*groups)):
        by_tag.setdefault(tag, []).append(_Group(*row))
    best = _best(index)

    def last(tag: str) -> tuple[str, int, str]:
        return max(group.last for group in by_tag[tag]), max(group.lamport for group in by_tag[tag]), tag

    return tuple(_summary(index, tag, by_tag[tag], best.get(tag, {})) for tag in sorted(by_tag, key=last))


class _Group(NamedTuple):
    """What records of one kind, outcome and writer have in common."""

    kind: str
    status: str | None
    verdict: str | None
    writer: str
    number: int
    first: str
    last: str
    lamport: int


def _summary(index: Index, tag: str, groups: list[_Group], best: dict[int, Best]) -> TagSummary:
    trials = [group for group in groups if group.kind == "trial"]
    statuses: Counter[str] = Counter()
    for group in sorted(trials, key=lambda group: str(group.status)):
        statuses[str(group.status)] += group.number
    ended, resumable = _ending(index, tag)
    return TagSummary(
        tag, sum(group.number for group in groups), statuses.total(),
        sum(group.number for group in trials if group.verdict == "keep"), dict(statuses), best,
        min(group.first for group in groups), max(group.last for group in groups),
        len({group.writer for group in groups}), ended, resumable,
    )  # fmt: skip


def _best(index: Index) -> dict[str, dict[int, Best]]:
    """The first of the fastest trials by tag and bucket."""
    named = RATIOS.c
    fastest = sql.select(named.tag, named.bucket, sql.func.min(named.ratio).label("ratio"))
    least = fastest.group_by(named.tag, named.bucket).subquery()
    same = (named.tag == least.c.tag, named.bucket == least.c.bucket, named.ratio == least.c.ratio)
    columns = (named.tag, named.bucket, named.ratio)
    rows = index.query(
        sql.select(*columns, sql.func.min(named.trial)).join_from(least, RATIOS, sql.and_(*same))
        .group_by(*columns).order_by(*columns)
    )  # fmt: skip
    found: dict[str, dict[int, Best]] = {}
    for tag, bucket, ratio, trial in rows:
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


def trials(index: Index, tag: str | None, wanted: Wanted, sort: Sort, limit: int | None) -> tuple[Record, ...]:
    """The trials of a tag, or of all, that are `wanted`.

    "ratio" leaves out what was not measured, and takes the ratio of the bucket where one is wanted.
    """
    conditions = [*_chosen(wanted), *([] if tag is None else [RECORDS.c.tag == tag])]
    order: list[Any] = {"trial": [] if tag is None else [RECORDS.c.trial], "time": [RECORDS.c.time]}.get(sort, [])
    if sort == "ratio":
        ratio: Any = RECORDS.c.ratio
        if wanted.bucket is not None:
            same = (RATIOS.c.writer == RECORDS.c.writer, RATIOS.c.seq == RECORDS.c.seq)
            ratio = (
                sql.select(RATIOS.c.ratio).where(*same, RATIOS.c.bucket == wanted.bucket).correlate(RECORDS)
            ).scalar_subquery()
        conditions += [RECORDS.c.status == "measured", ratio.is_not(None)]
        order = [ratio, RECORDS.c.trial]
    return _records(index, *conditions, order=order, limit=limit)


def tally(index: Index, wanted: Wanted) -> dict[str, int]:
    """How many trials of each tag are `wanted`; tags without one are left out."""
    count = sql.func.count()
    return dict(index.query(sql.select(RECORDS.c.tag, count).where(*_chosen(wanted)).group_by(RECORDS.c.tag)))


def knobs(index: Index, tag: str | None) -> frozenset[str]:
    """The knobs that settings of a tag's trials name, or those of all."""
    conditions = [RECORDS.c.setting.is_not(None), *([] if tag is None else [RECORDS.c.tag == tag])]
    settings = index.query(sql.select(sql.cast(RECORDS.c.setting, sql.Text)).where(*conditions).distinct())
    return frozenset(name for row in settings for name in json.loads(row[0]))


def _chosen(wanted: Wanted) -> list[Any]:
    """The conditions of a choice of trials."""
    columns = {"status": wanted.status, "verdict": wanted.verdict, "bucket": wanted.bucket}
    conditions: list[Any] = [RECORDS.c.kind == "trial"]
    conditions += [RECORDS.c[name] == value for name, value in columns.items() if value is not None]
    conditions += [RECORDS.c.setting[name].as_integer() == value for name, value in wanted.knobs.items()]
    return conditions if wanted.since is None else [*conditions, RECORDS.c.time >= wanted.since]


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


def state(index: Index, tag: str) -> list[list[Any]]:
    """Each writer of a tag with the number of its records, its last one and its hash: other records, other state."""
    ends = (
        sql.select(RECORDS.c.writer, sql.func.max(RECORDS.c.seq).label("seq"), sql.func.count().label("count"))
        .where(RECORDS.c.tag == tag).group_by(RECORDS.c.writer).subquery()
    )  # fmt: skip
    same = sql.and_(RECORDS.c.writer == ends.c.writer, RECORDS.c.seq == ends.c.seq)
    columns = (RECORDS.c.writer, ends.c.count, RECORDS.c.seq, RECORDS.c.sha256)
    return [
        list(row) for row in index.query(sql.select(*columns).join_from(RECORDS, ends, same).order_by(RECORDS.c.writer))
    ]


def stream(index: Index, tag: str) -> Iterator[Record]:
    """The records of a tag in order, one after the other, so that nobody has to hold them all."""
    return (trusted(row[0]) for row in index.stream(_select(RECORDS.c.tag == tag)))


def by_hash(index: Index, sha256: str) -> Record | None:
    """The record with that hash; certificates rest on it, so the bytes are looked at again."""
    found = _records(index, RECORDS.c.sha256 == sha256)
    return parse(found[0].line) if found and found[0].sha256 == sha256 else None


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
    """Records by `order` and then in the order of records; `latest` gives the last of them alone."""
    statement = _select(*conditions, order=order, limit=limit, latest=latest)
    return tuple(trusted(row[0]) for row in index.query(statement))


def _select(
    *conditions: Any, order: Iterable[Any] = (), limit: int | None = None, latest: bool = False
) -> sql.Select[Any]:
    keys: list[Any] = [*order, RECORDS.c.lamport, RECORDS.c.writer, RECORDS.c.seq]
    if latest:
        keys, limit = [key.desc() for key in keys], 1
    same = sql.and_(RECORDS.c.writer == LINES.c.writer, RECORDS.c.seq == LINES.c.seq)
    chosen = sql.select(LINES.c.line).join_from(RECORDS, LINES, same).where(*conditions)
    return chosen.order_by(*keys).limit(limit)


def _parts(values: Iterable[str]) -> Iterable[list[str]]:
    """`values` in portions that an IN clause can hold."""
    every = list(values)
    return (every[start : start + _MANY] for start in range(0, len(every), _MANY))
