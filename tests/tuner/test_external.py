"""Proposals from a command: used where they can be, told where they cannot."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.coordinator import Result, run
from mjolnir.tuner.journal import MemoryJournal
from mjolnir.tuner.options import Options
from mjolnir.tuner.proposers import CommandError, ProposerError, make
from mjolnir.tuner.recording import Recording
from mjolnir.tuner.replay import ReplayBench
from mjolnir.tuner.space import Space

SCRIPT = Path(__file__).parents[1] / "fakes" / "proposer_command.py"


def command(how: str) -> str:
    return shlex.join([sys.executable, str(SCRIPT), how])


def campaign(recording: Recording, how: str, trials: int = 8) -> tuple[Result, list[dict[str, Any]]]:
    journal = MemoryJournal()
    options = Options(
        trials=trials, minutes=60, noise=3, proposer="external", proposer_command=command(how), proposer_seconds=5
    )
    result = run(ReplayBench(recording), journal, options)
    return result, [record["body"] for record in journal.records if record["kind"] == "trial"]


def test_settings_are_taken_from_the_command(modelled: Recording) -> None:
    _, trials = campaign(modelled, "well")
    resolved = [Setting.from_dict(body["resolved"]) for body in trials[1:]]
    expected = [Setting(1, stages, max_splits=splits, pdl=1) for splits in (0, 1, 64) for stages in (2, 4, 5)]
    assert resolved == expected[:7]
    assert {body["proposal"]["sampler"] for body in trials[1:]} == {"external"}
    assert all("note" not in body["proposal"] for body in trials)


@pytest.mark.parametrize(
    ("how", "note"),
    [
        ("dies", "died with status 3: no idea"),
        ("babbles", "answered no new setting: let me think: "),
        ("wild", "answered no new setting: "),
        ("stubborn", "this setting was tried already"),
    ],
)
def test_a_bad_answer_is_recorded_and_replaced(modelled: Recording, how: str, note: str) -> None:
    result, trials = campaign(modelled, how, 4)
    assert (result.reason, len({str(body["resolved"]) for body in trials})) == ("trials", 4)
    late = [body["proposal"] for body in trials[-1:]] if how == "stubborn" else [b["proposal"] for b in trials[1:]]
    assert all(note in proposal["note"] for proposal in late) or how == "stubborn"
    assert {proposal["replaced"] for proposal in late} <= {"random", "neighbour"}


def test_a_command_that_does_not_stop_answering_is_ended(modelled: Recording) -> None:
    space = Space(modelled.geometry, modelled.device, {}, modelled.settings)
    proposer = make("external", space, 0, command=command("floods"), seconds=60.0)
    begin = time.monotonic()
    with pytest.raises(ProposerError, match="answered more than 1,000,000 bytes"):
        proposer.ask(1, 2, set())
    assert time.monotonic() - begin < 30


def test_a_slow_command_is_ended(modelled: Recording) -> None:
    space = Space(modelled.geometry, modelled.device, {}, modelled.settings)
    proposer = make("external", space, 0, command=command("sleeps"), seconds=1.0)
    begin = time.monotonic()
    with pytest.raises(ProposerError, match="gave no answer within 1 s"):
        proposer.ask(1, 2, set())
    assert time.monotonic() - begin < 10


def test_a_command_that_is_not_there_is_named(modelled: Recording) -> None:
    space = Space(modelled.geometry, modelled.device, {}, modelled.settings)
    with pytest.raises(CommandError, match="--proposer-command: 'no-such-program' cannot be run"):
        make("external", space, 0, command="no-such-program --x")
    with pytest.raises(CommandError, match="--proposer-command"):
        make("external", space, 0)
    with pytest.raises(ValueError, match="needs a command: --proposer-command"):
        Options(proposer="external")
    with pytest.raises(ValueError, match="give --proposer external with it"):
        Options(proposer_command="propose")
