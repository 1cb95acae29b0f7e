"""Proving a ledger ref: its commits are those that its records make, one after the other from the first."""

from __future__ import annotations

from dataclasses import dataclass

from mjolnir.ledger.chain import Link, broken
from mjolnir.ledger.commits import PREFIX, Commit, commit_of, ref_of
from mjolnir.ledger.errors import NewerRecord, RecordError
from mjolnir.ledger.git_store import GitError, GitStore
from mjolnir.ledger.parsing import parse
from mjolnir.ledger.record import Record


@dataclass(frozen=True, slots=True)
class Proof:
    """What a ref proves.

    Attributes:
        ref: its name.
        head: the commit that it is at.
        good: the commits from the first on that follow from their records, in order.
        wrong: why it proves no more, or is not under its own name; empty when it is whole.
    """

    ref: str
    head: str
    good: tuple[Commit, ...]
    wrong: str = ""

    @property
    def home(self) -> str:
        """The name that a ref with these records has; empty without any."""
        return ref_of(self.good[0].record) if self.good else ""

    @property
    def records(self) -> tuple[Record, ...]:
        """The records of the good commits."""
        return tuple(commit.record for commit in self.good)


def prove(store: GitStore, ref: str, head: str, name: str = "") -> Proof:
    """Follow `ref` at `head` from its first commit on; `name` is the ref that it claims to be, if another.

    Raises:
        NewerRecord: a newer Mjolnir wrote some of it.
    """
    good: list[Commit] = []
    try:
        for commit_id, line in store.read([head], ()):
            commit = _next(good[-1] if good else None, parse(line), store.algorithm)
            if commit.id != commit_id:
                return Proof(ref, head, tuple(good), f"commit {commit_id} is not the one that its record makes")
            good.append(commit)
    except NewerRecord as error:
        raise NewerRecord(f"{ref}: {error}") from error
    except (GitError, RecordError) as error:
        return Proof(ref, head, tuple(good), str(error))
    proof = Proof(ref, head, tuple(good))
    return proof if proof.home == (name or ref) else Proof(ref, head, proof.good, f"holds the records of {proof.home}")


def _next(before: Commit | None, record: Record, algorithm: str) -> Commit:
    if wrong := broken(None if before is None else Link.of(before.record), record):
        raise RecordError(f"record {record.seq} of writer {record.writer} {wrong}")
    if before is None:
        return commit_of(record, "", "", algorithm)
    if record.writer != before.record.writer:
        raise RecordError(f"a record of writer {record.writer} follows one of writer {before.record.writer}")
    return commit_of(record, before.id, before.environment, algorithm)


def writer_of(ref: str) -> str:
    """The writer that a ledger ref names; empty when the name is not that of a ledger ref."""
    return _parts(ref)[1]


def tag_of(ref: str) -> str:
    """The tag that a ledger ref names; empty when the name is not that of a ledger ref."""
    return _parts(ref)[0]


def _parts(ref: str) -> tuple[str, str]:
    parts = ref.removeprefix(f"{PREFIX}/").split("/")
    return (parts[0], parts[1]) if len(parts) == 2 else ("", "")
