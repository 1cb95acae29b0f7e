"""Checking a ledger against itself: schema, hash chains, live file against git against index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mjolnir.ledger.chain import Link, broken
from mjolnir.ledger.commits import PREFIX, Commit, commit_of, ref_of
from mjolnir.ledger.errors import NewerRecord, RecordError
from mjolnir.ledger.git_store import GitError, GitStore
from mjolnir.ledger.live import scan
from mjolnir.ledger.parsing import parse
from mjolnir.ledger.record import Record

UNSHALLOW = "the repository is shallow: `git fetch --unshallow REMOTE 'refs/mjolnir/*:refs/mjolnir/*'` brings them"
REPAIR = "run `mjolnir ledger repair`: it keeps what is provably whole and sets the rest aside"
REINDEX = "run `mjolnir ledger reindex`"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong: where, what, and what to do about it (empty: what is wrong says it)."""

    where: str
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f"; {self.remedy}" if self.remedy else "")


@dataclass(frozen=True, slots=True)
class Verification:
    """What a check found.

    Attributes:
        records: all there are, each once.
        writers: how many processes wrote them.
        tags: how many campaigns they are of.
        problems: what is wrong, in the order of live file, git and index, and of the lines in the file.
        unflushed: records that git does not have yet, with which nothing is wrong.
    """

    records: int
    writers: int
    tags: int
    problems: tuple[Problem, ...]
    unflushed: int = 0

    @property
    def ok(self) -> bool:
        """True when nothing is wrong."""
        return not self.problems


@dataclass(frozen=True, slots=True, order=True)
class _Place:
    """Where something was found; they sort in the order of live file, git and index."""

    stage: int
    number: int
    text: str


@dataclass(frozen=True, slots=True)
class _Seen:
    record: Record
    place: _Place


class Verifier:
    """Collects every record there is, then checks the chains."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], _Seen] = {}
        self._problems: list[tuple[_Place, Problem]] = []
        self._real: dict[tuple[str, int], str] = {}
        self._git = False
        self._missing = REPAIR
        self._unflushed = 0

    def live(self, path: Path) -> None:
        """Take the live file."""
        number = end = 0
        for number, (_, after, line) in enumerate(scan(path), 1):
            end = after
            self._take(line, _Place(0, number, f"{path}, line {number}"))
        if path.exists() and path.stat().st_size > end:
            place = _Place(0, number + 1, f"{path}, byte {end}")
            self._add(place, "the last line is torn", "it is moved aside when the ledger is next written")

    def refs(self, store: GitStore) -> None:
        """Take the ledger refs."""
        try:
            heads = store.heads()
        except GitError as error:
            self._add(_Place(1, 0, f"{PREFIX} in {store.common}"), str(error))
            return
        self._git = True
        self._missing = UNSHALLOW if store.shallow else REPAIR
        try:
            self._take_commits(store, heads.values())
        except GitError:
            # Once more one by one, which is slow, but tells which of them it is and takes the others.
            for number, (ref, head) in enumerate(heads.items()):
                try:
                    self._take_commits(store, [head])
                except GitError as error:
                    self._add(_Place(1, number, ref), str(error), REPAIR)
        homes = {commit: identity for identity, commit in self._real.items()}
        for number, (ref, head) in enumerate(heads.items()):
            identity = homes.get(head)
            if identity is not None and (home := ref_of(self._seen[identity].record)) != ref:
                self._add(_Place(1, number, ref), f"holds the records of {home}", REPAIR)

    def index(self, links: Mapping[tuple[str, int], Link]) -> None:
        """Compare with the index (links by identity), once live file and refs were taken."""
        truth = {identity: Link.of(seen.record) for identity, seen in self._seen.items()}
        for identity in sorted(set(truth) | set(links)):
            if truth.get(identity) != links.get(identity):
                self._add(_Place(2, 0, "index"), f"{_name(identity)} differs from the ledger", REINDEX)
                return

    def finish(self, algorithm: str) -> Verification:
        """Check the chains and say what was found."""
        chains: dict[str, list[Record]] = {}
        for identity in sorted(self._seen):
            chains.setdefault(identity[0], []).append(self._seen[identity].record)
        for chain in chains.values():
            self._problems.extend(self._chain(chain, algorithm))
        problems = [problem for _, problem in sorted(self._problems, key=lambda found: found[0])]
        tags = {seen.record.tag for seen in self._seen.values()}
        return Verification(len(self._seen), len(chains), len(tags), tuple(problems), self._unflushed)

    def _take_commits(self, store: GitStore, heads: Iterable[str]) -> None:
        for number, (commit, line) in enumerate(store.read(heads, ())):
            record = self._take(line, _Place(1, number, f"commit {commit}"))
            if record is not None:
                self._real[record.identity] = commit

    def _take(self, line: bytes, place: _Place) -> Record | None:
        try:
            record = parse(line)
        except NewerRecord as error:
            self._add(place, str(error))
            return None
        except RecordError as error:
            self._add(place, str(error), REPAIR)
            return None
        known = self._seen.setdefault(record.identity, _Seen(record, place))
        if known.record.line != line:
            what = f"{_name(record.identity)} is at {known.place.text} with other content: one of them was altered"
            self._add(place, what, REPAIR)
            return None
        return record

    def _chain(self, chain: Iterable[Record], algorithm: str) -> Iterator[tuple[_Place, Problem]]:
        """What is wrong with one writer's records, in order of seq."""
        before: Link | None = None
        commit: Commit | None = None
        for record in chain:
            place = self._seen[record.identity].place
            wrong = broken(before, record)
            if wrong:
                remedy = self._missing if record.seq > (before.seq + 1 if before else 0) else REPAIR
                yield place, Problem(place.text, f"{_name(record.identity)} {wrong}", remedy)
                commit = None
            elif record.seq == 0:
                commit = commit_of(record, "", "", algorithm)
            elif commit is not None:
                commit = commit_of(record, commit.id, commit.environment, algorithm)
            real = self._real.get(record.identity)
            if commit is not None and real is not None and real != commit.id:
                what = f"{_name(record.identity)} makes commit {commit.id}, not this one"
                yield _Place(1, 0, place.text), Problem(f"commit {real}", what, REPAIR)
            self._unflushed += self._git and commit is not None and real is None
            before = Link.of(record)

    def _add(self, place: _Place, what: str, remedy: str = "") -> None:
        self._problems.append((place, Problem(place.text, what, remedy)))


def _name(identity: tuple[str, int]) -> str:
    return f"record {identity[1]} of writer {identity[0]}"
