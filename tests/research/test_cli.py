"""The commands as they are called: what they print, and the codes that they leave with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mjolnir import ledger as ledgers
from mjolnir.research.cli.app import app
from mjolnir.tuner.recording import Recording
from tests.research.conftest import git

MJOLNIR = Path(sys.executable).with_name("mjolnir")
GROUPS = {
    "autoresearch": (
        "run", "status", "show", "list", "why", "compare", "stop", "export", "record", "worker", "try", "note", "study",
    ),
    "ledger": ("reindex", "import", "verify", "repair", "push", "fetch", "remove", "gc"),
    "defaults": ("show", "explain", "check", "verify", "promote", "demote", "diff"),
    "bench": ("kernel", "replay", "tuner", "eager", "ledger", "vllm"),
    "verify": ("correctness", "pdl", "sanitizer", "vllm"),
}  # fmt: skip


def call(*arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command, in this process."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def replay(recording: Path, folder: Path, *more: object, tag: str = "a", trials: int = 12) -> tuple[int, str, str]:
    """Run a short replay."""
    common = ("--device", "replay", "--recording", recording, "--ledger", folder, "--tag", tag, "--trials", trials)
    return call("autoresearch", "run", *common, "--no-until-flat", *more)


def test_help_is_there_for_all_and_loads_nothing_heavy():
    code = (
        "import sys\nfrom mjolnir.research.cli.app import app\n"
        "heavy = {'torch', 'optuna', 'numpy', 'pandas', 'matplotlib', 'sqlalchemy', 'git', 'rich', 'jinja2'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    for group, commands in GROUPS.items():
        exit_code, text, _ = call(group, "--help")
        assert exit_code == 0
        for command in commands:
            assert f"  {command} " in text
            assert "--json" in call(group, command, "--help")[1]
    assert "--json" in call("doctor", "--help")[1]


def test_help_imports_nothing_heavy():
    heavy = ("torch", "optuna", "pandas", "matplotlib", "sqlalchemy", "git", "scipy", "numpy", "cutlass")
    code = (
        "import atexit, sys; sys.argv = ['mjolnir', '--help']; "
        f"atexit.register(lambda: print('heavy:', sorted(set({heavy!r}) & set(sys.modules)))); "
        "from mjolnir.research.cli.main import run; run()"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "autoresearch" in told
    assert told.splitlines()[-1] == "heavy: []"


def test_a_resume_with_fewer_trials_than_there_are_spends_no_attempt(recording: Path, tmp_path: Path):
    folder = tmp_path / "ledger"
    replay(recording, folder, trials=6)
    before = (folder / "ledger.jsonl").read_bytes()
    code, _, err = replay(recording, folder, "--resume", trials=5)
    assert (code, "--trials 5: 6 trials are on record" in err) == (2, True)
    assert (folder / "ledger.jsonl").read_bytes() == before
    assert replay(recording, folder, "--resume", trials=6)[0] == 0


@pytest.mark.parametrize("words", [("list",), ("show", "a"), ("show", "a", "1")])
def test_looking_into_a_ledger_waits_for_no_mathematics(recording: Path, tmp_path: Path, words: tuple[str, ...]):
    """Importing scipy takes longer than all the rest of these commands; the first look works the summary out."""
    replay(recording, tmp_path / "ledger")
    call("autoresearch", "show", "a", "--ledger", tmp_path / "ledger")
    code = (
        "import atexit, sys; "
        "atexit.register(lambda: print('heavy:', sorted({'numpy', 'scipy', 'torch', 'pandas'} & set(sys.modules)))); "
        "from mjolnir.research.cli.main import run; run()"
    )
    command = [sys.executable, "-c", code, "autoresearch", *words, "--ledger", str(tmp_path / "ledger")]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert told.splitlines()[-1] == "heavy: []"


def test_proposing_has_one_thread_unless_the_user_wants_more():
    code = (
        "import atexit, os, sys; sys.argv = ['mjolnir', sys.argv[1], '--help']; "
        "atexit.register(lambda: print('threads:', os.environ.get('OPENBLAS_NUM_THREADS'))); "
        "from mjolnir.research.cli.main import run; run()"
    )

    def threads(group, **environment):
        told = subprocess.run(
            [sys.executable, "-c", code, group],
            check=True,
            capture_output=True,
            text=True,
            env={**{k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}, **environment},
        ).stdout
        return told.splitlines()[-1]

    assert threads("autoresearch") == "threads: 1"
    assert threads("autoresearch", OPENBLAS_NUM_THREADS="3") == "threads: 3"
    assert threads("ledger") == "threads: None"  # what they start keeps the user's environment


def test_a_replay_is_found_recorded_and_told(recording, tmp_path):
    code, out, _ = replay(recording, tmp_path / "ledger")
    assert code == 0
    first = out.splitlines()[0]
    assert str(tmp_path / "ledger") in first
    assert "at most 12 trials or 10 min of search, about 1 min; noise before it and" in first
    assert "at most 720 instances to prove gains after it, about " in first
    assert "smallest gain that can be proven" in first
    assert "Tried: 12 trials" in out
    assert "3 of 3 deliberately wrong kernels were rejected" in out
    for bucket in (1, 4, 8, 32, 64, 128):
        assert any(line.startswith(f"{bucket} ") for line in out.splitlines())
    code, out, _ = call("ledger", "verify", "--ledger", tmp_path / "ledger", "--json")
    assert code == 0
    assert json.loads(out)["ok"]


def test_json_is_one_object_on_stdout(recording, tmp_path):
    code, out, err = replay(recording, tmp_path / "ledger", "--json")
    assert code == 0
    data = json.loads(out)
    assert data["summary"]["trials"]["total"] == 12
    assert "at most 12 trials" in err
    for command in (("list",), ("status",), ("show",), ("show", "a", "3"), ("export", "a", "--out", tmp_path / "x")):
        code, out, _ = call("autoresearch", *command, "--ledger", tmp_path / "ledger", "--json")
        assert code == 0
        assert isinstance(json.loads(out), dict)


def test_show_tells_a_trial(recording, tmp_path):
    replay(recording, tmp_path / "ledger")
    code, out, _ = call("autoresearch", "show", "a", "1", "--ledger", tmp_path / "ledger")
    assert code == 0
    assert "trial 1 of a: measured, keep" in out
    assert "setting   the built-in default" in out
    assert "128x2048" in out
    code, _, err = call("autoresearch", "show", "a", "99", "--ledger", tmp_path / "ledger")
    assert code == 1
    assert "99" in err


def test_auto_without_a_gpu_never_replays(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, out, err = call("autoresearch", "run", "--ledger", tmp_path)
    assert code == 3
    assert "no CUDA device; try --device replay (packaged H200 recording)" in err
    assert out == ""
    code, _, err = call("autoresearch", "record", "--name", "x", "--out", tmp_path / "x")
    assert code == 3
    assert "no CUDA device" in err


def test_an_existing_tag_needs_resume(recording, tmp_path):
    assert replay(recording, tmp_path)[0] == 0
    code, _, err = replay(recording, tmp_path)
    assert code == 2
    assert "--resume" in err
    assert "another --tag" in err
    assert replay(recording, tmp_path, "--resume")[0] == 0
    code, _, err = replay(recording, tmp_path, "--resume", tag="b")
    assert code == 2
    assert "there is no campaign b" in err


def test_a_finished_campaign_resumed_adds_nothing_and_more_trials_go_on(recording, tmp_path):
    replay(recording, tmp_path)
    before = (tmp_path / "ledger.jsonl").read_bytes()
    assert replay(recording, tmp_path, "--resume")[0] == 0
    assert (tmp_path / "ledger.jsonl").read_bytes() == before
    assert replay(recording, tmp_path, "--resume", trials=20)[0] == 0
    with ledgers.open(tmp_path) as ledger:
        numbers = [record.body["trial"] for record in ledger.records("a", "trial")]
    assert numbers == list(range(1, 21))


def test_a_tag_stays_on_what_it_began_on(recording, tmp_path):
    replay(recording, tmp_path)
    common = ("autoresearch", "run", "--tag", "a", "--resume", "--ledger", tmp_path)
    assert call(*common, "--recording", recording)[0] == 0, "a replay goes on as one without --device"
    for more, words in (
        (("--device", "cuda"), "this tag is a replay"),
        (("--recording", recording, "--promote"), "only into a scratch table"),
        (("--recording", recording, "--seed", 4), "cannot change"),
    ):
        code, _, err = call(*common, *more)
        assert (code, words in err) == (2, True), err


def test_a_canary_that_passes_voids_the_campaign(recording, tmp_path):
    spoiled, scratch = tmp_path / "spoiled", tmp_path / "table.json"
    whole = Recording.load(recording)
    canaries = tuple(
        {**canary, "status": "measured"} if canary["fault"] == "skip" else canary for canary in whole.canaries
    )
    replace(whole, canaries=canaries).save(spoiled)
    code, out, _ = replay(spoiled, tmp_path / "ledger", "--promote", "--defaults", scratch)
    assert code == 5
    assert "The results are void" in out
    assert not scratch.exists()
    with ledgers.open(tmp_path / "ledger") as ledger:
        assert ledger.records("a", "trial") == ()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--tag", "UPPER"), "tag"),
        (("--pin", "kv_stages=99"), "not allowed"),
        (("--effort", "huge"), "huge"),
        (("--device", "tpu"), "is none of auto, cuda"),
        (("--device", "replay", "--recording", "none-such"), "neither a packaged recording"),
        (("--resume",), "--resume needs --tag"),
    ],
)
def test_nonsense_is_refused_with_code_2(tmp_path, arguments, words):
    code, _, err = call("autoresearch", "run", "--ledger", tmp_path, *arguments)
    assert code == 2
    assert words in err
    assert not (tmp_path / "ledger.jsonl").exists()


def test_pins_that_leave_nothing_are_refused(recording, tmp_path):
    code, _, err = replay(recording, tmp_path, "--pin", "kv_stages=3")
    assert (code, "--pin" in err) == (2, True)
    assert not (tmp_path / "ledger.jsonl").exists()


def test_a_replay_of_another_problem_is_refused(recording, tmp_path):
    code, _, err = replay(recording, tmp_path, "--geometry", "64/8xd128,page=16")
    assert code == 2
    assert "and nothing else" in err


def test_rows_of_a_replay_go_into_a_scratch_table_only(recording, tmp_path, checkout, monkeypatch):
    monkeypatch.chdir(checkout)
    code, _, err = replay(recording, tmp_path / "ledger", "--promote")
    assert code == 2
    assert "only into a scratch table" in err
    scratch = tmp_path / "scratch" / "table.json"
    code, out, _ = replay(recording, tmp_path / "ledger", "--promote", "--defaults", scratch, trials=30)
    assert code == 0
    rows = json.loads(scratch.read_text())["rows"]
    assert rows, out
    assert str(scratch) in out
    code, _, err = call("defaults", "promote", "a", "--ledger", tmp_path / "ledger")
    assert code == 2
    assert "only into a scratch table" in err
    again = tmp_path / "again.json"
    code, out, _ = call("defaults", "promote", "a", "--ledger", tmp_path / "ledger", "--table", again, "--json")
    assert code == 0
    assert again.read_bytes() == scratch.read_bytes()
    assert git(checkout, "status", "--porcelain") == ""
    code, out, _ = call("defaults", "show", "--table", scratch, "--json")
    assert json.loads(out)["tables"][0]["rows"] == rows
    key = rows[0]["key"]
    arguments = ("--batch", key["batch"], "--context", 4096, "--device", "h200", "--table", scratch)
    code, out, _ = call("defaults", "explain", *arguments, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["row"] == rows[0]
    assert found["steps"][0]["outcome"] == "serves"
    assert "exact key" in call("defaults", "explain", *arguments)[1]


def test_rows_that_cannot_be_written_leave_code_4(recording, tmp_path):
    scratch = tmp_path / "table.json"
    scratch.write_text("{ broken")
    code, out, _ = replay(recording, tmp_path / "ledger", "--promote", "--defaults", scratch, trials=30)
    assert code == 4
    assert "NOT written" in out
    assert scratch.read_text() == "{ broken"


def test_explain_without_a_gpu_needs_a_device(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert call("defaults", "explain", "--batch", 8)[0] == 3
    code, _, err = call("defaults", "explain", "--batch", 8, "--device", "warp drive")
    assert code == 2
    assert "sm_90a/132/NVIDIA H200" in err
    code, out, _ = call("defaults", "explain", "--batch", 8, "--device", "sm_90a/132/NVIDIA H200 NVL", "--json")
    assert code == 0
    assert json.loads(out)["plan"]["tiles"] == 8 * 8 * 64


def test_doctor_says_what_is_missing(tmp_path):
    code, out, _ = call("doctor", "--ledger", tmp_path, "--json")
    assert code == 0
    data = json.loads(out)
    assert {"GPU", "torch", "CuTe DSL", "git", "ledger", "compile cache"} <= {check["name"] for check in data["checks"]}
    assert all(check["ok"] or check["advice"] for check in data["checks"])
    assert data["abilities"]["replay a recorded campaign"] == "yes"
    assert "This machine can" in call("doctor", "--ledger", tmp_path)[1]


def test_stop_needs_something_that_runs(recording, tmp_path):
    replay(recording, tmp_path)
    code, _, err = call("autoresearch", "stop", "--ledger", tmp_path)
    assert code == 1
    assert "no campaign runs" in err
    code, _, err = call("autoresearch", "stop", "a", "--ledger", tmp_path)
    assert code == 1
    assert "not running" in err


def test_unknown_tags_are_told(recording, tmp_path):
    code, _, err = call("autoresearch", "show", "--ledger", tmp_path)
    assert (code, "no campaigns yet" in err) == (1, True)
    replay(recording, tmp_path)
    for command in (("show", "b"), ("status", "b"), ("export", "b")):
        code, _, err = call("autoresearch", *command, "--ledger", tmp_path)
        assert (code, "no tag b" in err) == (1, True)
