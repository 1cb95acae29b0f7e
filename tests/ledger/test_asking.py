"""Asking a ledger: filters, orders, flat rows, pandas, and what is remembered of a tag."""

from __future__ import annotations

import doctest
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from mjolnir import ledger
from mjolnir.ledger import frame
from mjolnir.ledger.ledger import Ledger
from tests.ledger.samples import TAG, trial


@pytest.fixture
def book(tmp_path: Path) -> Iterable[Ledger]:
    """Six trials of one tag and one of another; the third crashed, the fourth lacks a knob."""
    with ledger.open(tmp_path, git="off") as opened:
        with opened.writer(TAG) as writer, opened.writer("b") as other:
            for number in (1, 2, 4, 5, 6):
                if number == 4:
                    writer.append(
                        "trial", trial(3, status="crashed", ratio=None, ratios={}, reason="no such address", bucket=32)
                    )
                    writer.append("trial", trial(4, setting={"kv_stages": 4}, ratio=0.5, ratios={8: 2.0, 32: 0.1}))
                    other.append("trial", trial(1, setting={"pdl": 1}))
                else:
                    ratios = {8: 1 - number / 100} | ({32: number / 10} if number > 4 else {})
                    body = trial(number, ratio=1 - number / 100, ratios=ratios, bucket=max(ratios))
                    writer.append("trial", body)
        yield opened


def test_the_examples_of_the_room_are_right():
    assert doctest.testmod(ledger).attempted > 8
    assert doctest.testmod(ledger).failed == 0


def test_trials_of_all_tags_come_in_the_order_of_records(book):
    assert [(record.tag, record.body["trial"]) for record in book.trials()] == [
        (TAG, 1), (TAG, 2), (TAG, 3), (TAG, 4), ("b", 1), (TAG, 5), (TAG, 6),
    ]  # fmt: skip


def test_the_fastest_in_a_bucket_come_first_by_their_ratio_there(book):
    def numbers(**asked):
        return [record.body["trial"] for record in book.trials(TAG, sort="ratio", **asked)]

    assert numbers() == [4, 6, 5, 2, 1], "over the whole workload"
    assert numbers(bucket=8) == [2, 1, 4], "trial 4 is the slowest there"
    assert numbers(bucket=32) == [5, 6], "the third that bucket 32 asked for crashed"
    assert numbers(bucket=7) == []


@pytest.mark.parametrize("asked", [{"sort": "Ratio"}, {"limit": -1}, {"since": "1h"}, {"since": "soon"}])
def test_a_question_that_means_nothing_is_refused(book, asked):
    with pytest.raises(ValueError, match=next(iter(asked))):
        book.trials(TAG, **asked)


def test_a_tally_counts_what_is_wanted_by_tag(book):
    assert book.tally(ledger.Wanted()) == {TAG: 6, "b": 1}
    assert book.tally(ledger.Wanted(status="crashed")) == {TAG: 1}
    assert book.tally(ledger.Wanted(knobs={"pdl": 1})) == {"b": 1}
    assert book.tally(ledger.Wanted(since="2999-01-01T00:00:00.000000Z")) == {}
    assert not ledger.Wanted()
    assert ledger.Wanted(bucket=8)
    assert book.knobs() == {"ctas_per_sm", "kv_stages", "pdl"}
    assert book.knobs("b") == {"pdl"}


def test_a_word_that_no_filter_has_is_refused(book):
    with pytest.raises(TypeError, match="colour"):
        book.trials(TAG, colour="red")


def test_rows_have_the_same_columns_and_say_what_is_missing(book):
    rows = frame.rows(book.with_commits(book.trials(TAG)))
    assert {tuple(row) for row in rows} == {
        (*frame.COLUMNS, "ctas_per_sm", "kv_stages", "ratio_8", "ratio_32")
    }  # fmt: skip
    assert (rows[3]["ctas_per_sm"], rows[3]["kv_stages"], rows[3]["ratio_32"]) == (None, 4, 0.1)
    assert (rows[2]["status"], rows[2]["reason"], rows[2]["ratio_8"]) == ("crashed", "no such address", None)
    first = book.trials(TAG)[0]
    assert (rows[0]["record"], rows[0]["commit"], rows[0]["time"]) == (first.sha256, book.commit(first), first.time)
    assert len(rows[0]["commit"]) == 40


