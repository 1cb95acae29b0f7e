"""`mjolnir ledger`: what is wrong is named, first things first, and what to do about it works."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from mjolnir import ledger as ledgers
from mjolnir.backend.table import Table
from mjolnir.ledger.git_store import GitError
from mjolnir.ledger.spelling import canonical
from mjolnir.research import bodies, maintenance, places
from mjolnir.research.answer import Failure, UsageFailure
from mjolnir.research.journal import LedgerJournal
from mjolnir.research.stopping import Running
from tests.research.conftest import git, six_rows_path
from tests.research.test_cli import call, replay

pytestmark = pytest.mark.usefixtures("six_rows")

RUN = Path(__file__).parents[2] / "research" / "runs" / "h200-decode8" / "ledger.jsonl"
TAG = "h200-decode8"
BODY = {"trial": 1, "status": "measured"}


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger that holds the committed run, in no repository."""
    folder = tmp_path_factory.mktemp("imported") / "book"
    with ledgers.open(folder, git="off") as ledger:
        ledger.import_file(RUN)
    return folder


@pytest.fixture
def book(imported: Path, tmp_path: Path) -> Path:
    """A copy of it to spoil."""
    return Path(shutil.copytree(imported, tmp_path / "book"))


def in_force() -> list[Table]:
    return [Table.read(six_rows_path(), "packaged table")]


def say(command: str, folder: Path, *more: object) -> tuple[int, Any]:
    """Exit code and JSON of a `mjolnir ledger` command."""
    code, out, _ = call("ledger", command, *more, "--ledger", folder, "--json")
    return code, json.loads(out)


def test_a_whole_ledger_and_its_certificates(book: Path) -> None:
    code, data = say("verify", book)
    lines = RUN.read_bytes().count(b"\n")
    assert (code, data["ok"], data["problems"], data["records"]) == (0, True, [], lines)
    code, data = say("repair", book)
    assert (code, data["needed"], data["kept"]) == (0, False, lines)
    assert (book / "ledger.jsonl").read_bytes() == RUN.read_bytes()


def test_the_first_thing_that_is_wrong_comes_first_with_place_and_remedy(book: Path) -> None:
    live = book / "ledger.jsonl"
    lines = live.read_bytes().splitlines()
    live.write_bytes(b"\n".join((*lines[:4], lines[4][:-9], *lines[5:9], b"{}", *lines[10:])) + b"\n")
    code, out, _ = call("ledger", "verify", "--ledger", book)
    told = out.splitlines()
    assert code == 1
    assert told[0].endswith("; the first one:")
    assert told[1].startswith(f"{live}, line 5: the line is not JSON")
    assert told[1].endswith("run `mjolnir ledger repair`: it keeps what is provably whole and sets the rest aside")
    code, data = say("repair", book, "--dry-run")
    assert (code, data["needed"], data["kept"], data["file"]) == (1, True, 4, None)
    code, data = say("repair", book)
    assert (code, data["kept"], len(data["lines"])) == (0, 4, len(lines) - 4)
    assert Path(data["file"]).read_bytes().splitlines()[1:5] == lines[5:9]
    assert say("repair", book)[1]["needed"] is False
    # The lines that were whole come back with the file that has the one between.
    assert say("import", book, RUN)[1]["added"] == len(lines) - 4
    assert say("verify", book)[0] == 0


