"""Checking a ledger against itself: schema, hash chains, live file against git against index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mjolnir.ledger.chain import Link, broken
from mjolnir.ledger.commits import PREFIX, Commit, commit_of, ref_of
from mjolnir.ledger.git_store import GitError, GitStore
from mjolnir.ledger.live import scan
from mjolnir.ledger.record import Record, RecordError, parse


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong: where, and what."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True, slots=True)
class Verification:
    """What a check found; `problems` come in the order of the files and chains."""

    records: int
    writers: int
    tags: int
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """True when nothing is wrong."""
        return not self.problems


class Verifier:
    """Collects every record there is, then checks the chains."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, int], tuple[Record, str]] = {}
        self._problems: list[Problem] = []
        self._real: dict[tuple[str, int], str] = {}

    def live(self, path: Path) -> None:
        """Take the live file."""
        end = 0
        for number, (_, after, line) in enumerate(scan(path), 1):
            end = after
            self._take(line, f"{path}, line {number}")
        if path.exists() and path.stat().st_size > end:
            self._add(f"{path}, byte {end}", "the last line is torn; it is moved aside when the ledger is next written")

    def refs(self, store: GitStore) -> None:
        """Take the ledger refs."""
        try:
            heads = store.heads()
            for commit, line in store.read(heads.values(), ()):
                record = self._take(line, f"commit {commit}")
                if record is not None:
                    self._real[record.identity] = commit
        except GitError as error:
            self._add(f"{PREFIX} in {store.directory}", str(error))
            return
        homes = {commit: identity for identity, commit in self._real.items()}
        for ref, head in heads.items():
            identity = homes.get(head)
            if identity is not None and ref_of(self._records[identity][0]) != ref:
                self._add(ref, f"holds the records of {ref_of(self._records[identity][0])}")

    def index(self, links: Mapping[tuple[str, int], Link]) -> None:
        """Compare with the index (links by identity), once live file and refs were taken."""
        truth = {identity: Link.of(record) for identity, (record, _) in self._records.items()}
        for identity in sorted(set(truth) | set(links)):
            if truth.get(identity) != links.get(identity):
                self._add("index", f"{_name(identity)} differs from the ledger; run `mjolnir ledger reindex`")
                return

    def finish(self, algorithm: str) -> Verification:
        """Check the chains and say what was found."""
        chains: dict[str, list[Record]] = {}
        for identity in sorted(self._records):
            chains.setdefault(identity[0], []).append(self._records[identity][0])
        for chain in chains.values():
            self._problems.extend(self._chain(chain, algorithm))
        tags = {record.tag for record, _ in self._records.values()}
        return Verification(len(self._records), len(chains), len(tags), tuple(self._problems))

    def _take(self, line: bytes, where: str) -> Record | None:
        try:
            record = parse(line)
        except RecordError as error:
            self._add(where, str(error))
            return None
        known = self._records.setdefault(record.identity, (record, where))
        if known[0].line != line:
            self._add(where, f"{_name(record.identity)} is at {known[1]} with other content: one of them was altered")
            return None
        return record

    def _chain(self, chain: Iterable[Record], algorithm: str) -> Iterator[Problem]:
        """What is wrong with one writer's records, in order of seq."""
        before: Link | None = None
        commit: Commit | None = None
        for record in chain:
            where = self._records[record.identity][1]
            wrong = broken(before, record)
            if wrong:
                yield Problem(where, f"{_name(record.identity)} {wrong}")
                commit = None
            elif record.seq == 0:
                commit = commit_of(record, "", "", algorithm)
            elif commit is not None:
                commit = commit_of(record, commit.id, commit.environment, algorithm)
            real = self._real.get(record.identity)
            if commit is not None and real is not None and real != commit.id:
                yield Problem(f"commit {real}", f"{_name(record.identity)} makes commit {commit.id}, not this one")
            before = Link.of(record)

    def _add(self, where: str, what: str) -> None:
        self._problems.append(Problem(where, what))


def _name(identity: tuple[str, int]) -> str:
    return f"record {identity[1]} of writer {identity[0]}"
