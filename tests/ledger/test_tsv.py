"""The table: the autoresearch convention, made of records alone, mended when it lags behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from mjolnir import ledger
from tests.ledger.samples import TAG, trial


def rows(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text().splitlines()]


def test_the_convention(tmp_path: Path) -> None:
    with ledger.open(tmp_path, git="off") as book, book.writer(TAG) as writer:
        writer.append("campaign", {})
        kept = writer.append("trial", trial(1, verdict="keep", ratio=0.8734, changed={"pdl": 1, "kv_stages": 4}))
        writer.append("trial", trial(2))
        writer.append("trial", trial(3, status="hung", ratio=None, reason="no answer\tfor\n30 s", bucket=None))
        writer.append("trial", trial(4, status="incorrect", ratio=None, reason="error 0.3"))
        header, first, second, third, fourth = rows(book.tsv)
        assert header[:4] == ["commit", "value", "status", "description"]
        assert first == [
            book.commit(kept)[:12], "0.873400", "keep", "kv_stages=4 pdl=1", TAG, "1", "8", "measured", kept.time,
            kept.sha256[:12],
        ]  # fmt: skip
        assert second[1:4] == ["1.002000", "discard", "kv_stages=2"]
        assert third[1:8] == ["0.000000", "crash", "kv_stages=3 no answer for 30 s", TAG, "3", "", "hung"]
        assert fourth[1:4] == ["0.000000", "discard", "kv_stages=4 error 0.3"]
        pairs = [(record, book.commit(record)) for record in book.records()]
        assert ledger.tsv_text(pairs) == book.tsv.read_text()


@pytest.mark.parametrize("damage", ["removed", "short", "torn", "emptied", "foreign"])
def test_rows_lost_in_a_crash_are_written_again(tmp_path: Path, damage: str) -> None:
    with ledger.open(tmp_path, git="off") as book, book.writer(TAG) as writer:
        for number in (1, 2, 3):
            writer.append("trial", trial(number))
        writer.append("end", {"reason": "trials"})
    whole = book.tsv.read_text()
    match damage:
        case "removed":
            book.tsv.unlink()
        case "short":
            book.tsv.write_text("".join(whole.splitlines(keepends=True)[:-1]))
        case "torn":
            book.tsv.write_text(whole[:-9])
        case "emptied":
            book.tsv.write_text("")
        case "foreign":
            book.tsv.write_text("something else\n")
    with ledger.open(tmp_path, git="off") as book, book.writer(TAG):
        assert book.tsv.read_text() == whole


def test_a_table_in_order_is_left_alone(tmp_path: Path) -> None:
    with ledger.open(tmp_path, git="off") as book, book.writer(TAG) as writer:
        writer.append("trial", trial(1))
        before = book.tsv.stat().st_ino
        with book.writer(TAG):
            assert book.tsv.stat().st_ino == before
