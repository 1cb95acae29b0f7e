"""What cannot be done is said in words, with the right code, in text and as JSON; never by a traceback."""

from __future__ import annotations

import errno
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mjolnir import ledger as ledgers
from mjolnir.research.cli import output
from tests.research.test_cli import MJOLNIR, call, replay


def refused(code: int, words: str, *arguments: object) -> None:
    """The command leaves with `code` and says `words`, the same with --json as an object."""
    got, _, err = call(*arguments)
    assert (got, words in err) == (code, True), err
    got, out, _ = call(*arguments, "--json")
    told = json.loads(out)
    assert (got, told["exit_code"], words in told["error"]) == (code, code, True), told


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("mine")
    return path


def test_a_ledger_that_cannot_be(file):
    run = ("autoresearch", "run", "--device", "replay", "--ledger")
    refused(1, "is a file", *run, file)
    refused(1, "cannot be made: Not a directory", *run, file / "below")
    refused(1, "~nobody-here", *run, "~nobody-here/x")
    assert file.read_text() == "mine"


def test_a_ledger_that_cannot_be_written_is_listed_all_the_same(recording, tmp_path, monkeypatch):
    assert replay(recording, tmp_path)[0] == 0
    before = sorted(path.name for path in tmp_path.rglob("*"))
    (tmp_path / ".ledger" / "a.run").touch()
    real = os.open

    def read_only(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if str(path).startswith(str(tmp_path)) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, flags, *more, **named)

    monkeypatch.setattr("os.open", read_only)
    monkeypatch.setattr("os.access", lambda path, mode, **_: not mode & os.W_OK)
    code, out, _ = call("autoresearch", "list", "--ledger", tmp_path)
    assert (code, "finished (trials)" in out) == (0, True)
    refused(1, "cannot be written; name another with --ledger", "autoresearch", "run", "--ledger", tmp_path)
    assert sorted({*before, "a.run"}) == sorted(path.name for path in tmp_path.rglob("*"))


def test_a_variable_that_is_wrong(tmp_path, monkeypatch):
    monkeypatch.setenv("MJOLNIR_ATTN_CTAS", "9")
    words = "MJOLNIR_ATTN_CTAS = '9' is not allowed: 1 to 4"
    refused(2, words, "autoresearch", "run", "--device", "replay", "--ledger", tmp_path)
    refused(2, words, "defaults", "explain", "--batch", 8, "--device", "h200")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, 2]", "this is no workload"),
        ('"x"', "this is no workload"),
        ('{"schema": "mjolnir.workload/1", "points": 5}', "points must be a list"),
        ("[" * 200_000, "is not JSON"),
        ("\udcff", "is not JSON"),
        (
            '{"schema": "mjolnir.workload/1", "points": [{"batch": 1, "contexts": 8}, 7]}',
            "points[1]: this is no object",
        ),
    ],
)
def test_a_workload_that_is_none(tmp_path, text, words):
    path = tmp_path / "mine.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    refused(2, words, "autoresearch", "run", "--device", "replay", "--ledger", tmp_path / "l", "--workload", path)
    code, _, err = call("autoresearch", "run", "--device", "replay", "--ledger", tmp_path, "--workload", path)
    assert (code, str(path) in err) == (2, True)


def test_a_trial_number_beyond_all(recording, tmp_path):
    replay(recording, tmp_path)
    refused(1, "its last one is 12", "autoresearch", "show", "a", 10**23, "--ledger", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--batch", 10**20, "--device", "h200"), "at most 1,048,576"),
        (("--batch", 10**8, "--device", "h200"), "at most 1,048,576"),
        (("--batch", 8, "--context", 10**20, "--device", "h200"), "--context is at most"),
        (("--batch", 8, "--device", "sm_90a/99999999999999999999/x"), "at most 1,024"),
        (("--batch", 8, "--device", "sm_90a/0/x"), "sm_count = 0"),
        (("--batch", 8, "--device", "sm_90a/²/x"), "--device 'sm_90a/²/x'"),
        (("--batch", 8, "--device", ""), "--device is empty"),
        (("--batch", 8, "--device", "warp"), "of the known devices (sm_90a/132/NVIDIA H200"),
        (("--batch", 8, "--device", "h200", "--table", "/nonexistent"), "there is no table /nonexistent"),
    ],
)
@pytest.mark.timeout(20)
def test_questions_that_explain_does_not_answer(arguments, words):
    refused(2, words, "defaults", "explain", *arguments)


