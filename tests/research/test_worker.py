"""A campaign of several processes over a real PostgreSQL: no trial lost, none run twice, the result of one alone."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import optuna
import pytest
from rich.console import Console

from mjolnir import ledger as ledgers
from mjolnir.kernel.knobs import Setting
from mjolnir.ledger.shared import SharedTag
from mjolnir.research import benches, campaign, sharing
from mjolnir.research.answer import UsageFailure
from mjolnir.research.progress import PlainScreen
from mjolnir.research.request import Request, command_line
from mjolnir.tuner import coordinator, recording
from mjolnir.tuner.journal import MemoryJournal
from mjolnir.tuner.options import Options
from mjolnir.tuner.replay import ReplayBench
from tests.postgres import fresh_database
from tests.research.test_cli import call

TRIALS = 24
TAG = "shared"
VICTIM = "victim"
PACKAGED = "h200-32x8-d128-p64"
PASSWORD = "hush-hush"
PATIENCE = 120.0
"""Seconds that are waited for a process before it counts as hung: no measure of speed, machines are busy at times."""


def take_part(storage: str, folder: Path, worker: bool, hang: int = 0) -> None:
    """What a process of the campaign does; from trial `hang` on it never comes back from a trial.

    The others wait for it with the second half of the trials, or a slow machine would leave it none. Each of them holds
    two meanwhile, the one at hand and the next, so more than four are asked ahead.
    """
    measure, in_hand = ReplayBench.measure, folder.parent / VICTIM / "in-hand"

    def slowly(self: ReplayBench, trial: int, *arguments: Any, **named: Any) -> Any:
        if trial and hang and trial >= hang:
            (folder / "in-hand").write_text(str(trial))
            time.sleep(4 * PATIENCE)
        time.sleep(0.03 if trial else 0)
        deadline = time.monotonic() + PATIENCE
        while trial and trial > TRIALS // 2 and not in_hand.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        return measure(self, trial, *arguments, **named)

    ReplayBench.measure = slowly  # type: ignore[method-assign]
    request = Request(
        tag=TAG, resume=worker, worker=worker, device="auto" if worker else "replay", ledger=folder, storage=storage,
        trials=None if worker else TRIALS, minutes=None if worker else 1e4, depth=None if worker else 8,
        lease_seconds=3.0,
        command=("mjolnir", "autoresearch", "run", "--storage", storage),
    )  # fmt: skip
    code = campaign.run(request, PlainScreen(Console(file=open(os.devnull, "w")))).code  # noqa: PTH123, SIM115
    sys.exit(int(code))


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    """Starts processes that have imported everything already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.research.test_worker", "mjolnir.research.findings"])
    return context


