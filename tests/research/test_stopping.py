"""A tag belongs to one process, and stops when it is asked to."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import pytest

from mjolnir.research.answer import UsageFailure
from mjolnir.research.stopping import Running, is_running, request_stop, stop_file


def test_a_second_process_is_refused_and_a_third_is_not(tmp_path):
    assert not is_running(tmp_path, "a")
    with Running(tmp_path, "a").claim():
        assert is_running(tmp_path, "a")
        assert not is_running(tmp_path, "b")
        with pytest.raises(UsageFailure, match="another process runs a"), Running(tmp_path, "a").claim():
            pass
    assert not is_running(tmp_path, "a")
    with Running(tmp_path, "a").claim():
        pass


def test_no_run_leaves_its_lock_file_and_what_killed_ones_left_is_removed(tmp_path):
    folder = tmp_path / ".ledger"
    folder.mkdir()
    killed = "import sys; from tests.research.test_stopping import hold; hold(sys.argv[1], 'dead')"
    subprocess.run([sys.executable, "-c", killed, str(folder)], check=False)
    assert {path.name for path in folder.iterdir()} == {"dead.run", "dead.stop"}
    with Running(folder, "b").claim(), Running(folder, "a").claim():
        assert {path.name for path in folder.iterdir()} == {"a.run", "b.run"}, "what runs keeps its file"
        assert is_running(folder, "b")
    assert list(folder.iterdir()) == []


def hold(folder: str, tag: str) -> None:
    """Claim a tag, ask it to stop, and die."""
    with Running(Path(folder), tag).claim():
        request_stop(Path(folder), tag)
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_lock_file_that_was_removed_holds_nothing(tmp_path, monkeypatch):
    """One process opens the file, its holder removes it, another makes it anew: the first one has to see that."""
    path, real = tmp_path / "a.run", fcntl.flock
    made: list[int] = []

    def late(handle: int, how: int) -> None:
        if not made:
            made.append(handle)
            path.unlink()
            path.touch()
        real(handle, how)

    monkeypatch.setattr("fcntl.flock", late)
    with Running(tmp_path, "a").claim():
        assert made
        assert is_running(tmp_path, "a")
        with pytest.raises(UsageFailure, match="another process"), Running(tmp_path, "a").claim():
            pass


def test_one_of_many_that_start_at_once_gets_the_tag(tmp_path):
    """Each claims, counts itself in, and ends, over and over: there is never more than one inside."""
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        counts = list(pool.map(enter, [str(tmp_path)] * 4))
    assert sum(entered for entered, _ in counts) > 0
    assert max(seen for _, seen in counts) == 1


def enter(folder: str) -> tuple[int, int]:
    """How often this process got the tag in a hundred tries, and the most processes that it found inside."""
    entered = seen = 0
    inside = Path(folder).with_name(Path(folder).name + "-inside")
    inside.mkdir(exist_ok=True)
    for _ in range(100):
        with suppress(UsageFailure), Running(Path(folder), "a").claim():
            mine = inside / str(os.getpid())
            mine.touch()
            entered, seen = entered + 1, max(seen, len(list(inside.iterdir())))
            mine.unlink()
    return entered, seen


def test_a_request_stops_and_does_not_outlive_the_run(tmp_path):
    with Running(tmp_path, "a").claim() as stop:
        assert not stop()
        request_stop(tmp_path, "a")
        assert stop()
    assert not stop_file(tmp_path, "a").exists()
    request_stop(tmp_path, "a")
    with Running(tmp_path, "a").claim() as stop:
        assert not stop(), "a request from before the run is no request"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_cleanly(tmp_path, number, capfd):
    before = signal.getsignal(number)
    with Running(tmp_path, "a").claim() as stop:
        os.kill(os.getpid(), number)
        assert stop()
    assert signal.getsignal(number) is before
    assert "once more stops at once" in capfd.readouterr().err


def test_a_second_signal_ends_the_process_at_once(tmp_path):
    script = (
        "import os, signal, sys, pathlib\n"
        "from mjolnir.research.stopping import Running\n"
        "with Running(pathlib.Path(sys.argv[1]), 'a').claim():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('first', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('second', flush=True)\n"
    )
    result = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert result.returncode == 130
    assert result.stdout == "first\n"
    assert not is_running(tmp_path, "a")