def test_without_a_gpu_the_advice_can_be_followed(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    record = ("autoresearch", "record", "--name", "x", "--out", tmp_path / "x")
    refused(3, "`mjolnir doctor` says what is missing", *record)
    refused(2, "is none of auto, cuda and cuda:<number>", *record, "--device", "replay")
    for arguments in (record, ("defaults", "explain", "--batch", 32)):
        assert "--device replay" not in call(*arguments)[2]
    assert "replay," not in call("autoresearch", "record", "--help")[1]
    refused(3, "name one with --device, as ARCH/SMS/NAME", "defaults", "explain", "--batch", 32)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--minutes", "inf"), "--minutes inf"),
        (("--minutes", "0"), "above zero"),
        (("--pin", "pdl=1", "--pin", "pdl=0"), "pdl is held twice"),
        *(
            ((f"--{name}", ""), f"--{name} is empty")
            for name in ("tag", "device", "recording", "geometry", "placement")
        ),
    ],
)
def test_options_that_mean_nothing(tmp_path, arguments, words):
    refused(2, words, "autoresearch", "run", "--device", "replay", "--ledger", tmp_path / "l", *arguments)
    assert not (tmp_path / "l" / "ledger.jsonl").exists()


def test_the_parser_speaks_json_too():
    refused(2, "--nosuch", "autoresearch", "run", "--nosuch")
    refused(2, "--batch", "defaults", "explain", "--batch", "many")
    assert call("--version")[1].startswith("mjolnir 0.")


def test_python_does_not_show_in_messages(recording, tmp_path):
    _, _, err = replay(recording, tmp_path, "--placement", "token-major/apart")
    assert "has head-major/together and nothing else" in err


def test_promote_names_tag_and_ledger(tmp_path):
    refused(1, f"no campaigns yet in {tmp_path}", "defaults", "promote", "nosuch", "--ledger", tmp_path)


def test_a_damaged_user_table_is_named_with_its_path(tmp_path, monkeypatch, caplog):
    path = tmp_path / "mine.json"
    path.write_text("{ broken")
    monkeypatch.setenv("MJOLNIR_DEFAULTS", str(path))
    assert str(path) in call("defaults", "show")[1]
    assert caplog.text.count(str(path)) == 1


# ---- places that cannot be written ----------------------------------------------------------------------------------


def test_outputs_are_tried_before_the_work(recording, tmp_path, file):
    for more, words in (
        (("--export", file / "x"), "--export: "),
        (("--export", file), "--export: "),
        (("--defaults", file / "t.json"), "--table: "),
        (("--defaults", tmp_path), "is a folder"),
    ):
        code, _, err = replay(recording, tmp_path / "ledger", *more)
        assert (code, words in err) == (2, True), err
    assert not (tmp_path / "ledger").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "home"]


