"""A tag belongs to one process, and stops when it is asked to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

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
