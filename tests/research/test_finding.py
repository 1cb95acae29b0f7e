"""Finding: filters, orders and forms of `list` and `show`, notes, logs, and the summary that is remembered."""

from __future__ import annotations

import csv
import io
import json
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mjolnir import ledger as ledgers
from mjolnir.ledger.tombstone import bury
from mjolnir.research import show as showing
from mjolnir.research.answer import UsageFailure
from mjolnir.research.choosing import since_time
from mjolnir.research.cli.options import known_tags
from mjolnir.research.journal import as_mapping
from mjolnir.research.plain import csv_text, plain
from mjolnir.research.summary import summarize
from tests.research.conftest import git
from tests.research.test_cli import call, replay


@pytest.fixture(scope="module")
def filled(recording, tmp_path_factory):
    """A ledger with the campaigns a and b, and a trial of a that crashed with a long log."""
    folder = tmp_path_factory.mktemp("filled")
    for tag, trials in (("a", 12), ("b", 14)):
        assert replay(recording, folder, tag=tag, trials=trials)[0] == 0
    with ledgers.open(folder) as opened:
        body = dict(opened.trial("a", 12).body)
        lines = "\n".join(f"line {number}" for number in range(1, 51)) + "\n\x1b[2Jlast"
        empty: dict[str, Any] = {"ratio": None, "ratios": {}, "timings": [], "point_ratios": [], "kept_buckets": []}
        with opened.writer("a") as writer:
            writer.append(
                "trial", body | empty | {"trial": 13, "status": "crashed", "reason": "\x1b[31mred", "log": lines}
            )
    return folder


def ask(folder, *words):
    code, out, err = call("autoresearch", *words, "--ledger", folder)
    assert code == 0, err
    return out


def trials_of(folder, *words):
    return json.loads(ask(folder, *words, "--json"))["trials"]


def test_show_lists_the_trials_that_the_filters_choose(filled):
    every = trials_of(filled, "show", "a", "--sort", "trial")
    assert [row["trial"] for row in every] == list(range(1, 14))
    assert [row["trial"] for row in trials_of(filled, "show", "a", "--status", "crashed")] == [13]
    stages = every[4]["kv_stages"]
    chosen = trials_of(filled, "show", "a", "--knob", f"kv_stages={stages}", "--knob", f"pdl={every[4]['pdl']}")
    wanted = [row for row in every if (row["kv_stages"], row["pdl"]) == (stages, every[4]["pdl"])]
    assert chosen == wanted
    assert 0 < len(chosen) < len(every)
    bucket = next(row["bucket"] for row in every if row["bucket"])
    found = trials_of(filled, "show", "a", "--bucket", bucket, "--sort", "ratio")
    assert {row["trial"] for row in found} == {
        row["trial"] for row in every if row["bucket"] == bucket and row["status"] == "measured"
    }
    ratios = [row[f"ratio_{bucket}"] for row in found]
    assert ratios == sorted(ratios)
    assert trials_of(filled, "show", "a", "--since", "2999-01-01") == []
    assert len(trials_of(filled, "show", "a", "--since", "1h")) == 13
    assert [row["trial"] for row in trials_of(filled, "show", "a", "--limit", 2)] == [1, 2]


def test_the_table_says_how_many_and_what_else_there_is(filled):
    out = ask(filled, "show", "a", "--sort", "ratio", "--limit", 3)
    assert out.splitlines()[0].split() == [
        "trial",
        "batch",
        "status",
        "verdict",
        "ratio",
        "time",
        "setting",
        "or",
        "reason",
    ]
    assert out.rstrip().endswith("3 of 13 trials")
    assert "?[31mred" in ask(filled, "show", "a", "--status", "crashed")
    out = ask(filled, "show", "a", "--status", "hung")
    assert out == "none of the 13 trials of a is like that; they ended: 1 crashed, 12 measured\n"


