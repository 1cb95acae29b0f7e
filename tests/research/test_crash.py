"""Killed at any moment and resumed, a replay comes to the same end; nothing that was acknowledged is lost."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mjolnir import ledger as ledgers
from mjolnir.research import campaign
from mjolnir.research.progress import PlainScreen
from mjolnir.research.request import Request
from mjolnir.tuner import synthetic
from tests.research.conftest import git

MJOLNIR = Path(sys.executable).with_name("mjolnir")
TRIALS = 600
KILLS = 20
COMPARED = ("trial", "noise", "shootout", "confirmation", "promotion")


class Acknowledging(PlainScreen):
    """A screen that notes the hash of each record, and how many it was told of."""

    def __init__(self, path: Path) -> None:
        super().__init__(Console(file=open(os.devnull, "w")))  # noqa: PTH123, SIM115
        self._path = path

    def update(self, progress: Any) -> None:
        with self._path.open("a") as file:
            file.write(progress.record["hash"] + "\n")


def run_campaign(recording: Path, folder: Path, acknowledged: Path, resume: bool) -> None:
    """What a killed process does."""
    request = Request(
        tag="a", resume=resume, device="replay", recording=str(recording), ledger=folder, trials=TRIALS, minutes=1e4,
        proposer="random",
    )  # fmt: skip
    campaign.run(request, Acknowledging(acknowledged))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording with more than `TRIALS` settings."""
    folder = tmp_path_factory.mktemp("wide") / "wide"
    recording = synthetic.make(name="wide")
    assert len(recording.settings) > TRIALS
    recording.save(folder)
    return folder


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    """Starts processes that have imported everything already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.research.test_crash", "optuna", "mjolnir.research.findings"])
    return context


def comparable(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """The records that a resumed campaign shares with an undisturbed one; hashes of lines name writers and times."""
    found = []
    with ledgers.open(folder) as ledger:
        for record in ledger.records("a"):
            if record.kind in COMPARED:
                body = dict(record.body)
                if body.get("certificate"):
                    body["certificate"] = {**body["certificate"], "records": len(body["certificate"]["records"])}
                found.append((record.kind, body))
    return found


def count(live: Path) -> int:
    """Whole lines of a live file."""
    return live.read_bytes().count(b"\n") if live.exists() else 0


def wait_for(live: Path, wanted: int, process: Any) -> None:
    """Wait until there are more lines than `wanted`, as long as the process lives."""
    while count(live) <= wanted:
        assert process.exitcode is None, "the campaign ended before it could be killed"
        time.sleep(0.005)


def test_twenty_kills_change_nothing(wide, processes, tmp_path):
    git(tmp_path, "init", "--quiet")
    undisturbed, folder = tmp_path / "undisturbed", tmp_path / "killed"
    git(tmp_path, "init", "--quiet", str(undisturbed))
    run_campaign(wide, undisturbed, tmp_path / "noted", resume=False)
    records_in_all = len((undisturbed / "ledger.jsonl").read_bytes().splitlines())
    rng = random.Random(7)
    acknowledged, live = tmp_path / "acknowledged", folder / "ledger.jsonl"
    killed_at = []
    for kill in range(KILLS):
        process = processes.Process(target=run_campaign, args=(wide, folder, acknowledged, count(live) > 0))
        process.start()
        # Some kills at the start or while it reads what it knows, the others spread evenly over the whole campaign.
        wanted = records_in_all * kill // KILLS if kill % 4 else 0
        wait_for(live, wanted, process)
        process.join(rng.uniform(0, 0.05))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        killed_at.append(count(live))
    assert killed_at[0] < records_in_all / 4
    assert killed_at[-1] > records_in_all / 2
    assert len(set(killed_at)) > KILLS / 2
    run_campaign(wide, folder, acknowledged, resume=True)
    with ledgers.open(folder) as ledger:
        records = ledger.records("a")
        verification = ledger.verify()
    assert verification.ok, verification.problems
    assert len({record.identity for record in records}) == len(records)
    assert set(acknowledged.read_text().split()) <= {record.sha256 for record in records}
    trials = [record.body["trial"] for record in records if record.kind == "trial"]
    assert trials == list(range(1, TRIALS + 1))
    assert comparable(folder) == comparable(undisturbed)
    subjects = git(tmp_path, "log", "--format=%s", "--grep=^trial ", "--glob=refs/mjolnir/ledger/a/*").splitlines()
    assert len(subjects) == TRIALS
    assert git(tmp_path, "fsck", "--strict") == ""


def begin(recording: Path, folder: Path) -> subprocess.Popen[str]:
    """Start a long replay, and wait until it has recorded something."""
    command = [str(MJOLNIR), "autoresearch", "run", "--device", "replay", "--no-until-flat"]
    command += ["--recording", str(recording), "--ledger", str(folder)]
    limits = ["--tag", "a", "--trials", "5000", "--minutes", "100000"]
    process = subprocess.Popen([*command, *limits], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    live = folder / "ledger.jsonl"
    deadline = time.monotonic() + 60
    while not (live.exists() and live.read_bytes().count(b'"kind":"trial"') > 3):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_with_its_best_so_far(wide, tmp_path, number):
    process = begin(wide, tmp_path)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "once more stops at once" in err
    assert "Stopped before the end" in out
    command = next(line for line in out.splitlines() if "--resume" in line).split()
    resumed = subprocess.run([MJOLNIR, *command[1:], "--trials", "20"], capture_output=True, text=True, check=False)
    assert resumed.returncode == 0, resumed.stderr
    assert "setting (where it differs from the default)" in out
    with ledgers.open(tmp_path) as ledger:
        end = ledger.records("a", "end")[0].body
    assert (end["reason"], end["resumable"]) == ("interrupted", True)
    assert end["best"]


def test_another_terminal_sees_and_stops_a_run(wide, tmp_path):
    process = begin(wide, tmp_path)
    listed = subprocess.run([MJOLNIR, "autoresearch", "list", "--ledger", tmp_path], capture_output=True, text=True)
    assert "running" in listed.stdout
    second = subprocess.run(
        [MJOLNIR, "autoresearch", "run", "--tag", "a", "--resume", "--device", "replay", "--ledger", tmp_path],
        capture_output=True,
        text=True,
    )
    assert second.returncode == 2
    assert "another process runs a" in second.stderr
    stopped = subprocess.run([MJOLNIR, "autoresearch", "stop", "--ledger", tmp_path], capture_output=True, text=True)
    assert stopped.returncode == 0
    assert "a stops after the step in hand" in stopped.stdout
    process.communicate(timeout=60)
    assert process.returncode == 130
