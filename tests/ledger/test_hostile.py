"""Hostile files: nothing in them runs, leaves the folder, takes unbounded memory, or ends in a traceback."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mjolnir import ledger
from mjolnir.ledger import live as live_file
from mjolnir.ledger import parsing
from mjolnir.ledger.errors import LedgerError, RecordError
from mjolnir.ledger.git_store import GitError, GitStore
from mjolnir.ledger.live import last_lines, scan
from mjolnir.ledger.parsing import parse
from mjolnir.ledger.record import MAX_LINE, MOST_TRIALS
from mjolnir.ledger.spelling import canonical
from tests.ledger.samples import TAG, git, ledger_refs, trial
from tests.ledger.test_record import altered, make
from tests.ledger.test_verify import changed, lines_of


def spelled(body: str) -> bytes:
    """The line of a note whose body is this JSON text, canonical or not."""
    return make().line.replace(b'{"text":"x"}', body.encode("utf-8", "surrogatepass"))


HOSTILE: dict[str, bytes] = {
    "infinity by overflow": spelled('{"a":1e999}'),
    "NaN": spelled('{"a":NaN}'),
    "lone surrogate": spelled('{"a":"\\ud800"}'),
    "surrogate in the bytes": spelled('{"a":"\ud800"}'),
    "duplicate key": spelled('{"a":1,"a":2}'),
    "duplicate key with one value": spelled('{"a":1,"a":1}'),
    "deep list": spelled('{"a":' + "[" * 100_000 + "]" * 100_000 + "}"),
    "deep object": spelled('{"a":' * 50_000 + "1" + "}" * 50_000),
    "deep but whole": canonical({"body": 1})[:-2] + b"[" * 900 + b"]" * 900 + b"}",
    "number of many digits": spelled('{"a":' + "9" * 5000 + "}"),
    "not UTF-8": make().line.replace(b"x", b"\xff"),
    "NUL": b"\0" * 100,
    "newline of another system": make().line + b"\r",
    "byte order mark": b"\xef\xbb\xbf" + make().line,
    "too long": b'{"body":"' + b"x" * MAX_LINE,
    "path for a tag": altered(tag="../../etc/passwd"),
    "absolute path for a tag": altered(tag="/etc/passwd"),
    "long tag": altered(tag="a" * 10_000_000),
    "long kind": altered(kind="a" * 10_000_000),
    "long schema": altered(schema="mjolnir.record/" + "9" * 10_000_000),
    "writer with a path": altered(writer="../../abcd"),
    "list for a kind": altered(kind=[]),
    "object for a tag": altered(tag={}),
    "pickle": b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_line_is_refused_in_few_words(tmp_path: Path, name: str) -> None:
    line = HOSTILE[name]
    with pytest.raises(RecordError) as caught:
        parse(line)
    assert len(str(caught.value)) < 500
    good = lines_of(2)
    (tmp_path / "ledger.jsonl").write_bytes(b"\n".join((good[0], line, good[1])) + b"\n")
    source = tmp_path / "file.jsonl"
    source.write_bytes(line + b"\n")
    with ledger.open(tmp_path, git="off") as book:
        (problem,) = book.verify().problems
        assert problem.where == f"{book.live}, line 2"
        assert [record.line for record in book.records()] == good
        with pytest.raises(ledger.LedgerError, match=r"file\.jsonl, line 1: "):
            book.import_file(source)
        assert book.writer(TAG).append("note", {"text": "work goes on"}).seq == 0
    made = {path.name for path in tmp_path.iterdir()}
    assert {name for name in made if not name.startswith("ledger.")} <= {"file.jsonl", ".ledger"}


def test_what_can_be_parsed_and_not_spelled_is_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_deep(_: object) -> bytes:
        raise RecursionError("maximum recursion depth exceeded")

    line = make().line
    monkeypatch.setattr(parsing, "canonical", too_deep)
    with pytest.raises(RecordError, match="holds what a record cannot: maximum recursion"):
        parse(line)


def test_a_line_without_an_end_is_read_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    good = lines_of(2)
    with path.open("wb") as file:
        file.write(good[0] + b"\n")
        file.truncate(1 << 28)
        file.seek(1 << 28)
        file.write(b"\n" + good[1] + b"\n")
        file.truncate(file.tell() + (1 << 28))
    script = (
        "import sys; from pathlib import Path; from mjolnir.ledger.live import scan, last_lines;"
        "found = [(start, end, len(line)) for start, end, line in scan(Path(sys.argv[1]))];"
        "print(found[-2:], len(found), len(next(last_lines(Path(sys.argv[1])))))"
    )
    limit = 300 << 20

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, preexec_fn=bounded, check=False
    )
    assert done.returncode == 0, done.stderr[-500:]
    first, last = len(good[0]) + 1, (1 << 28) + 1
    ends = [(first, last, MAX_LINE + 1), (last, last + len(good[1]) + 1, len(good[1]))]
    assert done.stdout.strip() == f"{ends} 3 {len(good[1])}"


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ledger.jsonl")
    with (
        ledger.open(tmp_path, git="off") as book,
        pytest.raises(LedgerError, match=r"ledger.jsonl is no file of records"),
    ):
        book.records()


def test_no_number_of_a_trial_is_beyond_counting() -> None:
    assert parse(make("trial", trial(MOST_TRIALS)).line).content["trial"] == MOST_TRIALS
    with pytest.raises(RecordError, match="expected a whole number from 1 to 10000000"):
        make("trial", trial(MOST_TRIALS + 1))


def test_long_lines_keep_their_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_file, "MAX_LINE", 10)
    path = tmp_path / "lines"
    path.write_bytes(b"one\n" + b"x" * 25 + b"\nthree\n" + b"y" * 10 + b"\n")
    for chunk in (3, 7, 1000):
        monkeypatch.setattr(live_file, "_CHUNK", chunk)
        assert list(scan(path)) == [
            (0, 4, b"one"), (4, 30, b"x" * 11), (30, 36, b"three"), (36, 47, b"y" * 10)
        ]  # fmt: skip
        found = list(last_lines(path))
        assert (found[0], found[1], found[3]) == (b"y" * 10, b"three", b"one")


def test_a_large_blob_in_a_ref_is_not_read(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mjolnir.ledger.git_store.MAX_LINE", 1000)
    big = repository / "big"
    big.write_bytes(b"x" * 1001)
    blob = git(repository, "hash-object", "-w", "big").strip()
    index = {"GIT_INDEX_FILE": str(repository / "scratch")}
    for command in (["update-index", "--add", "--cacheinfo", f"100644,{blob},record.json"], ["write-tree"]):
        done = subprocess.run(
            ["git", *command], cwd=repository, env=os.environ | index, check=True, capture_output=True, text=True
        )
    commit = git(repository, "commit-tree", done.stdout.strip(), "-m", "trial 1").strip()
    git(repository, "update-ref", f"refs/mjolnir/ledger/{TAG}/abcdefghij", commit)
    with pytest.raises(GitError, match=rf"record\.json of commit {commit} has 1001 bytes; 1000 are allowed"):
        list(GitStore.discover(repository).read([commit], ()))
    with ledger.open(repository / "research") as book:
        assert book.records() == ()
        assert "1001 bytes" in str(book.verify().problems[0])


def test_a_record_in_a_ref_is_checked_like_a_line(repository: Path) -> None:
    with ledger.open(repository / "research") as book, book.writer(TAG) as writer:
        writer.append("trial", trial(1))
    (ref,) = ledger_refs(repository)
    hostile = repository / "record"
    hostile.write_bytes(changed(lines_of()[0], tag="../x"))
    blob = git(repository, "hash-object", "-w", "record").strip()
    tree = subprocess.run(
        ["git", "mktree"], input=f"100644 blob {blob}\trecord.json\n", cwd=repository, capture_output=True,
        check=True, text=True,
    ).stdout.strip()  # fmt: skip
    commit = git(repository, "commit-tree", tree, "-p", ref, "-m", "x").strip()
    git(repository, "update-ref", ref, commit)
    with ledger.open(repository / "research") as book:
        (problem,) = book.verify().problems
        assert problem.where == f"commit {commit}"
        assert "is no tag" in problem.what
        assert len(book.records()) == 1


@pytest.mark.parametrize("name", ["ledger.jsonl", "ledger.tsv", "ledger.lock", "ledger.jsonl.new", "ledger.tsv.new"])
def test_no_link_is_followed_on_write(tmp_path: Path, name: str) -> None:
    target = tmp_path / "precious"
    target.write_text("mine\n")
    folder = tmp_path / "book"
    folder.mkdir()
    (folder / name).symlink_to(target)
    said = f"cannot be {name}"
    try:
        with ledger.open(folder, git="off") as book, book.writer(TAG) as writer:
            writer.append("trial", trial(1))
    except ledger.LedgerError as error:
        said = str(error)
    assert "cannot be" in said
    assert name in said
    assert target.read_text() == "mine\n"


def test_no_link_is_followed_when_a_tail_is_set_aside(tmp_path: Path) -> None:
    folder = tmp_path / "book"
    folder.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (folder / ".ledger").symlink_to(tmp_path / "elsewhere")
    (folder / "ledger.jsonl").write_bytes(lines_of()[0] + b"\ntorn")
    with ledger.open(folder, git="off") as book, pytest.raises(ledger.LedgerError, match="symbolic link"):
        book.writer(TAG)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert (folder / "ledger.jsonl").read_bytes().endswith(b"\ntorn")


@pytest.mark.parametrize(
    "value", ["$(touch run)", "`touch run`", "; touch run", "--exec=touch run", "\n\ncommitter x <x> 1 +0000\n", "=1+1"]
)
def test_text_of_a_record_is_text_wherever_it_goes(
    repository: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.chdir(repository)
    body: dict[str, Any] = trial(1, reason=value, setting={value: value}, changed={value: value}, verdict=value)
    with ledger.open("research") as book:
        with book.writer(TAG, {value: value}) as writer:
            writer.append("trial", body)
            writer.append("note", {"text": value})
        assert json.loads(book.records()[0].line)["body"]["reason"] == value
        assert book.verify().ok
    assert not (repository / "run").exists()
    assert len(git(repository, "rev-list", *ledger_refs(repository)).split()) == 2
    assert git(repository, "fsck", "--strict", "--no-dangling").strip() == ""


def test_one_altered_digit_is_warned_of_once_a_writer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with ledger.open(tmp_path, git="off") as book, book.writer(TAG) as first, book.writer(TAG) as second:
        for number in range(1, 41):
            (first, second)[number % 2].append("trial", trial(number))
    text = book.live.read_text()
    book.live.write_text(text.replace('"trial":3,', '"trial":9,', 1).replace('"trial":4,', '"trial":8,', 1))
    (tmp_path / "ledger.sqlite").unlink()
    with ledger.open(tmp_path, git="off") as book:
        assert len(book.records()) == 40
    warned = sorted(record.getMessage() for record in caplog.records)
    assert warned == sorted(
        f"record 2 of writer {writer.id} does not follow its predecessor, and 17 more of its kind; "
        "`mjolnir ledger verify` tells more"
        for writer in (first, second)
    )


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
def test_the_index_does_not_follow_a_link(tmp_path: Path, caplog: pytest.LogCaptureFixture, suffix: str) -> None:
    target = tmp_path / "precious"
    target.write_bytes(b"")
    folder = tmp_path / "ledger"
    with ledger.open(folder, git="off") as book, book.writer(TAG) as writer:
        writer.append("trial", trial(1))
    index = folder / f"ledger.sqlite{suffix}"
    index.unlink(missing_ok=True)
    index.symlink_to(target)
    with ledger.open(folder, git="off") as book:
        assert len(book.records()) == 1
    assert target.read_bytes() == b""
    assert not index.is_symlink()
    assert "is a link, which the index does not follow" in caplog.text
