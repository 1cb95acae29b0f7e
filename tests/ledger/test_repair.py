"""Repair: what is provably whole stays, the rest is set aside and never lost, and twice is as good as once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mjolnir import ledger
from mjolnir.ledger import aside
from mjolnir.ledger.record import MAX_LINE
from mjolnir.ledger.repair import ASIDE, repair
from tests.ledger.samples import TAG, git, ledger_refs, trial
from tests.ledger.test_verify import alter, changed, damage, drop, fork, lines_of, rename, reorder


def write(folder: Path, lines: list[bytes], tail: bytes = b"") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "ledger.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines) + tail)
    return path


def set_aside(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((folder / ".ledger").iterdir()))


@pytest.mark.parametrize(
    ("spoil", "kept"),
    [(drop, 1), (alter, 2), (damage, 1), (fork, 4), (rename, 3), (reorder, 3)],
    ids=lambda v: getattr(v, "__name__", str(v)),
)
def test_what_does_not_follow_is_set_aside(
    tmp_path: Path, spoil: Callable[[list[bytes]], list[bytes]], kept: int
) -> None:
    lines = spoil(lines_of())
    live = write(tmp_path, lines)
    with ledger.open(tmp_path, git="off") as book:
        planned = repair(book, dry_run=True)
        assert live.read_bytes().splitlines() == lines
        assert not (tmp_path / ".ledger").exists()
        done = repair(book)
        assert (done.kept, len(done.lines)) == (kept, len(lines) - kept)
        assert (planned.kept, planned.lines) == (done.kept, done.lines)
        left = live.read_bytes().splitlines()
        assert left == [line for line in lines if line in left]
        assert book.verify().ok
        assert len(book.records()) == kept
        assert sorted((*left, *set_aside(tmp_path).splitlines())) == sorted(lines)
        rows = (tmp_path / "ledger.tsv").read_text().splitlines()
        assert len(rows) == kept + 1
        before = live.read_bytes(), live.stat().st_ino
        again = repair(book)
        assert not again.needed
        assert (live.read_bytes(), live.stat().st_ino) == before


def test_an_altered_line_is_known_by_what_cites_the_other(tmp_path: Path) -> None:
    lines = lines_of()
    other = changed(lines[1], body=trial(99))
    write(tmp_path, [lines[0], other, lines[1], *lines[2:]])
    with ledger.open(tmp_path, git="off") as book:
        (problem,) = repair(book).lines
        assert "line 2: record 1 of writer abcdefghij was altered" in str(problem)
        assert [record.line for record in book.records()] == lines


def test_what_git_holds_is_recovered(repository: Path) -> None:
    folder = repository / "research"
    with ledger.open(folder) as book, book.writer(TAG) as writer:
        records = [writer.append("trial", trial(number)) for number in range(1, 6)]
    lines = [record.line for record in records]
    write(folder, [lines[0], changed(lines[1], body=trial(99)), b"\x00\xff", *lines[3:]])
    with ledger.open(folder) as book:
        assert not book.verify().ok
        done = repair(book)
        assert [problem.where.rsplit(", ", 1)[1] for problem in done.lines] == ["line 2", "line 3"]
        assert [record.line for record in book.records()] == lines
        assert book.verify().ok


def test_a_forged_ref_is_kept_aside_and_goes_back(repository: Path) -> None:
    folder = repository / "research"
    with ledger.open(folder) as book, book.writer(TAG) as writer:
        for number in range(1, 4):
            writer.append("trial", trial(number))
    (ref,) = ledger_refs(repository)
    good = ledger_refs(repository)[ref]
    tree = git(repository, "rev-parse", f"{ref}^{{tree}}").strip()
    forged = git(repository, "commit-tree", tree, "-p", f"{ref}~1", "-m", "trial 3 keep 0.500 forged").strip()
    git(repository, "update-ref", ref, forged)
    with ledger.open(folder) as book:
        assert book.verify().problems[0].where == f"commit {forged}"
        done = repair(book)
        assert [problem.where for problem in done.refs] == [ref]
        kept = ledger_refs(repository)
        assert kept == {ref: good, f"{ASIDE}/{forged}/{TAG}/{book.records()[0].writer}": forged}
        assert book.verify().ok
        assert not repair(book).needed
        assert ledger_refs(repository) == kept


def test_a_ref_that_holds_no_records_is_made_again_from_the_live_file(repository: Path) -> None:
    folder = repository / "research"
    with ledger.open(folder) as book, book.writer(TAG) as writer:
        writer.append("trial", trial(1))
    (ref, head), *_ = ledger_refs(repository).items()
    user = git(repository, "rev-parse", "HEAD").strip()
    git(repository, "update-ref", ref, user)
    with ledger.open(folder) as book:
        assert len(repair(book).refs) == 1
        assert ledger_refs(repository)[ref] == head
        assert git(repository, "rev-parse", "HEAD").strip() == user
        assert book.verify().ok


def test_a_ref_that_was_renamed_goes_home(repository: Path) -> None:
    folder = repository / "research"
    with ledger.open(folder) as book, book.writer(TAG) as writer:
        record = writer.append("trial", trial(1))
    (ref, head), *_ = ledger_refs(repository).items()
    git(repository, "update-ref", "refs/mjolnir/ledger/other/abcdefghij", head)
    git(repository, "update-ref", "-d", ref)
    (folder / "ledger.jsonl").unlink()
    with ledger.open(folder) as book:
        repair(book)
        assert ledger_refs(repository)[ref] == head
        assert "refs/mjolnir/ledger/other/abcdefghij" not in ledger_refs(repository)
        assert book.records() == (record,)
        assert book.verify().ok


def test_lines_of_a_newer_mjolnir_are_not_touched(tmp_path: Path) -> None:
    lines = [*lines_of(2), changed(lines_of()[0], schema="mjolnir.record/3", writer="klmnopqrst")]
    live = write(tmp_path, [lines[0], b"damaged", *lines[1:]])
    with ledger.open(tmp_path, git="off") as book:
        assert str(book.verify().problems[-1]).endswith("a newer Mjolnir wrote it, update to read it")
        with pytest.raises(ledger.LedgerError, match=r"line 4: .*newer Mjolnir.*nothing was repaired"):
            repair(book)
    assert live.read_bytes().splitlines() == [lines[0], b"damaged", *lines[1:]]


def test_a_line_longer_than_any_record_is_set_aside_whole(tmp_path: Path) -> None:
    lines = lines_of()
    huge = b'{"body":"' + b"x" * (MAX_LINE + 70)
    write(tmp_path, [lines[0], huge, *lines[1:]])
    with ledger.open(tmp_path, git="off") as book:
        assert "16777217 bytes; 16777216 are allowed" in str(book.verify().problems[0])
        repair(book)
        assert [record.line for record in book.records()] == lines
    assert set_aside(tmp_path) == huge + b"\n"


def test_a_torn_tail_is_told_and_moved_aside(tmp_path: Path) -> None:
    lines = lines_of()
    write(tmp_path, lines[:2], lines[2][:30])
    with ledger.open(tmp_path, git="off") as book:
        (problem,) = repair(book, dry_run=True).lines
        assert "the last line is torn" in problem.what
        assert repair(book).lines == (problem,)
        assert set_aside(tmp_path) == lines[2][:30]
        assert not repair(book).needed


def test_a_last_line_that_lacks_only_its_newline_stays(tmp_path: Path) -> None:
    lines = lines_of()
    live = write(tmp_path, lines[:2], lines[2])
    with ledger.open(tmp_path, git="off") as book:
        assert not repair(book, dry_run=True).needed
        book.writer(TAG).close()
        assert [record.line for record in book.records()] == lines[:3]
    assert live.read_bytes() == b"\n".join(lines[:3]) + b"\n"
    assert not (tmp_path / ".ledger").exists()


@pytest.mark.parametrize("step", ["put", "create", "replace"])
def test_a_repair_that_is_cut_short_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    lines = alter(lines_of())
    live = write(tmp_path, lines)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    with ledger.open(tmp_path, git="off") as book:
        with monkeypatch.context() as patch:
            owner = Path if step == "replace" else aside
            patch.setattr(owner, step, full)
            with pytest.raises(ledger.LedgerError, match="it is as it was"):
                repair(book)
        assert live.read_bytes().splitlines() == lines
        assert not live.with_name("ledger.jsonl.new").exists()
        assert repair(book).needed
        assert book.verify().ok
        assert set_aside(tmp_path).splitlines() == lines[2:]


def test_a_link_in_place_of_the_folder_aside_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "book", damage(lines_of()))
    (tmp_path / "book" / ".ledger").symlink_to(tmp_path / "elsewhere")
    with ledger.open(tmp_path / "book", git="off") as book, pytest.raises(ledger.LedgerError, match="symbolic link"):
        repair(book)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_where_two_chains_part_the_one_in_git_goes_on(repository: Path) -> None:
    folder = repository / "research"
    with ledger.open(folder) as book, book.writer(TAG) as writer:
        two = [writer.append("trial", trial(number)).line for number in (1, 2)]
        writer.flush()
        ref, head = next(iter(ledger_refs(repository).items()))
        lines = [*two, *(writer.append("trial", trial(number)).line for number in (3, 4))]
    git(repository, "update-ref", ref, head)
    other = changed(lines[1], time="2027-01-01T00:00:00.000000Z")
    follower = changed(lines[2], prev=ledger.parse(other).sha256)
    write(folder, [lines[0], other, follower, lines[2], lines[3]])
    with ledger.open(folder) as book:
        assert [problem.where.rsplit(", ", 1)[1] for problem in repair(book).lines] == ["line 2", "line 3"]
        assert [record.line for record in book.records()] == lines
        assert book.verify().ok