def test_a_dataframe_keeps_whole_numbers_whole(book):
    table = book.to_dataframe(TAG)
    assert len(table) == 6
    assert str(table["kv_stages"].dtype) == str(table["ctas_per_sm"].dtype) == str(table["bucket"].dtype) == "Int64"
    assert table["ctas_per_sm"].isna().tolist() == [False, False, False, True, False, False]
    assert table["ratio_8"].dtype == float
    assert str(table["time"].dt.tz) == "UTC"
    assert book.to_dataframe(TAG, status="crashed")["trial"].tolist() == [3]
    empty = book.to_dataframe("nothing")
    assert (len(empty), list(empty.columns)) == (0, list(frame.COLUMNS))


def test_hostile_settings_and_buckets_make_rows_all_the_same(tmp_path):
    body = trial(1, setting={"tag": 7, "x": 2**80}, ratios={"9" * 5000: 1.0, "²": 1.0, "8": 1.0})
    with ledger.open(tmp_path, git="off") as opened:
        with opened.writer(TAG) as writer:
            writer.append("trial", body)
        table = opened.to_dataframe()
        assert table["tag"].tolist() == [TAG]
        assert list(table.columns) == [*frame.COLUMNS, "x", "ratio_8"]
        assert table["x"].tolist() == [2**80]


def test_nothing_heavy_is_loaded_before_it_is_asked_for():
    code = "import sys; from mjolnir import ledger; print({'pandas', 'sqlalchemy', 'numpy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_what_is_derived_is_remembered_until_there_are_other_records_or_other_code(tmp_path):
    calls = []

    def count(records):
        found = [record.seq for record in records]
        calls.append(found)
        return {"count": len(found), "pair": (1, 2)}

    with ledger.open(tmp_path, git="off") as opened, opened.writer(TAG) as writer, opened.writer("b") as other:
        writer.append("note", {"text": "1"})
        assert opened.derived(TAG, "count", "1", count) == {"count": 1, "pair": [1, 2]}
        other.append("note", {"text": "elsewhere"})
        assert opened.derived(TAG, "count", "1", count) == {"count": 1, "pair": [1, 2]}
        assert calls == [[0]], "neither asked twice nor for what another tag has"
        writer.append("note", {"text": "2"})
        assert opened.derived(TAG, "count", "1", count)["count"] == 2
        assert opened.derived(TAG, "count", "2", count)["count"] == 2
        assert calls == [[0], [0, 1], [0, 1]]
    with ledger.open(tmp_path, git="off") as opened:
        assert opened.derived(TAG, "count", "2", count)["count"] == 2
        assert len(calls) == 3, "the index keeps it"
        opened.reindex()
        opened.derived(TAG, "count", "2", count)
        assert len(calls) == 4


def test_bytes_that_a_certificate_cites_are_looked_at_again(tmp_path):
    import sqlite3

    with ledger.open(tmp_path, git="off") as opened, opened.writer(TAG) as writer:
        record = writer.append("note", {"text": "true"})
        assert opened.record(record.sha256) == record
    with sqlite3.connect(tmp_path / "ledger.sqlite") as connection:
        connection.execute("UPDATE lines SET line = ?", (record.line.replace(b"true", b"lies"),))
    with ledger.open(tmp_path, git="off") as opened:
        assert opened.record(record.sha256) is None


def test_a_long_backlog_is_committed_in_portions_and_whole(repository, monkeypatch):
    import importlib

    from mjolnir.ledger.git_store import GitStore

    door = importlib.import_module("mjolnir.ledger.ledger")
    folder, sizes, write = repository / "research", [], GitStore.write
    with ledger.open(folder, git="off") as opened, opened.writer(TAG) as writer, opened.writer("b") as other:
        for number in range(1, 6):
            writer.append("trial", trial(number))
            other.append("trial", trial(number))

    def watched(store, commits):
        sizes.append(len(commits))
        write(store, commits)

    monkeypatch.setattr(door, "_PORTION", 3)
    monkeypatch.setattr(GitStore, "write", watched)
    with ledger.open(folder) as opened:
        assert opened.flush() == 10
        assert sizes == [3, 3, 3, 1]
        assert opened.flush() == 0
        assert opened.verify().ok
    (folder / "ledger.jsonl").unlink()
    with ledger.open(folder) as opened:
        assert len(opened.records()) == 10, "git has them all"
