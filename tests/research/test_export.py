"""An export says the same everywhere, and holds all that is needed to go on elsewhere."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mjolnir import ledger as ledgers
from mjolnir.research.answer import Failure
from mjolnir.research.export import FILES, export
from mjolnir.research.rows import unevenness_of
from tests.research.conftest import git
from tests.research.test_cli import call, replay


@pytest.fixture(scope="module")
def campaign(recording: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledger folder of a short finished replay, inside a repository."""
    root = tmp_path_factory.mktemp("campaign")
    git(root, "init", "--quiet")
    assert replay(recording, root / "ledger", trials=30)[0] == 0
    return root / "ledger"


def exported(ledger: Path, out: Path) -> dict[str, bytes]:
    with ledgers.open(ledger) as opened:
        export(opened, "a", out)
    return {path.name: path.read_bytes() for path in out.iterdir()}


def test_the_bytes_are_the_same_everywhere(campaign, tmp_path):
    first = exported(campaign, tmp_path / "one")
    again = exported(campaign, tmp_path / "two")
    assert first == again
    assert set(FILES) <= set(first)
    plots = {f"{name}.{form}" for name in ("convergence", "winners", "effects", "knobs") for form in ("svg", "png")}
    assert set(first) == {*FILES, *plots}
    for name in FILES:
        assert str(campaign.parent).encode() not in first[name], name
        assert str(Path.home()).encode() not in first[name], name


def test_what_is_no_export_of_the_tag_is_not_overwritten(campaign, recording, tmp_path):
    report = tmp_path / "mine" / "report.html"
    report.parent.mkdir()
    report.write_text("mine\n")
    other = tmp_path / "other"
    exported(campaign, other)
    (other / "summary.json").write_bytes((other / "summary.json").read_bytes().replace(b'"tag": "a"', b'"tag": "b"'))
    for folder, said in (
        (report.parent, "holds files that are no export, such as report.html, which is not overwritten; name a new"),
        (other, "holds an export of b, which is not overwritten; name a new or an empty folder for a"),
    ):
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        code, _, err = call("autoresearch", "export", "a", "--out", folder, "--ledger", campaign)
        assert (code, said in err) == (1, True), err
        code, _, err = replay(recording, tmp_path / "ledger", "--export", folder)
        assert (code, f"--export: {folder} holds " in err) == (2, True), err
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert not (tmp_path / "ledger").exists(), "it is refused before the work"


def test_an_export_is_made_again_and_beside_the_runs_own_table(campaign, recording, tmp_path):
    first = exported(campaign, tmp_path / "one")
    (tmp_path / "one" / "report.html").write_text("torn")
    assert exported(campaign, tmp_path / "one") == first
    (tmp_path / "empty" / ".export-left").mkdir(parents=True)
    with ledgers.open(campaign) as opened:
        export(opened, "a", tmp_path / "empty")
    out = tmp_path / "out"
    common = ("--promote", "--defaults", out / "defaults.json", "--export", out)
    for more in ((), ("--resume",)):
        code, text, _ = replay(recording, tmp_path / "ledger", *common, *more, trials=30)
        assert (code, "NOT exported" in text) == (0, False), text
        assert {"defaults.json", *FILES} <= {path.name for path in out.iterdir()}


def test_another_clone_gets_the_same_commits_and_the_same_export(campaign, tmp_path):
    files = exported(campaign, tmp_path / "out")
    clone = tmp_path / "clone"
    clone.mkdir()
    git(clone, "init", "--quiet")
    source = tmp_path / "out" / "ledger.jsonl"
    code, out, _ = call("ledger", "import", source, "--ledger", clone / "ledger", "--json")
    assert code == 0
    assert json.loads(out)["added"] == len(files["ledger.jsonl"].splitlines())
    refs = "for-each-ref", "--format=%(refname) %(objectname)", "refs/mjolnir"
    assert git(clone, *refs) == git(campaign.parent, *refs)
    code, out, _ = call("ledger", "import", source, "--ledger", clone / "ledger", "--json")
    assert json.loads(out)["added"] == 0
    assert git(clone, *refs) == git(campaign.parent, *refs)
    assert git(clone, "fsck", "--strict") == ""
    assert exported(clone / "ledger", tmp_path / "from-clone") == files