def test_what_cannot_be_imported_is_told_apart(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    told = (
        (tmp_path, f"{tmp_path} is a folder; give the file of an exported run: {tmp_path / 'ledger.jsonl'}"),
        (tmp_path / "pipe", f"{tmp_path / 'pipe'} is no regular file"),
        (tmp_path / "nothing", f"there is no file {tmp_path / 'nothing'}"),
    )
    for path, message in told:
        code, _, error = call("ledger", "import", path, "--ledger", tmp_path / "book")
        assert (code, error.strip()) == (2, f"mjolnir: {message}")
    assert not (tmp_path / "book").exists()


def test_a_row_that_does_not_follow_from_the_records_is_named(book: Path) -> None:
    with ledgers.open(book) as ledger:
        assert maintenance.verify(ledger, in_force()).data["ok"]
        (table,) = in_force()
        row = table.rows[0]
        ratio = {**row.certificate["ratio_default"], "value": 0.5}
        forged = type(row)(row.key, row.engine, row.setting, {**row.certificate, "ratio_default": ratio})
        answer = maintenance.verify(ledger, [Table("packaged table", (forged, *table.rows[1:]))])
    (problem,) = answer.data["problems"]
    assert answer.code == 1
    assert problem["where"] == "packaged table, NVIDIA H200 batch 1"
    assert f"does not follow from the records of {TAG}" in problem["what"]
    assert "mjolnir defaults verify" in problem["remedy"]


def test_a_row_of_another_ledger_is_no_matter_here(tmp_path: Path) -> None:
    with ledgers.open(tmp_path, git="off") as ledger:
        with ledger.writer("a") as writer:
            writer.append("trial", BODY)
        assert maintenance.verify(ledger, in_force()).data["ok"]


def test_a_promotion_that_cites_what_is_not_here_is_named(tmp_path: Path) -> None:
    with ledgers.open(tmp_path, git="off") as ledger:
        with ledger.writer("a") as writer:
            trial = writer.append("trial", BODY)
            writer.append("promotion", {"bucket": 8, "certificate": {"records": [trial.sha256, "f" * 64]}})
            writer.append("promotion", {"bucket": 1, "certificate": None})
        (problem,) = maintenance.verify(ledger).data["problems"]
    assert problem["where"] == f"promotion record 1 of writer {writer.id} in a"
    assert problem["what"] == "its certificate cites record ffffffffffff, which is not here"


def test_what_git_does_not_have_yet_is_counted(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkout / "research"
    with ledgers.open(folder, git="off") as ledger, ledger.writer("a") as writer:
        writer.append("trial", BODY)

    def busy(*_: object) -> None:
        raise GitError("another process is moving the ledger refs")

    monkeypatch.setattr("mjolnir.ledger.git_store.GitStore.write", busy)
    code, data = say("verify", folder)
    assert (code, data["unflushed"]) == (0, 1)
    assert "1 of them are not in git yet" in call("ledger", "verify", "--ledger", folder)[1]


def test_an_index_that_differs_is_told_and_made_again(tmp_path: Path) -> None:
    with ledgers.open(tmp_path, git="off") as ledger, ledger.writer("a") as writer:
        writer.append("trial", BODY)
        second = writer.append("trial", BODY | {"trial": 2})
    live = tmp_path / "ledger.jsonl"
    assert say("verify", tmp_path)[0] == 0
    other = json.loads(second.line) | {"time": "2027-01-01T00:00:00.000000Z"}
    altered = live.read_bytes().replace(second.line, canonical(other))
    with live.open("r+b") as file:
        file.write(altered)
    code, data = say("verify", tmp_path)
    assert (code, data["problems"][0]["where"]) == (1, "index")
    assert "mjolnir ledger reindex" in data["problems"][0]["remedy"]
    say("reindex", tmp_path)
    assert say("verify", tmp_path)[0] == 0


def test_a_tag_is_removed_and_then_collected(recording: Path, tmp_path: Path) -> None:
    folder = tmp_path / "l"
    replay(recording, folder)
    replay(recording, folder, tag="b")
    count = len((folder / "ledger.jsonl").read_bytes().splitlines())
    code, out, _ = call("ledger", "remove", "a", "-m", "a typo", "--ledger", folder)
    assert code == 0
    assert f"mjolnir ledger gc --ledger {folder}" in out
    assert len((folder / "ledger.jsonl").read_bytes().splitlines()) == count + 1
    planned = say("gc", folder, "--dry-run")[1]
    assert len((folder / "ledger.jsonl").read_bytes().splitlines()) == count + 1
    code, data = say("gc", folder)
    assert code == 0
    assert data["records"] == planned["records"]
    assert len((folder / "ledger.jsonl").read_bytes().splitlines()) == count + 1 - data["records"]["a"]
    assert "nothing to collect" in call("ledger", "gc", "--ledger", folder)[1]
    with ledgers.open(folder) as ledger:
        assert [record.kind for record in ledger.records("a")] == ["tombstone"]
        assert ledger.records("a")[0].body["text"] == "a typo"
        assert len(ledger.records("b")) == (count - data["records"]["a"])
    assert say("verify", folder)[0] == 0
    code, _, err = call("ledger", "remove", "a", "--ledger", folder)
    assert (code, "all its records are removed already" in err) == (1, True)


def test_alpha_that_a_removed_tag_spent_stays_spent(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, folder = bodies.campaign_body, tmp_path / "ledger"
    monkeypatch.setattr(bodies, "campaign_body", lambda *given: {**body(*given), "simulated": False})
    replay(recording, folder, tag="a")
    replay(recording, folder, tag="b")

    def spent(tag: str) -> list[tuple[Any, ...]]:
        with ledgers.open(folder) as ledger, ledger.writer(tag) as writer:
            bodies = [record["body"] for record in LedgerJournal(ledger, writer, tag).elsewhere()]
        return [(b["key"], b["certificate"]["kernel_hash"], b["certificate"]["instances"]) for b in bodies]

    before = spent("b")
    assert before
    assert call("ledger", "remove", "a", "--ledger", folder)[0] == 0
    assert spent("b") == before, "nothing is counted twice while the records are still there"
    assert call("ledger", "gc", "--ledger", folder)[0] == 0
    assert spent("b") == before


def test_what_is_in_use_is_not_removed(book: Path) -> None:
    with ledgers.open(book) as ledger:
        with pytest.raises(Failure, match=r"packaged table .batch 1. rests on h200-decode8"):
            maintenance.remove(ledger, TAG, "", in_force())
        with (
            Running(places.state_folder(book), TAG).claim(),
            pytest.raises(UsageFailure, match="a run holds"),
        ):
            maintenance.remove(ledger, TAG, "")
        maintenance.remove(ledger, TAG, "")
        with pytest.raises(Failure, match="rests on h200-decode8"):
            maintenance.collect(ledger, tables=in_force())
        with (
            Running(places.state_folder(book), TAG).claim(),
            pytest.raises(UsageFailure, match="a run holds"),
        ):
            maintenance.collect(ledger)
        assert len(ledger.records(TAG, "trial")) > 100


def test_push_and_fetch_between_clones(recording: Path, checkout: Path, tmp_path: Path) -> None:
    hub, clone = tmp_path / "hub.git", tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--bare", str(checkout), str(hub))
    git(tmp_path, "clone", "--quiet", str(hub), str(clone))
    git(checkout, "remote", "add", "origin", str(hub))
    replay(recording, checkout / "research")
    replay(recording, clone / "research", tag="b")
    code, out, _ = call("ledger", "push", "--ledger", checkout / "research")
    assert (code, out) == (0, "origin: ledger refs 1 new, 0 moved on, 0 there already\n")
    code, data = say("fetch", clone / "research")
    with ledgers.open(checkout / "research") as here, ledgers.open(clone / "research") as there:
        assert (code, data["records"], data["problems"]) == (0, len(here.records()), [])
        assert there.records("a") == here.records("a")
    code, out, err = call("ledger", "fetch", "elsewhere", "--ledger", clone / "research")
    assert (code, "'elsewhere' is neither a remote of" in err, "(its remotes are origin)" in err) == (1, True, True)
    for command in ("push", "fetch"):
        text = call("ledger", command, "--help")[1]
        assert "git log --exclude='refs/mjolnir/*' --all" in text
        assert "git config --add log.excludeDecoration 'refs/mjolnir/'" in text


def test_what_is_not_whole_is_not_fetched(recording: Path, checkout: Path, tmp_path: Path) -> None:
    hub = tmp_path / "hub.git"
    git(tmp_path, "clone", "--quiet", "--bare", str(checkout), str(hub))
    git(hub, "update-ref", "refs/mjolnir/ledger/a/abcdefghij", "HEAD")
    code, out, _ = call("ledger", "fetch", hub, "--ledger", checkout / "research")
    assert code == 1
    place = f"commit {git(hub, 'rev-parse', 'HEAD')} in {checkout / '.git'}"
    told = f"refs/mjolnir/ledger/a/abcdefghij: {place} holds no record.json"
    assert out.splitlines()[1:] == ["1 ref not taken:", told]