def wait_until(path: Path, process: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not (path.exists() and path.read_bytes()):
        assert process.exitcode is None, "the process ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def alone(campaign_body: Any) -> list[Any]:
    """The records of the same campaign, run by one process."""
    incumbents = {int(b): Setting.from_dict(knobs) for b, knobs in campaign_body["incumbents"].items()}
    options = Options.from_dict(campaign_body["options"], incumbents=incumbents)
    journal = MemoryJournal()
    coordinator.run(ReplayBench(recording.packaged(PACKAGED), options.seed), journal, options)
    return journal.records


def decisions(records: Sequence[Any]) -> dict[int, Any]:
    found = [record["body"] for record in records if record["kind"] == "promotion"]
    return {
        body["bucket"]: [body[name] for name in ("setting", "decision", "reason", "ratio_default")] for body in found
    }


def trials(records: Sequence[Any]) -> dict[int, Any]:
    bodies = [record["body"] for record in records if record["kind"] == "trial"]
    names = ("resolved", "status", "ratios", "bucket", "proposal")
    return {body["trial"]: [body[name] for name in names] for body in bodies}


@pytest.mark.timeout(900)
def test_three_workers_one_of_them_killed(postgres, processes, tmp_path):
    with fresh_database(postgres, "killed") as bare:
        storage = bare.replace("postgres:@", f"postgres:{PASSWORD}@")
        assert PASSWORD in storage
        folders = [tmp_path / name for name in ("first", VICTIM, "third")]
        for folder in folders:
            folder.mkdir()
        first = processes.Process(target=take_part, args=(storage, folders[0], False))
        first.start()
        wait_until(folders[0] / "ledger.jsonl", first)
        time.sleep(0.2)
        victim = processes.Process(target=take_part, args=(storage, folders[1], True, 5))
        third = processes.Process(target=take_part, args=(storage, folders[2], True))
        victim.start()
        third.start()
        wait_until(folders[1] / "in-hand", victim)
        victim.kill()
        for process in (first, victim, third):
            process.join(PATIENCE)
        assert (first.exitcode, victim.exitcode, third.exitcode) == (0, -signal.SIGKILL, 0)
        check(storage, folders)


def check(storage: str, folders: list[Path]) -> None:
    in_hand = int((folders[1] / "in-hand").read_text())
    with SharedTag(storage, TAG) as store:
        lines = [record for _, record in store.lines()]
    shared = [{**record.as_dict(), "hash": record.sha256} for record in lines]
    numbers = [record.body["trial"] for record in lines if record.kind == "trial"]
    assert sorted(numbers) == list(range(1, TRIALS + 1))
    by_writer = Counter(record.writer for record in lines if record.kind == "trial")
    assert len(by_writer) >= 2
    body = next(record.body for record in lines if record.kind == "campaign")
    expected = alone(body)
    assert trials(shared) == trials(expected)
    assert decisions(shared) == decisions(expected)
    assert len(decisions(shared)) == 6
    for folder in (folders[0], folders[2]):
        with ledgers.open(folder) as ledger:
            here = {record.line for record in ledger.records(TAG) if record.kind != "end"}
            assert here == {record.line for record in lines if record.kind != "end"}
            assert ledger.verify().ok
    with ledgers.open(folders[1]) as ledger:
        own = ledger.records(TAG, "trial")
        assert in_hand not in [record.body["trial"] for record in own]
        assert {record.line for record in ledger.records(TAG)} < {record.line for record in lines}
    written = b"".join(path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file())
    assert PASSWORD.encode() not in written
    assert PASSWORD.encode() not in b"".join(record.line for record in lines)
    check_studies(storage, trials(shared))


def check_studies(storage: str, known: dict[int, Any]) -> None:
    """Each bucket's study has the ratios of all measured trials, each once, in the order of the trials."""
    found = optuna.storages.RDBStorage(storage)
    names = optuna.study.get_all_study_names(found)
    assert len(names) == 6
    for name in names:
        bucket = name.rpartition("-")[2]
        values = [trial.value for trial in optuna.load_study(study_name=name, storage=found).trials]
        ratios = [known[number][2] for number in sorted(known) if known[number][1] == "measured"]
        assert [value for value in values if value is not None] == [ratio[bucket] for ratio in ratios]


def start(folder: Path, storage: object, *more: object, tag: str = TAG) -> tuple[int, str, str]:
    common = ("--device", "replay", "--trials", 6, "--ledger", folder, "--tag", tag, "--proposer", "random")
    return call("autoresearch", "run", *common, "--storage", storage, *more)


def join(folder: Path, storage: object, *more: object, tag: str = TAG) -> tuple[int, str, str]:
    return call("autoresearch", "worker", "--storage", storage, "--tag", tag, "--ledger", folder, *more)


def test_a_campaign_is_opened_resumed_and_joined_on_one_host(tmp_path):
    storage = f"sqlite:///{tmp_path / 'shared.sqlite'}"
    code, _, err = join(tmp_path / "b", storage)
    assert code == 2
    assert "no campaign shared in this storage yet; open it with: mjolnir autoresearch run --tag shared" in err
    code, out, _ = start(tmp_path / "a", storage)
    assert code == 0
    assert "Tried: 6 trials" in out
    code, _, err = start(tmp_path / "b", storage)
    assert code == 2
    assert "go on with it by --resume" in err
    code, out, _ = start(tmp_path / "b", storage, "--resume", "--trials", 9)
    assert code == 0
    assert "Tried: 9 trials" in out
    code, out, _ = join(tmp_path / "c", storage, "--json")
    assert code == 0
    data = json.loads(out)
    assert (data["reason"], data["summary"]["trials"]["total"]) == ("trials", 9)
    with ledgers.open(tmp_path / "c") as ledger:
        assert ledger.verify().ok
        assert [record.body["trial"] for record in ledger.trials(TAG)] == list(range(1, 10))


def test_a_tag_that_was_run_without_the_storage_is_refused(tmp_path):
    common = ("--device", "replay", "--trials", 3, "--ledger", tmp_path / "a", "--tag", TAG, "--proposer", "random")
    assert call("autoresearch", "run", *common)[0] == 0
    code, _, err = start(tmp_path / "a", f"sqlite:///{tmp_path / 'shared.sqlite'}", "--resume")
    assert code == 2
    assert "that the storage sqlite:///shared.sqlite lacks" in err
    assert "choose another --tag" in err


def test_a_host_with_another_driver_is_refused(tmp_path, monkeypatch):
    storage = f"sqlite:///{tmp_path / 'shared.sqlite'}"
    assert start(tmp_path / "a", storage)[0] == 0
    environment = ReplayBench.environment.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(ReplayBench, "environment", property(lambda self: {**environment(self), "driver": "1.0"}))
    code, _, err = join(tmp_path / "b", storage)
    assert code == 2
    assert "this host cannot measure for shared" in err
    assert "driver is '1.0', not" in err


@pytest.mark.parametrize(
    ("storage", "code", "said"),
    [
        ("nonsense", 2, "--storage is no database URL"),
        (f"mysql://u:{PASSWORD}@h/d", 2, "--storage mysql: this kind of database cannot be shared"),
        (f"postgresql+psycopg://u:{PASSWORD}@127.0.0.1:1/d", 3, "127.0.0.1:1/d cannot be used"),
    ],
)
def test_what_is_wrong_with_a_storage_is_said_without_its_password(tmp_path, storage, code, said):
    for command in (start, join):
        left, out, err = command(tmp_path / "a", storage)
        assert left == code
        assert said in err
        assert PASSWORD not in out + err
    assert not (tmp_path / "a" / "ledger.jsonl").exists()


def test_a_missing_package_leaves_with_3(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    code, _, err = join(tmp_path, f"postgresql+psycopg://u:{PASSWORD}@h/d")
    assert code == 3
    assert "pip install 'mjolnir-autoresearch[postgres]'" in err


def test_tables_of_another_version_leave_with_2(tmp_path):
    path = tmp_path / "shared.sqlite"
    assert start(tmp_path / "a", f"sqlite:///{path}")[0] == 0
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE mjolnir_storage SET version = 7")
    code, _, err = join(tmp_path / "b", f"sqlite:///{path}")
    assert code == 2
    assert "has tables of version 7" in err


def test_a_recorded_command_has_no_password():
    url = f"postgresql+psycopg://u:{PASSWORD}@host/d"
    shown = "postgresql+psycopg://host/d"
    assert command_line(["mjolnir", "run", "--storage", url, "--tag", "t"])[2:4] == ["--storage", shown]
    assert command_line(["mjolnir", f"--storage={url}"]) == ["mjolnir", f"--storage={shown}"]
    assert command_line(["mjolnir", "--storage", "not:a/url@" + PASSWORD])[2] == "***"


def test_a_command_from_the_storage_is_run_only_when_it_was_named():
    options = Options(proposer="external", proposer_command="propose --fast")
    with pytest.raises(UsageFailure, match="asks the command 'propose --fast' for settings, which would run here too"):
        sharing.require_consent(Request(tag=TAG), options)
    sharing.require_consent(Request(tag=TAG, proposer_command="propose --fast"), options)
    sharing.require_consent(Request(tag=TAG), Options())
    with pytest.raises(UsageFailure, match="--proposer-command cannot change"):
        Request(tag=TAG, resume=True, proposer_command="another").options(options.as_dict())


def test_a_host_that_joins_measures_what_the_campaign_is_about():
    geometry, placement, workload = Request(geometry="64/8xd128,page=16,q=1", workload="decode8").problem()
    body = {"geometry": geometry.as_dict(), "placement": asdict(placement), "workload": workload.as_dict()}
    recorded = json.loads(json.dumps(body))
    assert benches.problem_of(Request(worker=True), recorded) == (geometry, placement, workload)
    assert benches.problem_of(Request(), None) == Request().problem()
    with pytest.raises(UsageFailure, match="geometry of a campaign cannot change"):
        benches.problem_of(Request(geometry="32/8xd128,page=64,q=1"), recorded)
