"""Source experiments from the change to the branch: what is kept, what is discarded, and that all is on record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mjolnir import ledger as ledgers
from mjolnir.research.answer import Exit, UsageFailure
from mjolnir.tuner.sources import Source
from tests.fakes.sources import PLACE
from tests.research.conftest import git
from tests.research.source.conftest import state

FASTER, SLOWER = "# speed 0.95\n", "# speed 1.02\n"


def test_a_faster_change_is_kept_on_its_branch_and_touches_nothing_else(checkout, attempt_in, trials):
    (checkout / PLACE).write_text(FASTER)
    (checkout / "README.md").write_text("two\n")
    git(checkout, "add", "README.md")
    before, base = state(checkout), git(checkout, "rev-parse", "HEAD")
    answer = attempt_in(message="fewer barriers\n\nsince one is enough")
    assert answer.code == Exit.DONE
    assert answer.data["outcome"] == "keep"
    assert state(checkout) == before
    tip = git(checkout, "rev-parse", "autoresearch/try")
    assert git(checkout, "rev-parse", f"{tip}^") == base
    assert git(checkout, "show", f"{tip}:{PLACE}") == FASTER.strip()
    assert git(checkout, "show", f"{tip}:README.md") == "one"
    assert git(checkout, "log", "-1", "--format=%B", tip) == "fewer barriers\n\nsince one is enough"
    (body,) = trials()
    assert body["verdict"] == "keep"
    assert body["ratio"] == pytest.approx(0.95, abs=0.002)
    source = body["source"]
    assert (source["base"], source["commit"], source["files"]) == (base, tip, [PLACE])
    assert "+# speed 0.95" in source["diff"]
    assert source["proof"]["evidence"] >= source["proof"]["threshold"] > 1


def test_the_next_change_is_measured_against_the_one_that_was_kept(checkout, attempt_in, trials):
    attempt_in(FASTER)
    first = git(checkout, "rev-parse", "autoresearch/try")
    answer = attempt_in("# speed 0.90\n")
    assert answer.data["outcome"] == "keep"
    assert git(checkout, "rev-parse", "autoresearch/try^") == first
    assert trials()[1]["ratio"] == pytest.approx(0.90 / 0.95, abs=0.002)


def test_what_is_not_faster_is_discarded_and_stays_in_the_ledger(checkout, attempt_in, trials):
    answer = attempt_in(SLOWER)
    assert (answer.code, answer.data["outcome"]) == (Exit.DONE, "discard")
    assert git(checkout, "branch", "--list", "autoresearch/*") == ""
    (body,) = trials()
    assert "not faster than the base by the margin of 1.0%" in body["reason"]
    assert "+# speed 1.02" in body["source"]["diff"]
    assert body["source"]["proof"]["processes"] == 3
    row = (checkout / "research" / "ledger.tsv").read_text().splitlines()[1].split("\t")
    assert row[0] == body["source"]["commit"][:12]
    assert row[1] == f"{body['ratio']:.6f}"
    assert row[2:4] == ["discard", "shorter loop"]


def test_a_change_that_fails_is_a_crash_or_a_discard_and_is_never_timed(checkout, attempt_in, trials, opener):
    outcomes = [attempt_in(f"# fate {fate}\n").data["outcome"] for fate in ("compile-failed", "incorrect")]
    assert outcomes == ["crash (compile-failed)", "discard (incorrect)"]
    assert [bench.compared for bench in opener.benches] == [[], []]
    assert [body["ratio"] for body in trials()] == [None, None]
    assert trials()[0]["log"] == "the end of the log"
    words = [line.split("\t")[2] for line in (checkout / "research" / "ledger.tsv").read_text().splitlines()[1:]]
    assert words == ["crash", "discard"]


def test_a_change_that_fails_while_it_is_timed_is_discarded(attempt_in, trials):
    assert attempt_in("# late hung\n").data["outcome"] == "crash (hung)"
    assert trials()[0]["reason"] == "the change: as its source says"


def test_canaries_and_noise_are_taken_once_a_base(attempt_in, opener, trials):
    for text in (SLOWER, "# speed 1.03\n", FASTER, "# speed 0.94\n"):
        attempt_in(text)
    assert [len(bench.canaries_sent) for bench in opener.benches] == [2, 0, 0, 2]
    noise = [sum(c.arms[0].source is Source.TWIN for c in bench.compared) for bench in opener.benches]
    assert noise == [30, 0, 0, 30]
    assert [body["source"]["attempt"] for body in trials()] == [1, 2, 3, 1]
    thresholds = [body["source"]["proof"]["threshold"] for body in trials()]
    assert thresholds[1] == pytest.approx(4 * thresholds[0])
    assert thresholds[3] == thresholds[0]


def test_a_blind_gate_voids_the_experiment(checkout, attempt_in, opener, trials):
    opener.blind = True
    answer = attempt_in(FASTER)
    assert answer.code == Exit.VOID
    assert trials()[0]["verdict"] == "discard"
    assert "'mask' was not rejected" in trials()[0]["reason"]
    assert git(checkout, "branch", "--list", "autoresearch/*") == ""


def test_knobs_are_held_alike_unless_both_are_tuned(attempt_in, opener, trials):
    attempt_in(SLOWER, pins=("kv_stages=4",))
    held = trials()[0]["source"]["arms"]
    assert held[0]["knobs"] == held[1]["knobs"]
    assert {knobs["kv_stages"] for knobs in held[0]["knobs"].values()} == {4}
    attempt_in("# speed 1.05\n", retune=True)
    assert all(bench.measured for bench in (opener.benches[1].side(Source.BASE), opener.benches[1].side(Source.CHANGE)))


def test_both_are_tuned_under_tags_of_their_own(checkout, attempt_in, trials):
    attempt_in(SLOWER, retune=True, trials=6, minutes=1.0)
    source = trials()[0]["source"]
    with ledgers.open(checkout / "research") as book:
        tags = {summary.tag for summary in book.tags()}
        assert tags == {"try", f"try.{source['base'][:12]}.base", f"try.{source['commit'][:12]}.change"}
        assert not book.records(f"try.{source['base'][:12]}.base", "promotion")


def test_a_process_that_was_killed_before_the_branch_moved_is_caught_up_with(checkout, attempt_in):
    attempt_in(FASTER)
    tip = git(checkout, "rev-parse", "autoresearch/try")
    git(checkout, "update-ref", "-d", "refs/heads/autoresearch/try")
    attempt_in("# speed 0.99\n")
    assert git(checkout, "rev-parse", "autoresearch/try") == tip


def test_a_stopped_experiment_had_its_look(checkout, attempt_in, trials, opener, monkeypatch):
    from mjolnir.research import stopping

    asked = iter([False] * 36)
    monkeypatch.setattr(stopping.Running, "__call__", lambda self: next(asked, True))
    answer = attempt_in(FASTER)
    assert answer.code == Exit.INTERRUPTED
    assert trials()[0]["status"] == "infrastructure"
    assert trials()[0]["reason"] == "stopped before it was decided"
    monkeypatch.undo()
    attempt_in(FASTER)
    assert trials()[1]["source"]["attempt"] == 2


def test_a_branch_that_is_checked_out_is_not_moved(checkout, attempt_in):
    attempt_in(FASTER)
    git(checkout, "checkout", "--quiet", "--force", "autoresearch/try")
    with pytest.raises(UsageFailure, match="git switch --detach"):
        attempt_in("# speed 0.9\n")


def test_the_change_may_lie_on_a_branch(checkout, attempt_in, trials):
    git(checkout, "checkout", "--quiet", "-b", "idea")
    (checkout / PLACE).write_text(FASTER)
    git(checkout, "commit", "--quiet", "--all", "-m", "idea")
    git(checkout, "checkout", "--quiet", "main")
    before = state(checkout)
    assert attempt_in(branch="idea").data["outcome"] == "keep"
    assert state(checkout) == before
    assert git(checkout, "diff", "idea", "autoresearch/try") == ""


def test_tags_of_knobs_and_of_sources_do_not_mix(checkout, attempt_in, recording):
    from tests.research.test_cli import replay

    assert replay(recording, checkout / "research", tag="knobs")[0] == 0
    with pytest.raises(UsageFailure, match="campaign over knobs"):
        attempt_in(FASTER, tag="knobs")
    attempt_in(FASTER)
    code, _, err = replay(recording, checkout / "research", "--resume", tag="try")
    assert code == 2
    assert "source experiments" in err


def test_readers_tell_of_experiments(checkout, attempt_in, tmp_path):
    from tests.research.test_cli import call

    attempt_in(FASTER)
    attempt_in("# fate crashed\n", message="vectorized\tloads")
    folder = checkout / "research"
    code, out, _ = call("autoresearch", "show", "try", "--ledger", folder)
    assert code == 0
    assert "shorter loop" in out
    assert "crashed" in out
    code, out, _ = call("autoresearch", "show", "try", "1", "--ledger", folder)
    assert code == 0
    assert "+# speed 0.95" in out
    assert "of the base's time" in out
    for words in (("list",), ("status", "try"), ("export", "try", "--out", tmp_path / "x"), ("why", "try", "1")):
        code, out, err = call("autoresearch", *words, "--ledger", folder)
        assert code == 0, (words, err)
    code, out, _ = call("ledger", "verify", "--ledger", folder, "--json")
    assert json.loads(out)["ok"]
    assert (tmp_path / "x" / "report.html").exists()


def test_without_a_gpu_it_says_so(checkout, monkeypatch):
    from tests.research.test_cli import call

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.chdir(checkout)
    (checkout / PLACE).write_text(FASTER)
    code, _, err = call("autoresearch", "try", "-m", "x", "--ledger", checkout / "research")
    assert code == 3
    assert "no CUDA device" in err
    assert "measures on a GPU" in err
    assert not Path(checkout, "research", "ledger.jsonl").exists()