def test_csv_is_read_as_what_json_says(filled):
    out = ask(filled, "show", "b", "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    known = trials_of(filled, "show", "b", "--sort", "trial")
    assert rows[0].keys() == known[0].keys()
    assert list(rows[0])[:3] == ["tag", "trial", "time"]
    assert [(int(row["trial"]), int(row["kv_stages"]), row["record"]) for row in rows] == [
        (row["trial"], row["kv_stages"], row["record"]) for row in known
    ]
    tags = list(csv.DictReader(io.StringIO(ask(filled, "list", "--csv", "--sort", "tag"))))
    assert [(row["tag"], row["trials"], row["matching"]) for row in tags] == [("a", "13", ""), ("b", "14", "")]


def test_list_has_the_best_of_the_bucket_that_is_asked_for(filled):
    tags = json.loads(ask(filled, "list", "--json"))["tags"]
    buckets = list(tags[0]["best"])
    best = {tag["tag"]: [tag["best"][name]["ratio"] for name in buckets] for tag in tags}
    place = max(range(len(buckets)), key=lambda place: best["a"][place])
    bucket = buckets[place]
    assert best["a"][place] > min(best["a"])
    listed = ask(filled, "list", "--bucket", bucket, "--sort", "best")
    assert f"best ratio, batch {bucket}" in listed
    ordered = sorted(best, key=lambda tag: (best[tag][place], tag))
    lines = [line.split() for line in listed.splitlines()[1:]]
    assert [(line[0], line[-2]) for line in lines] == [(tag, f"{best[tag][place]:.3f}") for tag in ordered]


def test_list_has_the_tags_with_such_trials(filled):
    def tags(*words):
        return [(tag["tag"], tag.get("matching")) for tag in json.loads(ask(filled, "list", *words, "--json"))["tags"]]

    assert tags("--status", "crashed") == [("a", 1)]
    assert tags("--sort", "trials") == [("b", None), ("a", None)]
    assert tags("--sort", "tag") == [("a", None), ("b", None)]
    assert tags() == [("b", None), ("a", None)], "the one that was written last comes last"
    assert sorted(tags("--status", "measured")) == [("a", 12), ("b", 14)]
    assert tags("--since", "2999-01-01") == []
    assert "is like that" in ask(filled, "list", "--since", "2999-01-01")
    best = [
        min(e["ratio"] for e in t["best"].values())
        for t in json.loads(ask(filled, "list", "--sort", "best", "--json"))["tags"]
    ]
    assert best == sorted(best)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "a", "--knob", "kv_stages"), "not of the form NAME=NUMBER"),
        (("show", "a", "--knob", "kv_stage=4"), "--knob kv_stage: no trial of a has it; they have "),
        (("show", "a", "--since", "yesterday"), "neither an age"),
        (("show", "a", "--status", "trials"), "--status 'trials' is no end of a trial; there are measured, infeasible"),
        (("list", "--status", "bogus"), "--status 'bogus' is no end of a trial; there are measured, infeasible"),
        (("show", "a", "3", "--status", "crashed"), "trial 3 is one trial"),
        (("show", "a", "--csv", "--json"), "two forms"),
        (("list", "--csv", "--json"), "two forms"),
        (("show", "a", "--sort", "colour"), "--sort"),
        (("note", "a"), ""),
        (("note", "a", "7"), "a note needs a text"),
        (("note", "a", "x" * 4001), "4000 are kept at most"),
    ],
)
def test_what_means_nothing_is_refused(filled, words, said):
    code, _, err = call("autoresearch", *words, "--ledger", filled)
    assert (code, said in err) == (2, True), err


def test_a_log_is_shown_to_its_end_and_moves_no_cursor(filled):
    out = ask(filled, "show", "a", 13)
    assert "log, its last 30 of 51 lines; --json has all:" in out
    assert "line 21\n" not in out
    assert "line 22\n" in out
    assert "?[2Jlast" in out
    assert "reason    ?[31mred" in out
    assert "\x1b" not in out
    assert "line 1\n" in json.loads(ask(filled, "show", "a", 13, "--json"))["body"]["log"]


def test_a_trial_that_is_no_commit_says_why(recording, tmp_path):
    place = tmp_path / "ledger"
    replay(recording, place, trials=3)
    assert f"commit    none: trials are not kept as git commits: {place} lies in no" in ask(place, "show", "a", 2)
    git(tmp_path, "init", "--quiet")
    data = json.loads(ask(place, "show", "a", 2, "--json"))
    assert (data["not_committed"], len(data["commit"])) == ("", 40)
    assert f"commit    {data['commit']}\n" in ask(place, "show", "a", 2)


