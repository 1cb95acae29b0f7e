"""Verification and import: whatever was altered is named, and nothing of it is taken in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mjolnir import ledger
from mjolnir.ledger.spelling import canonical
from tests.ledger.samples import TAG, git, ledger_refs, trial


def lines_of(count: int = 4) -> list[bytes]:
    """The lines of one writer, as made by hand from the rules alone."""
    lines: list[bytes] = []
    for seq in range(count):
        values = {
            "schema": "mjolnir.record/1", "kind": "trial", "tag": TAG, "writer": "abcdefghij", "seq": seq,
            "lamport": seq + 1, "prev": ledger.parse(lines[-1]).sha256 if lines else "",
            "time": f"2026-01-01T00:00:0{seq}.000000Z", "body": json.loads(json.dumps(trial(seq + 1))),
        }  # fmt: skip
        lines.append(canonical(values if seq else values | {"environment": {}}))
    return lines


def changed(line: bytes, **values: object) -> bytes:
    return canonical(json.loads(line) | values)


def drop(lines: list[bytes]) -> list[bytes]:
    return [lines[0], *lines[2:]]


def alter(lines: list[bytes]) -> list[bytes]:
    return [lines[0], changed(lines[1], body=trial(99) | {"ratios": {}}), *lines[2:]]


def damage(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[1][:-5], *lines[2:]]


def fork(lines: list[bytes]) -> list[bytes]:
    return [*lines, changed(lines[1], time="2027-01-01T00:00:00.000000Z")]


def rename(lines: list[bytes]) -> list[bytes]:
    return [*lines[:3], changed(lines[3], tag="other")]


def reorder(lines: list[bytes]) -> list[bytes]:
    return [*lines[:3], changed(lines[3], lamport=3)]


CASES = [
    (drop, "line 2: record 2 of writer abcdefghij comes where record 1 is expected"),
    (alter, "line 3: record 2 of writer abcdefghij does not cite the record before it"),
    (damage, "line 2: the line is not JSON"),
    (fork, "line 5: record 1 of writer abcdefghij is at .*, line 2 with other content"),
    (rename, "line 4: record 3 of writer abcdefghij is of tag 'other'"),
    (reorder, "line 4: record 3 of writer abcdefghij has lamport 3, not above 3"),
]


@pytest.mark.parametrize(("spoil", "what"), CASES)
def test_what_is_wrong_with_the_live_file_is_named(
    tmp_path: Path, spoil: Callable[[list[bytes]], list[bytes]], what: str
) -> None:
    (tmp_path / "ledger.jsonl").write_bytes(b"\n".join(spoil(lines_of())) + b"\n")
    with ledger.open(tmp_path, git="off") as book:
        check = book.verify()
        assert not check.ok
        with pytest.raises(AssertionError, match=what):
            raise AssertionError(str(check.problems[0]))
        assert book.writer(TAG).append("note", {"text": "work goes on"}).lamport >= 4


def test_a_whole_chain_is_fine(tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").write_bytes(b"\n".join(lines_of()) + b"\n")
    with ledger.open(tmp_path, git="off") as book:
        assert book.verify() == ledger.Verification(4, 1, 1, ())


@pytest.mark.parametrize("spoil", [drop, damage, fork, alter, rename, reorder])
def test_nothing_of_a_spoilt_file_is_imported(
    repository: Path, tmp_path: Path, spoil: Callable[[list[bytes]], list[bytes]]
) -> None:
    source = tmp_path / "spoilt.jsonl"
    source.write_bytes(b"\n".join(spoil(lines_of())) + b"\n")
    with ledger.open(repository / "research") as book:
        with pytest.raises(ledger.LedgerError):
            book.import_file(source)
        assert book.records() == ()
    assert ledger_refs(repository) == {}


def test_a_fork_of_what_is_here_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "file.jsonl"
    source.write_bytes(b"\n".join(lines_of()) + b"\n")
    with ledger.open(tmp_path / "book", git="off") as book:
        book.import_file(source)
        source.write_bytes(changed(lines_of()[0], environment={"other": 1}) + b"\n")
        with pytest.raises(ledger.LedgerError, match="with other content"):
            book.import_file(source)
        assert len(book.records()) == 4


def test_parts_of_a_file_join(tmp_path: Path) -> None:
    lines = lines_of()
    source = tmp_path / "part.jsonl"
    with ledger.open(tmp_path / "book", git="off") as book:
        source.write_bytes(b"\n".join(lines[:2]) + b"\n" + lines[2][:40])
        assert book.import_file(source) == ledger.Imported(added=2, known=0, torn=True)
        source.write_bytes(lines[3] + b"\n")
        with pytest.raises(ledger.LedgerError, match=r"nothing was imported: record 3 .* take the whole file"):
            book.import_file(source)
        source.write_bytes(b"\n".join(lines))
        assert book.import_file(source) == ledger.Imported(added=2, known=2, torn=False)
        assert [record.line for record in book.records()] == lines
        with book.writer(TAG) as writer:
            assert writer.append("note", {}).lamport == 5


def test_reading_a_file(tmp_path: Path) -> None:
    source = tmp_path / "file.jsonl"
    with pytest.raises(ledger.LedgerError, match=r"file\.jsonl cannot be read: No such file"):
        ledger.read_file(source)
    source.write_bytes(b"\n".join(lines_of()) + b"\n")
    assert [record.line for record in ledger.read_file(source)] == lines_of()
    source.write_bytes(lines_of()[0] + b"\nnonsense\n")
    with pytest.raises(ledger.LedgerError, match=r"file\.jsonl, line 2: the line is not JSON"):
        ledger.read_file(source)


def test_a_commit_that_its_record_does_not_make_is_named(repository: Path) -> None:
    with ledger.open(repository / "research") as book:
        with book.writer(TAG) as writer:
            writer.append("trial", trial(1))
        (ref,) = ledger_refs(repository)
        tree = git(repository, "rev-parse", f"{ref}^{{tree}}").strip()
        forged = git(repository, "commit-tree", tree, "-m", "trial 1 keep 0.500 forged").strip()
        git(repository, "update-ref", ref, forged)
        (problem,) = book.verify().problems
        assert problem.where == f"commit {forged}"
        assert "not this one" in problem.what
        git(repository, "update-ref", ref, "HEAD")
        (problem,) = book.verify().problems
        assert "holds no record.json" in problem.what


def test_a_ref_under_another_name_is_named(repository: Path) -> None:
    with ledger.open(repository / "research") as book:
        with book.writer(TAG) as writer:
            writer.append("trial", trial(1))
        (ref,) = ledger_refs(repository)
        git(repository, "update-ref", "refs/mjolnir/ledger/other/abcdefghij", ref)
        (problem,) = book.verify().problems
        assert (problem.where, problem.what) == ("refs/mjolnir/ledger/other/abcdefghij", f"holds the records of {ref}")
        assert "mjolnir ledger repair" in problem.remedy
