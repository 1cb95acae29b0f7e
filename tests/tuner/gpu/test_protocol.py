"""Child processes: answers, time limits, and how failures are told apart."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mjolnir.tuner.bench import Status
from mjolnir.tuner.gpu.child import make, resolve
from mjolnir.tuner.gpu.protocol import Child, Died, Failed, Hung
from mjolnir.tuner.gpu.supervisor import blame

TARGET = "tests.fakes.children:create"
LIMITS = {"start": 30.0, "work": 10.0, "sleeping": 0.3, "a": 10.0, "b": 10.0, "gate": 10.0}


@pytest.fixture
def child() -> Iterator[Child]:
    made = Child(TARGET)
    yield made
    made.close()


def gone(pid: int, seconds: float = 5.0) -> bool:
    """Whether process `pid` has ended, a zombie included, within `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_answers_and_has_a_session_of_its_own(child: Child) -> None:
    answer = child.ask({"op": "echo", "n": 1}, LIMITS)
    assert (answer["echo"], answer["idle"] >= 0) == ({"op": "echo", "n": 1}, True)
    assert child.ask({"op": "echo", "n": 2}, LIMITS)["echo"]["n"] == 2
    assert os.getsid(child.pid) == child.pid != os.getsid(0)


def test_what_was_sent_ahead_is_answered_in_order_without_a_wait(child: Child) -> None:
    child.ask({"op": "echo"}, LIMITS)
    time.sleep(0.3)
    child.send({"op": "phases", "phases": ["a"], "seconds": 0.2, "n": 1})
    child.send({"op": "echo", "n": 2})
    first, second = child.receive(LIMITS), child.receive(LIMITS)
    assert [answer["echo"]["n"] for answer in (first, second)] == [1, 2]
    assert first["idle"] >= 0.3 > 0.1 > second["idle"]


def test_each_phase_has_its_own_time(child: Child) -> None:
    request = {"op": "phases", "phases": ["a", "b", "a", "b"], "seconds": 0.2}
    assert child.ask(request, {"start": 30.0, "a": 0.6, "b": 0.6})["echo"] == request


def test_a_hung_child_is_killed_with_all_it_started(child: Child) -> None:
    family = child.ask({"op": "family"}, LIMITS)
    with pytest.raises(Hung, match=r"no answer within 0.3 s in phase 'sleeping'") as caught:
        child.ask({"op": "sleep"}, LIMITS)
    assert caught.value.phase == "sleeping"
    assert not child.alive
    assert gone(family["pid"])
    assert gone(family["child"])


def test_a_crash_keeps_signal_phase_and_last_words(child: Child) -> None:
    with pytest.raises(Died, match=r"was ended by SIGSEGV in phase 'work'") as caught:
        child.ask({"op": "signal", "name": "SIGSEGV"}, LIMITS)
    assert caught.value.code == -signal.SIGSEGV
    assert "last words" in caught.value.log


def test_a_child_that_cannot_start_says_why() -> None:
    made = Child("tests.fakes.children:broken")
    with pytest.raises(Died, match=r"exited with status 7 in phase 'start'") as caught:
        made.ask({"op": "echo"}, LIMITS)
    assert "cannot start" in caught.value.log
    made.close()


def test_an_exception_is_an_answer(child: Child) -> None:
    with pytest.raises(Failed, match="ValueError: no such thing") as caught:
        child.ask({"op": "raise"}, LIMITS)
    assert caught.value.kind == "ValueError"
    assert "Traceback" in caught.value.log
    assert child.ask({"op": "echo"}, LIMITS)["echo"] == {"op": "echo"}


def test_an_interrupted_request_ends_the_child(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: Child, limit: float, phase: str) -> dict[str, object]:
        raise KeyboardInterrupt

    monkeypatch.setattr(Child, "_receive", interrupt)
    with pytest.raises(KeyboardInterrupt):
        child.ask({"op": "sleep"}, LIMITS)
    assert not child.alive


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PR_SET_PDEATHSIG is Linux's")
def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    script = (
        "from mjolnir.tuner.gpu.protocol import Child\n"
        f"child = Child({TARGET!r})\n"
        f"print(child.ask({{'op': 'family'}}, {LIMITS!r})['pid'], flush=True)\n"
        f"child.ask({{'op': 'sleep'}}, {dict(LIMITS, sleeping=600)!r})\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not gone(pid, 0.2)
        parent.kill()
        assert gone(pid)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Hung("h", "gate"), Status.HUNG),
        (Hung("h", "inputs"), Status.INFRASTRUCTURE),
        (Died("d", "measure", "", -signal.SIGSEGV), Status.CRASHED),
        (Died("d", "measure", "", 1), Status.CRASHED),
        (Died("d", "measure", "", -signal.SIGKILL), Status.INFRASTRUCTURE),
        (Died("d", "open", "", -signal.SIGSEGV), Status.INFRASTRUCTURE),
        (Failed("LaunchError: bad", "gate", "", "LaunchError"), Status.CRASHED),
        (Failed("AcceleratorError: CUDA error: unspecified", "measure", "", "AcceleratorError"), Status.CRASHED),
        (Failed("KeyError: 'x'", "gate", "", "KeyError"), Status.INFRASTRUCTURE),
        (Failed("LaunchError: bad", "baseline", "", "LaunchError"), Status.INFRASTRUCTURE),
    ],
)
def test_blame(error: Hung | Died | Failed, status: Status) -> None:
    assert blame(error)[0] is status


def test_garbage_is_collected_as_usual_once_a_handler_is_made() -> None:
    usual = gc.get_threshold()
    try:
        assert make(TARGET) is resolve(TARGET)()
        assert gc.get_freeze_count() > 0
        with pytest.raises(SystemExit):
            make("tests.fakes.children:broken")
        assert gc.get_threshold() == usual
    finally:
        gc.unfreeze()