def test_a_run_in_a_checkout_leaves_what_is_the_users(recording, checkout, monkeypatch):
    (checkout / "README.md").write_text("stashed\n")
    git(checkout, "stash")
    (checkout / "README.md").write_text("staged\n")
    git(checkout, "add", "README.md")
    (checkout / "README.md").write_text("changed\n")
    questions = (
        "status --porcelain",
        "rev-parse HEAD",
        "symbolic-ref HEAD",
        "diff",
        "diff --cached",
        "stash list",
        "reflog",
    )
    before = {question: git(checkout, *question.split()) for question in questions}
    monkeypatch.chdir(checkout / "kernel")
    common = ("--device", "replay", "--recording", recording, "--tag", "a", "--trials", 12)
    code, out, _ = call("autoresearch", "run", *common)
    assert code == 0
    assert str(checkout / "research") in out.splitlines()[0]
    assert {question: git(checkout, *question.split()) for question in questions} == before
    subjects = git(checkout, "log", "--format=%s", "--grep=^trial ", "--glob=refs/mjolnir/ledger/a/*").splitlines()
    assert [subject.split()[1] for subject in subjects] == [str(number) for number in range(12, 0, -1)]
    assert subjects[-1].startswith("trial 1 keep 1.0") or subjects[-1].startswith("trial 1 keep 0.9")
    assert git(checkout, "fsck", "--strict") == ""
    assert call("autoresearch", "export", "a")[0] == 0
    assert (
        git(checkout, "status", "--porcelain", "--untracked-files=all", "--", "research").count("research/runs/a/")
        == 15
    )


def test_the_index_can_be_thrown_away(campaign):
    before = call("autoresearch", "show", "a", "--ledger", campaign, "--json")
    for path in campaign.glob(".ledger/*sqlite*"):
        path.unlink()
    code, out, _ = call("ledger", "reindex", "--ledger", campaign, "--json")
    assert code == 0
    assert json.loads(out)["records"] == len((campaign / "ledger.jsonl").read_bytes().splitlines())
    assert call("autoresearch", "show", "a", "--ledger", campaign, "--json") == before


class Page(HTMLParser):
    """Collects what a page would load, and checks that its tags close."""

    EMPTY = ("meta", "link", "br", "circle", "path", "i")

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.loads += [
            value for name, value in attrs if name in ("src", "href") and value and not value.startswith("data:")
        ]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        if tag not in self.EMPTY:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_is_whole_and_loads_nothing(campaign, tmp_path):
    page = Page()
    page.feed(exported(campaign, tmp_path / "out")["report.html"].decode())
    assert page.open == []
    assert page.loads == []
    text = " ".join(page.text)
    for words in ("batch up to 128", "What was found", "How to reproduce", "replay of the recording small", "3 of 3"):
        assert words in text


def test_the_summary_counts_what_the_ledger_holds(campaign, tmp_path):
    files = exported(campaign, tmp_path / "out")
    summary = json.loads(files["summary.json"])
    records = [json.loads(line) for line in files["ledger.jsonl"].splitlines()]
    trials = [record["body"] for record in records if record["kind"] == "trial"]
    assert 10 < len(trials) <= 30
    assert summary["trials"]["total"] == len(trials)
    for bucket in summary["buckets"]:
        name = str(bucket["bucket"])
        mine = [trial for trial in trials if name in trial["ratios"]]
        rows = [trial for trial in mine if not unevenness_of(trial, bucket["bucket"], summary)]
        assert bucket["best"]["ratio"] == min(trial["ratios"][name] for trial in rows)
    promoted = [
        record["body"]
        for record in records
        if record["kind"] == "promotion" and record["body"]["decision"] == "promote"
    ]
    rows = json.loads(files["rows.json"])["rows"]
    assert [row["key"] for row in rows] == [body["key"] for body in promoted]
    assert len(files["ledger.tsv"].decode().splitlines()) == 1 + len(trials)


def test_a_link_in_the_folder_is_not_followed(campaign, tmp_path):
    out, victim = tmp_path / "out", tmp_path / "victim"
    out.mkdir()
    victim.write_text('{"tag": "a"}')
    (out / "summary.json").symlink_to(victim)
    with pytest.raises(Failure, match="symbolic link"):
        exported(campaign, out)
    assert victim.read_text() == '{"tag": "a"}'