def test_notes_are_records_and_shown_where_they_belong(recording, tmp_path):
    replay(recording, tmp_path)
    assert ask(tmp_path, "note", "a", "the room", "was warm").startswith("noted about a in ")
    assert ask(tmp_path, "note", "a", "3", "odd\x1b[2J one").startswith("noted about trial 3 of a in ")
    with ledgers.open(tmp_path) as opened:
        first, second = opened.records("a", "note")
        assert first.body == {"text": "the room was warm", "about": "", "trial": None, "record": ""}
        assert second.body["record"] == opened.trial("a", 3).sha256
        assert opened.verify().ok
        assert opened.tags()[0].ended == "trials", "a note is no run"
    whole, third, fourth = (ask(tmp_path, "show", "a", *more) for more in ((), (3,), (4,)))
    assert "Z: the room was warm" in whole
    assert "Note on trial 3" in whole
    assert "odd?[2J one" in third
    assert "warm" not in third
    assert "Note" not in fourth
    assert [note["trial"] for note in json.loads(ask(tmp_path, "show", "a", "--json"))["notes"]] == [None, 3]
    for words, said in ((("b", "text"), "no tag b"), (("a", "99", "text"), "no trial 99")):
        code, _, err = call("autoresearch", "note", *words, "--ledger", tmp_path)
        assert (code, said in err) == (1, True)


def test_a_removed_tag_is_left_out_of_lists_and_found_by_name(recording, tmp_path):
    for tag in ("a", "b"):
        replay(recording, tmp_path, tag=tag)
    with ledgers.open(tmp_path) as opened:
        bury(opened, "b", "a test", {})
    assert [tag["tag"] for tag in json.loads(ask(tmp_path, "list", "--json"))["tags"]] == ["a"]
    assert json.loads(ask(tmp_path, "show", "--json"))["tag"] == "a", "the latest activity that is left"
    shown = json.loads(ask(tmp_path, "show", "b", "--json"))
    assert (shown["tag"], shown["removed"]["reason"]) == ("b", "a test")


def test_a_removed_campaign_says_that_it_was(recording, tmp_path):
    replay(recording, tmp_path, tag="b", trials=3)
    assert "b was removed" not in ask(tmp_path, "show", "b", 1)
    with ledgers.open(tmp_path) as opened:
        stone = bury(opened, "b", "a\x1btest", {})
    said = f"b was removed, {stone.time[:16]}Z: a?test"
    for about in (("b",), ("b", 1)):
        assert f"{said}; its records stay until `ledger gc`" in ask(tmp_path, "show", *about)
    told = json.loads(ask(tmp_path, "show", "b", 1, "--json"))
    assert told["removed"] == {"time": stone.time, "reason": "a\x1btest", "later": 0}
    assert f"{said}; its records stay" in ask(tmp_path, "status", "b")
    assert json.loads(ask(tmp_path, "status", "b", "--json"))["state"] == "removed"
    assert f"{said}; its records stay" in ask(tmp_path, "export", "b", "--out", tmp_path / "out")
    call("ledger", "gc", "--ledger", tmp_path)
    for about in (("b",), ("b", 1)):
        code, _, err = call("autoresearch", "show", *about, "--ledger", tmp_path)
        assert (code, f"{said}; its records are gone" in err) == (1, True)
    code, _, err = call("autoresearch", "export", "b", "--ledger", tmp_path)
    assert (code, f"{said}; its records are gone" in err) == (1, True)


def test_nothing_is_added_to_a_removed_campaign_and_nothing_taken_from_it(recording, tmp_path):
    replay(recording, tmp_path, tag="b", trials=3)
    table = tmp_path / "rows.json"
    with ledgers.open(tmp_path) as opened:
        bury(opened, "b", "a test", {})
        count = len(opened.records())

    def refused(left, *arguments):
        code, _, err = call(*arguments, "--ledger", tmp_path)
        assert (code, "b was removed, 2" in err, "Z: a test; " in err) == (2, True, True)
        with ledgers.open(tmp_path) as opened:
            assert len([record for record in opened.records() if record.kind != "tombstone"]) == left
        return err

    run = ("autoresearch", "run", "--device", "replay", "--recording", recording, "--tag", "b", "--trials", 9)
    for left in (count - 1, 0):
        assert "choose another --tag" in refused(left, *run)
        assert "choose another --tag" in refused(left, *run, "--resume")
        assert "note it under another tag" in refused(left, "autoresearch", "note", "b", "a remark")
        assert "prove its settings again" in refused(left, "defaults", "promote", "b", "--table", table)
        call("ledger", "gc", "--ledger", tmp_path)
    assert not table.exists()


