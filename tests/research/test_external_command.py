"""Campaigns that ask a command of the user's: what is refused at the start, and what is told when it fails."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from rich.console import Console

from mjolnir import ledger as ledgers
from mjolnir.research.progress import LiveScreen, PlainScreen, warning_line
from mjolnir.tuner.session import Progress
from tests.research.test_cli import call, replay

SCRIPT = Path(__file__).parents[1] / "fakes" / "proposer_command.py"


def external(how: str) -> tuple[str, ...]:
    return "--proposer", "external", "--proposer-command", shlex.join([sys.executable, str(SCRIPT), how])


def asked(folder: Path) -> list[int]:
    """The trials that the command was asked for; those before are the default and the rows in force."""
    with ledgers.open(folder) as ledger:
        trials = [record.body for record in ledger.records("a", "trial")]
    return [body["trial"] for body in trials if body["proposal"]["origin"] == "sampler"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((), "--proposer-command"),
        (("--proposer-command", "no-such-program --x"), "--proposer-command: 'no-such-program' cannot be run"),
        (("--proposer-command", "python 'x"), "does not parse: No closing quotation"),
    ],
)
def test_a_command_that_cannot_run_is_refused_at_the_start(recording, tmp_path, more, said):
    code, _, err = replay(recording, tmp_path / "ledger", "--proposer", "external", *more)
    assert (code, said in err) == (2, True)
    assert json.loads(call("autoresearch", "list", "--ledger", tmp_path / "ledger", "--json")[1])["tags"] == []


def test_failures_are_told_at_once_at_the_end_and_afterwards(recording, tmp_path):
    folder = tmp_path / "ledger"
    code, out, _ = replay(recording, folder, *external("dies"), trials=8)
    assert code == 0
    first, *later = asked(folder)
    count = 1 + len(later)
    assert count > 2
    assert out.count(f"warning: trial {first}: ") == out.count("warning: ") == 1
    assert "died with status 3: no idea; a random setting takes its place" in out
    told = (
        f"Proposals: {count} of {count} of the external command failed and were replaced; the first, of trial {first}: "
    )
    assert told in out
    shown = json.loads(call("autoresearch", "show", "a", "--ledger", folder, "--json")[1])
    assert (shown["proposals"]["asked"], shown["proposals"]["failed"]) == (count, count)
    assert shown["proposals"]["first"]["note"].endswith("died with status 3: no idea")
    story = call("autoresearch", "why", "a", later[0], "--ledger", folder)[1]
    assert "the proposer gave no setting to use; a random one took its place: " in story
    assert "status 3: no idea" in story
    assert "known already" not in story


def test_a_command_that_works_is_no_cause_for_warnings(recording, tmp_path):
    out = replay(recording, tmp_path / "ledger", *external("well"), trials=8)[1]
    assert "warning" not in out
    assert f"Proposals: 0 of {len(asked(tmp_path / 'ledger'))} of the external command failed." in out
    assert "Proposals:" not in replay(recording, tmp_path / "ledger", tag="b", trials=4)[1]


@pytest.mark.parametrize("screen", [PlainScreen, LiveScreen])
def test_a_screen_warns_once(screen, tmp_path):
    body = {"trial": 2, "verdict": "discard", "proposal": {"replaced": "random", "note": "no \x1b[2Jidea"}}
    progress = Progress("search", 1, 2, 0.0, 2, 60.0, None, {}, {"kind": "trial", "body": body}, False)
    assert warning_line(progress).startswith("warning: trial 2: no ?[2Jidea; a random setting takes its place")
    with (tmp_path / "said").open("w") as file:
        shown = screen(Console(file=file, width=200))
        shown._names = str
        for _ in range(2):
            shown.update(progress)
    assert (tmp_path / "said").read_text().count("warning: ") == 1
