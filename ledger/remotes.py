"""Moving ledger refs between repositories. Clones that both ran campaigns merge by union: a writer has one home.

What comes from outside lands under `refs/mjolnir/incoming/` first; a ledger ref moves onto it only when every commit
is the one that its record makes, the chain is whole, and what is here is a part of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mjolnir.ledger.commits import PREFIX
from mjolnir.ledger.errors import LedgerError
from mjolnir.ledger.git_store import GitError, GitStore
from mjolnir.ledger.proof import prove, tag_of, writer_of
from mjolnir.ledger.record import Record
from mjolnir.ledger.tombstone import KIND, LASTING, Buried, buried
from mjolnir.ledger.verify import Problem

if TYPE_CHECKING:
    from mjolnir.ledger.ledger import Ledger

INCOMING = "refs/mjolnir/incoming"

_LOCK_SECONDS = 30.0
_SETTINGS = (
    "push.gpgSign=false",
    "push.followTags=false",
    "push.recurseSubmodules=no",
    "fetch.recurseSubmodules=no",
    "fetch.writeCommitGraph=false",
    "transfer.fsckObjects=true",
    # One pack a fetch: loose objects would soon be so many that automatic gc sets in.
    "transfer.unpackLimit=1",
    "fetch.unpackLimit=1",
)
_FLAGS = {" ": "moved", "+": "moved", "*": "new", "=": "known", "!": "refused"}


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a push did: how many refs were new there, moved on, or were there already."""

    new: int
    moved: int
    known: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch did.

    Attributes:
        records: how many were new.
        writers: how many of their refs are new or moved on.
        known: refs with nothing new.
        buried: refs of tags that were removed here, which were left out.
        problems: refs that were not taken, and why.
        later: records on those of them that no tombstone here names: another host made them before it knew.
    """

    records: int
    writers: int
    known: int
    buried: int
    problems: tuple[Problem, ...]
    later: int = 0


def push(ledger: Ledger, remote: str = "origin") -> Pushed:
    """Bring git up to date with the live file, then send every ledger ref to `remote`; nothing there is overwritten.

    Raises:
        LedgerError: no repository, no such remote, or it refused a ref that holds other records.
    """
    store = _store(ledger)
    ledger.flush()
    if not store.heads():
        return Pushed(0, 0, 0)
    refspec = f"{PREFIX}/*:{PREFIX}/*"
    try:
        answer = _git(store, "push", "--porcelain", "--no-verify", "--", _checked(remote), refspec).decode()
    except GitError as error:
        if "rejected" in str(error) or "failed to push some refs" in str(error):
            raise LedgerError(
                f"{remote} refused some ledger refs: it has records that are not here; "
                f"run `mjolnir ledger fetch {remote}` first ({error})"
            ) from error
        raise
    found = [_FLAGS.get(line[0]) for line in answer.splitlines() if re.match(r".\trefs/mjolnir/", line)]
    return Pushed(found.count("new"), found.count("moved"), found.count("known"))


def fetch(ledger: Ledger, remote: str = "origin") -> Fetched:
    """Take from `remote` every record that is not here; what cannot be proven whole is named and left out.

    Raises:
        LedgerError: no repository, or no such remote.
    """
    store = _store(ledger)
    ledger.flush()
    stones = ledger.records(kind=KIND)
    dead = {tag: buried(stone for stone in stones if stone.tag == tag) for tag in {stone.tag for stone in stones}}
    with store.locked(_LOCK_SECONDS):
        _clear(store)
        options = ("--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--refmap=")
        _git(store, "fetch", *options, "--", _checked(remote), f"+{PREFIX}/*:{INCOMING}/*")
        try:
            done = _merge(ledger, store, store.heads(INCOMING), dead)
        finally:
            _clear(store)
    if done.records and not ledger.live.exists():
        # From here on this is a ledger that is asked often: without a live file looks alone would make no index file.
        ledger.reindex()
    return done


def _merge(
    ledger: Ledger, store: GitStore, incoming: Mapping[str, str], dead: Mapping[str, Mapping[str, Buried]]
) -> Fetched:
    heads = store.heads()
    records = writers = known = skipped = later = 0
    problems: list[Problem] = []
    moves: dict[str, tuple[str, str]] = {}
    for staged, head in incoming.items():
        ref = PREFIX + staged.removeprefix(INCOMING)
        old = heads.get(ref, "")
        # A ref that is here goes on as any other, or a push would be refused for good.
        named = None if old else dead.get(tag_of(ref))
        if head == old:
            known += 1
        elif named is not None and writer_of(ref) in named:
            skipped += 1
        elif named is not None and (left := _left_out(store, ref, head)):
            skipped, later = skipped + 1, later + left
        else:
            added, wrong = _added(ledger, store, ref, old, head)
            if wrong:
                problems.append(Problem(ref, wrong))
            elif not added:
                known += 1
            else:
                moves[ref] = (old, head)
                records, writers = records + added, writers + 1
    if moves:
        store.move(moves)
    return Fetched(records, writers, known, skipped, tuple(problems), later)


def _left_out(store: GitStore, ref: str, head: str) -> int:
    """How many records a ref of a removed tag holds; 0 where it is to be looked at: tombstones travel everywhere."""
    try:
        proof = prove(store, ref, head)
    except LedgerError:
        return 0
    lasting = any(record.kind in LASTING for record in proof.records)
    return 0 if proof.wrong or lasting else len(proof.records)


def _added(ledger: Ledger, store: GitStore, ref: str, old: str, head: str) -> tuple[int, str]:
    """How many records `head` has beyond what is here, or why it cannot be taken."""
    try:
        proof = prove(store, ref, head)
    except LedgerError as error:
        return 0, str(error)
    if proof.wrong:
        return 0, proof.wrong
    here = _here(ledger, ref, proof.records[0].tag)
    for record in proof.records:
        if (known := here.get(record.seq)) is not None and known.line != record.line:
            return 0, f"record {record.seq} is here with other content: one of them was altered"
    ids = [commit.id for commit in proof.good]
    if old and old not in ids:
        # What is here goes on where the other side ends, or they have parted.
        ahead = head in {commit.id for commit in prove(store, ref, old).good}
        return 0, "" if ahead else f"it is at {head} there and at {old} here, and neither follows from the other"
    return len(ids) - (ids.index(old) + 1 if old else 0), ""


def _here(ledger: Ledger, ref: str, tag: str) -> dict[int, Record]:
    writer = writer_of(ref)
    return {record.seq: record for record in ledger.records(tag) if record.writer == writer}


def _store(ledger: Ledger) -> GitStore:
    if ledger.repository is None:
        raise LedgerError(f"there are no ledger refs to move: {ledger.git_note}; carry ledger.jsonl and import it")
    return GitStore.discover(ledger.folder)


def _checked(remote: str) -> str:
    """A remote that git takes for one, and for no option."""
    if not remote or remote.startswith("-") or "\0" in remote:
        raise LedgerError(f"{remote!r} is no remote; name one of `git remote`, or a URL")
    return remote


def _clear(store: GitStore) -> None:
    """Forget what a fetch brought, this one or one that was killed."""
    if left := store.heads(INCOMING):
        store.move({ref: (head, "") for ref, head in left.items()})


def _git(store: GitStore, *arguments: str) -> bytes:
    """A command that speaks to a remote, its settings pinned too; relative places are taken from where git takes them.

    Raises:
        GitError: git failed, in its own words where the remote is there.
        LedgerError: there is no such remote.
    """
    settings = [part for setting in _SETTINGS for part in ("-c", setting)]
    try:
        return store.run(*settings, *arguments, folder=store.home)
    except GitError as error:
        if "does not appear to be a git repository" not in str(error):
            raise
        remote = arguments[arguments.index("--") + 1]
        names = store.run("remote").decode().split()
        if remote in names:
            raise GitError(f"the remote {remote} cannot be reached: {error}") from error
        there = f"its remotes are {', '.join(names)}" if names else "it has no remotes"
        raise LedgerError(
            f"{remote!r} is neither a remote of {store.common} ({there}) nor the place of a repository; "
            f"name one, give a URL in its place, or add it: git remote add {remote} URL"
        ) from error
