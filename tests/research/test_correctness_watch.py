"""Watching a run: progress now and then, and a case that does not come back is named."""

import io
import threading
import time

import pytest

from mjolnir.research.correctness_watch import Watch


def test_a_case_that_does_not_come_back_is_named() -> None:
    given_up, happened = [], threading.Event()

    def give_up(message: str) -> None:
        given_up.append(message)
        happened.set()

    with Watch(3, patience=0.05, give_up=give_up, stream=io.StringIO()) as watch:
        watch.begin("quick")
        watch.begin("stuck")
        assert happened.wait(5)
    assert given_up == ["case 2 of 3 did not come back within 0 s: stuck"]


def test_cases_that_end_in_time_are_left_alone() -> None:
    given_up: list[str] = []
    with Watch(2, patience=0.2, give_up=given_up.append, stream=io.StringIO()) as watch:
        watch.begin("one")
        watch.begin("two")
    time.sleep(0.4)
    assert given_up == []


def test_progress_is_told_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 11.0, 12.0, 30.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    stream = io.StringIO()
    with Watch(9, give_up=lambda _: None, stream=stream) as watch:
        for number in range(4):
            watch.begin(str(number))
    assert stream.getvalue() == "1 of 9 cases\n3 of 9 cases\n"