def test_a_removed_campaign_with_later_records_is_listed_as_such(recording, tmp_path):
    replay(recording, tmp_path, tag="b", trials=3)
    with ledgers.open(tmp_path) as opened, opened.writer("b") as writer:
        bury(opened, "b", "a test", {})
        writer.append("note", {"text": "too late", "about": ""})
    (told,) = json.loads(ask(tmp_path, "list", "--json"))["tags"]
    assert told["state"] == "removed, 1 later record here"
    again = (
        f"1 record came later, for which it is kept; to remove all of it: mjolnir ledger remove b --ledger {tmp_path}"
    )
    assert again in ask(tmp_path, "status", "b")
    code, out, _ = call("ledger", "gc", "--ledger", tmp_path)
    assert (code, "b was kept: 1 record of it came after the removal" in out) == (0, True)


def test_a_remembered_summary_is_that_of_whole_records(filled, monkeypatch):
    with ledgers.open(filled) as opened:
        whole = json.loads(json.dumps(summarize([as_mapping(record) for record in opened.records("b")])))
        assert showing.campaign_summary(opened, "b") == whole
        with monkeypatch.context() as patched:
            patched.setattr(showing, "_summarize", lambda records: pytest.fail("it was worked out once more"))
            assert showing.campaign_summary(opened, "b") == whole
        monkeypatch.setattr(showing, "_version", lambda: "of other code")
        monkeypatch.setattr(showing, "_summarize", lambda records: {"trials": len(list(records))})
        assert showing.campaign_summary(opened, "b") != whole


def retold(filled, folder, change):
    """The campaign b as somebody else might have written it: `change` gets the kind and the body of each record."""
    with ledgers.open(filled) as opened:
        records = [(record.kind, dict(record.body)) for record in opened.records("b")]
    with ledgers.open(folder, git="off") as opened, opened.writer("b") as writer:
        for kind, body in records:
            writer.append(kind, change(kind, body))


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("canary", {}), ("epoch", {}), ("campaign", {"device": None}), ("campaign", {"geometry": {"heads_q": 8}}),
        ("trial", {"status": "warped"}), ("promotion", {"decision": "perhaps"}), ("trial", {"resolved": {"warp": 1}}),
    ],
)  # fmt: skip
def test_records_of_another_version_are_told_of_in_words(filled, tmp_path, kind, changed):
    folder = tmp_path / "ledger"
    retold(filled, folder, lambda own, body: (changed and body | changed) if own == kind else body)
    words = (("show", "b"), ("show", "b", "2"), ("status", "b"), ("why", "b", "bucket=8"), ("compare", "b", "b"))
    answers = [call("autoresearch", *each, "--ledger", folder) for each in (*words, ("export", "b"))]
    assert {code for code, _, _ in answers} <= {0, 1}
    refused = [err for code, _, err in answers if code]
    assert refused
    assert all("records that this version does not understand (" in err or "'warp'" in err for err in refused)


def test_records_without_their_campaign_are_not_gone_on_with(recording, filled, tmp_path):
    """As a fetch of the last few leaves them; what a resume began anew would be under the same tag for good."""
    folder = tmp_path / "ledger"
    with ledgers.open(filled) as opened:
        trial = opened.trial("b", 3)
    with ledgers.open(folder, git="off") as opened, opened.writer("b") as writer:
        writer.append("trial", trial.body)
    before = (folder / "ledger.jsonl").read_bytes()
    code, _, err = replay(recording, folder, "--resume", tag="b")
    assert (code, "b has records (trial) but not that of its campaign" in err) == (2, True)
    assert (folder / "ledger.jsonl").read_bytes() == before


