"""`study`: a campaign as Optuna and its dashboard see it."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import TrialState

from mjolnir import ledger as ledgers
from mjolnir.research import study as twin
from mjolnir.research.answer import UsageFailure
from tests.research.test_cli import call
from tests.research.test_messages import refused

TAG = "h200-decode8"
RUN = Path(__file__).parents[2] / "research" / "runs" / TAG / "ledger.jsonl"


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with the committed campaign."""
    folder = tmp_path_factory.mktemp("book")
    with ledgers.open(folder, git="off") as opened:
        opened.import_records(ledgers.read_file(RUN))
    return folder


def test_a_campaign_becomes_a_study(book, tmp_path):
    url = f"sqlite:///{tmp_path / 'x.db'}"
    command = ("autoresearch", "study", TAG, "--storage", url, "--ledger", book)
    code, out, _ = call(*command, "--json")
    assert (code, json.loads(out)["added"]) == (0, 165)
    study = optuna.load_study(study_name=TAG, storage=url)
    bodies = [json.loads(line)["body"] for line in RUN.read_bytes().splitlines() if b'"kind":"trial"' in line]
    assert [trial.value for trial in study.trials] == [body["ratio"] for body in bodies]
    assert [trial.params for trial in study.trials] == [body["setting"] for body in bodies]
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}
    assert study.best_trial.user_attrs["trial"] == min(bodies, key=lambda body: body["ratio"])["trial"]
    first = study.trials[0]
    assert first.user_attrs["ratio batch 8"] == bodies[0]["ratios"]["8"]
    assert first.datetime_complete == datetime(2026, 11, 29, 15, 11, 45, 47894)
    assert first.distributions["max_splits"] == IntDistribution(0, 512)
    assert first.distributions["pdl"] == CategoricalDistribution((0, 1))
    assert study.user_attrs["device"]["name"] == "NVIDIA H200"
    assert study.metric_names == ["time / built-in default"]
    told = call(*command)[1]
    assert "0 trials added" in told, "doing it twice adds nothing"
    assert url in "".join(told.split()), "what is printed can be given to the dashboard"
    assert len(optuna.load_study(study_name=TAG, storage=url).trials) == 165


@pytest.mark.parametrize(
    ("status", "state"),
    [("measured", "COMPLETE"), ("infeasible", "PRUNED"), ("raced", "PRUNED"), ("crashed", "FAIL"), ("nan", "FAIL")],
)
def test_states(status, state):
    body = {
        "trial": 1, "status": status, "verdict": "discard", "reason": "why", "epoch": "e", "bucket": None,
        "setting": {"pdl": 1, "gone": 7}, "ratio": 0.5 if status == "measured" else None, "phases": {"gate": 2.0},
        "proposal": {"origin": "sampler"},
    }  # fmt: skip
    record = {"time": "2026-01-02T03:04:05.000000Z", "hash": "h", "body": body}
    made = twin._trial(record, twin._lines([body["setting"], {"pdl": 0, "gone": 9}]))
    assert made.state.name == state
    assert made.value == body["ratio"]
    assert made.user_attrs["status"] == status
    assert made.duration == timedelta(seconds=2)
    assert made.distributions["gone"] == CategoricalDistribution((7, 9)), (
        "a knob that there is no more has the values that were tried"
    )


def test_what_cannot_be_is_said(book, tmp_path):
    command = ("autoresearch", "study", TAG, "--ledger", book, "--storage")
    refused(2, "is no database that can be opened; write sqlite:///study.db", *command, "nonsense")
    refused(1, "cannot be opened", *command, f"sqlite:///{tmp_path / 'none' / 'x.db'}")
    refused(1, "there is no tag other", "autoresearch", "study", "other", "--storage", "sqlite://", "--ledger", book)
    code, _, err = call(*command, "nonesuch://me:secret@host/x")
    assert (code, "secret" in err) == (2, False)
    url = f"sqlite:///{tmp_path / 'x.db'}"
    optuna.create_study(storage=url, study_name=TAG).add_trial(optuna.create_trial(value=1.0))
    with ledgers.open(book) as opened, pytest.raises(UsageFailure, match="another study"):
        twin.study(opened, TAG, url)