def test_an_export_that_fails_at_the_end_costs_no_summary(recording, tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("mjolnir.research.report.plots.write", full)
    out = tmp_path / "new" / "out"
    code, text, _ = replay(recording, tmp_path / "ledger", "--export", out)
    assert code == 1
    assert "Tried: 12 trials" in text
    assert f"NOT exported: the export could not be written to {out}: No space left on device" in text
    assert not out.exists(), "half an export is none"
    assert list(out.parent.iterdir()) == []


def test_rows_that_were_not_written_are_said_so_once(recording, tmp_path):
    scratch = tmp_path / "table.json"
    scratch.write_text("{ broken")
    _, out, _ = replay(recording, tmp_path / "ledger", "--promote", "--defaults", scratch, trials=30)
    line = next(line for line in out.splitlines() if "NOT written" in line)
    assert line.startswith(f"The rows were NOT written: {scratch}: ")


# ---- streams and signals --------------------------------------------------------------------------------------------


def shell(line: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command line of bash whose $0 is `mjolnir`, and $1 and so on the arguments."""
    command = ["bash", "-c", line, str(MJOLNIR), *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}, errors="replace"
    )


def test_a_disk_that_is_full_is_said_to_be(recording, tmp_path):
    replay(recording, tmp_path)
    for more in ("", "--json"):
        done = shell(f'"$0" autoresearch list --ledger "$1" {more} > /dev/full', tmp_path)
        assert (done.returncode, done.stderr) == (
            1,
            "mjolnir: the answer could not be written to stdout: No space left on device\n",
        )


def test_a_reader_who_has_had_enough_ends_nothing(recording, tmp_path):
    run = '"$0" autoresearch run --device replay --recording "$1" --ledger "$2" --tag a --trials 12'
    done = shell(f"{run} | head -1; exit ${{PIPESTATUS[0]}}", recording, tmp_path)
    assert done.returncode == 0
    assert "stdout takes no more text (Broken pipe); the work goes on" in done.stderr
    with ledgers.open(tmp_path) as ledger:
        assert ledger.tags()[0].trials == 12
    done = shell('"$0" autoresearch list --ledger "$1" | true; exit ${PIPESTATUS[0]}', tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_name_that_the_locale_cannot_read(recording, tmp_path):
    folder = tmp_path / "sp ace é"
    plain = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    run = '"$0" autoresearch run --device replay --recording "$1" --ledger "$2" --tag a --trials 12'
    for line in (run, '"$0" autoresearch list --ledger "$2"', '"$0" autoresearch export a --ledger "$2" --out "$2"/o'):
        done = shell(line, recording, folder, **plain)
        assert done.returncode == 0, done.stderr
    assert (folder / "o" / "report.html").is_file()
    assert call("ledger", "verify", "--ledger", folder)[0] == 0


def test_tables_have_no_blanks_at_their_ends(recording, tmp_path):
    replay(recording, tmp_path)
    for command in (("list",), ("show",), ("show", "a", 1)):
        assert all(
            line == line.rstrip() for line in call("autoresearch", *command, "--ledger", tmp_path)[1].split("\n")
        )


def test_a_ctrl_c_while_it_starts_is_quiet(tmp_path):
    script = (
        "import os, signal, sys\n"
        "from mjolnir.research.cli import main\n"
        "class Slow:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer':\n"
        "            os.kill(os.getpid(), getattr(signal, sys.argv[1]))\n"
        "sys.meta_path.insert(0, Slow())\n"
        "main.run()\n"
    )
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        done = subprocess.run([sys.executable, "-c", script, name], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_lost_stream_is_told_once_and_costs_nothing(capsys):
    class Gone(io.StringIO):
        name = "<stdout>"

        def write(self, text: str) -> int:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    stream: Any = output.Sturdy(Gone())
    assert stream.write("one") == 3
    stream.write("two")
    stream.flush()
    assert capsys.readouterr().err.count("takes no more text") == 1


# ---- commands that a message names ----------------------------------------------------------------------------------


def test_hints_work_where_they_are_printed(recording, tmp_path):
    folder = tmp_path / "a ledger"
    _, out, _ = call("autoresearch", "list", "--ledger", folder)
    assert out.rstrip().endswith(shlex.join(["mjolnir", "autoresearch", "run", "--ledger", str(folder)]))
    replay(recording, folder)
    for command in (("export", "b"), ("stop", "a")):
        _, _, err = call("autoresearch", *command, "--ledger", folder)
        hint = shlex.split(err.split("`")[1]) if "`" in err else []
        assert hint[1:] == ["autoresearch", "list", "--ledger", str(folder)], err
        assert call(*hint[1:])[0] == 0


def test_verify_says_where_the_records_are(recording, tmp_path):
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    replay(recording, tmp_path / "l")
    (tmp_path / "l" / "ledger.jsonl").unlink()
    code, out, _ = call("ledger", "verify", "--ledger", tmp_path / "l")
    assert code == 0
    assert out.startswith(f"the ledger refs of {tmp_path / '.git'}: ")
    assert "of 1 writer in 1 tag, all whole" in out


def test_doctor_and_run_agree_on_git(recording, tmp_path):
    words = f"{tmp_path} lies in no git repository"
    _, out, _ = replay(recording, tmp_path)
    assert f"trials are not kept as git commits: {words}" in out
    data = json.loads(call("doctor", "--ledger", tmp_path, "--json")[1])
    assert data["abilities"]["keep the ledger in git"] == f"no: {words}"
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    data = json.loads(call("doctor", "--ledger", tmp_path, "--json")[1])
    assert data["abilities"]["keep the ledger in git"] == "yes"


def test_a_hangup_stops_cleanly(recording, tmp_path):
    command = [MJOLNIR, "autoresearch", "run", "--device", "replay", "--recording", recording, "--ledger", tmp_path]
    process = subprocess.Popen(
        [*command, "--tag", "a", "--trials", "5000", "--minutes", "100000"], stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    live = tmp_path / "ledger.jsonl"
    while not (live.exists() and b'"kind":"noise"' in live.read_bytes()):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGHUP)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, "once more stops at once" in err) == (130, True)
    with ledgers.open(tmp_path) as ledger:
        assert ledger.tags()[0].ended == "interrupted"