def test_no_record_steers_the_terminal(filled, tmp_path):
    folder = tmp_path / "ledger"
    command = ["run", "\x1b[2J", "<b>"]
    retold(filled, folder, lambda kind, body: body | {"command": command} if kind == "campaign" else body)
    told = ask(folder, "why", "b", "bucket=8")
    assert "asked by: run ?[2J <b>" in told
    ask(folder, "note", "b", "\x1b[31mred")
    ask(folder, "export", "b")
    assert "\x1b" not in told + ask(folder, "show", "b") + (folder / "runs" / "b" / "report.html").read_text()


@pytest.mark.parametrize("run", ["h200-serving-16x2-d256-p64-q4", "h200-try-loop"])
def test_a_campaign_on_a_real_device_is_shown_as_its_export_tells_it(tmp_path, run):
    exported = Path(__file__).parents[2] / "research" / "runs" / run / "ledger.jsonl"
    records = ledgers.read_file(exported)
    with ledgers.open(tmp_path / "ledger", git="off") as opened:
        opened.import_file(exported)
    shown = json.loads(ask(tmp_path / "ledger", "show", records[0].tag, "--json"))
    whole = json.loads(json.dumps(summarize([as_mapping(record) for record in records])))
    assert {name: shown[name] for name in whole} == whole
    assert records[0].tag in ask(tmp_path / "ledger", "status", records[0].tag)


def test_since_is_an_age_a_date_or_a_time():
    now = datetime(2026, 1, 31, 12, tzinfo=UTC)
    for text, moment in (
        ("90m", "2026-01-31T10:30:00.000000Z"),
        ("2d", "2026-01-29T12:00:00.000000Z"),
        ("1w", "2026-01-24T12:00:00.000000Z"),
        ("2026-01-30", "2026-01-30T00:00:00.000000Z"),
        ("2026-01-30T08:15", "2026-01-30T08:15:00.000000Z"),
        ("2026-01-30T08:15+02:00", "2026-01-30T06:15:00.000000Z"),
    ):
        assert since_time(text, now) == moment
    assert since_time(None, now) is None
    for text in ("", "3", "3y", "999999w", "-3d"):
        with pytest.raises(UsageFailure, match="neither an age"):
            since_time(text, now)


def test_text_of_records_steers_neither_terminal_nor_spreadsheet():
    assert plain("a\x1b[2J\u202eb\tc\nd\r") == "a?[2J?b\tc\nd?"
    rows: list[dict[str, Any]] = [{"a": "=cmd()", "b": -1.5}, {"a": 'say "x",\ny', "b": None}, {"a": "@x"}]
    assert csv_text(rows, ["a", "b"]) == 'a,b\n\'=cmd(),-1.5\n"say ""x"",\ny",\n\'@x,'


def test_completion_knows_the_tags(filled, tmp_path):
    class Context:
        params = {"ledger": filled}  # noqa: RUF012

    assert known_tags(Context(), "") == ["a", "b"]  # type: ignore[arg-type]
    assert known_tags(Context(), "b") == ["b"]  # type: ignore[arg-type]
    Context.params = {"ledger": tmp_path / "none"}
    assert known_tags(Context(), "") == []  # type: ignore[arg-type]
    assert "--install-completion" in call("--help")[1]


def test_a_campaign_that_was_only_exported_is_found_by_the_command_that_is_printed(filled, tmp_path):
    elsewhere = tmp_path / "ledger"
    exported = elsewhere / "runs" / "a"
    exported.mkdir(parents=True)
    (exported / "ledger.jsonl").write_bytes(
        b"".join(record.line + b"\n" for record in ledgers.read_file(filled / "ledger.jsonl") if record.tag == "a")
    )
    code, _, err = call("autoresearch", "show", "a", "--ledger", elsewhere)
    assert code == 1
    printed = shlex.split(err.partition("bring it in with: ")[2])
    assert call(*printed[1:])[0] == 0
    assert json.loads(ask(elsewhere, "show", "a", "--json"))["trials"]


def test_looking_at_a_folder_that_is_no_ledger_writes_nothing(tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    for words in (("list",), ("status",), ("show",), ("show", "a"), ("export", "a"), ("note", "a", "text")):
        call("autoresearch", *words, "--ledger", folder)
    for words in (("verify",), ("gc", "--dry-run"), ("repair", "--dry-run"), ("remove", "a")):
        call("ledger", *words, "--ledger", folder)
    assert list(folder.iterdir()) == []
