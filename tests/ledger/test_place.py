"""Where the ledger lies, and what opening it costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mjolnir import ledger
from mjolnir.ledger import Place, locate


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder in no checkout, and a home of its own."""
    monkeypatch.delenv("MJOLNIR_LEDGER", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_order_of_places(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert locate() == Place(home / "data" / "mjolnir" / "ledger", "user data folder")
    (home / "pyproject.toml").write_text('[project]\nname = "mjolnir-autoresearch"\n')
    (home / "kernel" / "deep").mkdir(parents=True)
    monkeypatch.chdir(home / "kernel" / "deep")
    assert locate() == Place(home / "research", "checkout")
    monkeypatch.setenv("MJOLNIR_LEDGER", "elsewhere")
    assert locate() == Place(home / "kernel" / "deep" / "elsewhere", "$MJOLNIR_LEDGER")
    assert locate(home / "named") == Place(home / "named", "--ledger")
    assert str(locate("named")) == f"{home / 'kernel' / 'deep' / 'named'} (--ledger)"


def test_other_projects_are_no_checkout(home: Path) -> None:
    for text in ('[project]\nname = "other"\n', "project = 3\n", "not toml ["):
        (home / "pyproject.toml").write_text(text)
        assert locate().origin == "user data folder"


def test_a_folder_of_our_making_is_ignored_by_git_and_one_that_was_there_is_left(repository: Path) -> None:
    (repository / "there").mkdir()
    for name in ("there", "made/here"):
        with ledger.open(repository / name) as book, book.writer("tag") as writer:
            writer.append("note", {})
    assert not (repository / "there" / ".gitignore").exists()
    assert (repository / "made" / "here" / ".gitignore").read_text() == "*\n"


def test_importing_the_ledger_is_light() -> None:
    heavy = ("sqlalchemy", "git", "pandas", "torch")
    code = f"import sys, mjolnir.ledger; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_file_is_no_ledger_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").touch()
    with pytest.raises(ledger.LedgerError, match=r"--ledger .*file is a file; name the folder"):
        ledger.open(home / "file")
    monkeypatch.setenv("MJOLNIR_LEDGER", str(home / "file"))
    with pytest.raises(ledger.LedgerError, match=r"\$MJOLNIR_LEDGER .*file is a file"):
        ledger.open()
    with pytest.raises(ledger.LedgerError, match="cannot be made: Not a directory"):
        ledger.open(home / "file" / "below").prepare()


def test_a_repository_that_cannot_be_written_is_told_and_read(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ledger.open(repository / "research") as book, book.writer("tag") as writer:
        record = writer.append("note", {})
    (repository / "research" / "ledger.jsonl").unlink()
    monkeypatch.setattr("os.access", lambda path, mode: Path(path).name != ".git")
    with ledger.open(repository / "research") as book:
        assert book.git_note == f"the git repository {repository / '.git'} cannot be written"
        assert book.records() == (record,)
