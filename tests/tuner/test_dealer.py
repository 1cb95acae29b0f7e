"""Which task a device takes: a trial whose binary it has had before others, and none waits for ever."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mjolnir.tuner.bench import Outcome, Status
from mjolnir.tuner.dealer import AT_HAND, MOST_PASSED, Dealer, Task

DEVICES = ("one", "two", "three")
RIGHT, KILLED = Outcome(Status.MEASURED), Outcome(Status.INFRASTRUCTURE, "killed")


@contextmanager
def by_hand() -> Iterator[Dealer]:
    """A dealer whose devices take nothing by themselves."""
    with mock.patch("mjolnir.tuner.dealer.threading.Thread"):
        dealer = Dealer({name: mock.Mock() for name in DEVICES})
        yield dealer


def deal(dealer: Dealer, binaries: str) -> list[Future[Outcome]]:
    """A trial for each letter."""
    return [dealer.deal(lambda bench: RIGHT, lambda bench: None, binary) for binary in binaries]


def take(dealer: Dealer, device: int, tasks: list[Future[Any]], ahead: bool = False) -> int | None:
    """The number of the task that the device takes."""
    task = dealer._take(dealer.members[device], ahead)
    return None if task is None else tasks.index(task.future)


def test_a_device_takes_what_it_has_the_binary_of_and_else_the_oldest() -> None:
    with by_hand() as dealer:
        tasks = deal(dealer, "abcab")
        assert take(dealer, 0, tasks) == 0
        assert take(dealer, 0, tasks) == 3  # the second a, before b and c
        assert take(dealer, 0, tasks) == 1
        assert take(dealer, 1, tasks) == 2
        assert take(dealer, 1, tasks, ahead=True) == 4
        assert take(dealer, 1, tasks) is None


def test_a_device_looks_at_the_first_few_alone_and_passes_none_too_often() -> None:
    with by_hand() as dealer:
        tasks = deal(dealer, "a" + "b" * AT_HAND + "a")
        assert [take(dealer, 0, tasks) for _ in range(2)] == [0, 1]
    with by_hand() as dealer:
        tasks = deal(dealer, "ab" + "a" * (MOST_PASSED + 1))
        order = [take(dealer, 0, tasks) for _ in tasks]
        assert order == [0, *range(2, 2 + MOST_PASSED), 1, 2 + MOST_PASSED]


def test_nothing_passes_a_task_that_is_for_one_device() -> None:
    with by_hand() as dealer:
        tasks: list[Future[Any]] = [*deal(dealer, "a"), dealer.ask(dealer.members[0], lambda bench: RIGHT)]
        tasks += deal(dealer, "ba")
        assert take(dealer, 0, tasks) == 0
        assert take(dealer, 0, tasks, ahead=True) is None
        assert [take(dealer, 0, tasks) for _ in range(3)] == [1, 3, 2]


def test_a_device_whose_worker_is_gone_has_had_nothing() -> None:
    with by_hand() as dealer:
        member, tasks = dealer.members[0], deal(dealer, "abaa")
        for outcome, others in ((RIGHT, {"a"}), (KILLED, set[str]())):
            member.had.clear()
            member.had.add("a")
            dealer._done(member, Task(mock.Mock(), Future()), outcome)
            assert member.had == others
        assert take(dealer, 0, tasks) == 0


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), min_size=1, max_size=30),
    st.data(),
)
def test_each_trial_is_taken_once_and_passed_over_at_most_so_often(
    announced: list[tuple[str, bool]], data: st.DataObject
) -> None:
    with by_hand() as dealer:
        tasks: list[Future[Any]] = []
        taken: list[int] = []
        waiting: list[int] = []
        passed: Counter[int] = Counter()

        def one() -> None:
            number = take(dealer, data.draw(st.integers(0, len(DEVICES) - 1)), tasks, data.draw(st.booleans()))
            assert number in waiting[:AT_HAND]
            passed.update(waiting[: waiting.index(number)])
            waiting.remove(number)
            taken.append(number)

        for number, (binary, takes) in enumerate(announced):
            tasks += deal(dealer, binary)
            waiting.append(number)
            if takes:
                one()
        while waiting:
            one()
        assert sorted(taken) == list(range(len(announced)))
        assert max(passed.values(), default=0) <= MOST_PASSED
        assert take(dealer, 0, tasks) is None


def test_what_cannot_be_announced_fails_alone() -> None:
    """The trial before it is measured: it was not what went wrong."""

    def refuse(bench: Any) -> None:
        raise OSError("no room for its binary")

    started = threading.Event()

    def work(bench: Any) -> Outcome:
        started.wait(10)
        return RIGHT

    dealer = Dealer({"one": mock.Mock()})
    busy = dealer.ask(dealer.members[0], work)  # so that both wait when the device looks ahead
    first, second = dealer.deal(lambda bench: RIGHT, lambda bench: None), dealer.deal(lambda bench: RIGHT, refuse)
    started.set()
    assert busy.result(10) is RIGHT
    assert first.result(10).status is Status.MEASURED
    with pytest.raises(OSError, match="no room"):
        second.result(10)
    third = dealer.deal(lambda bench: RIGHT, lambda bench: None)
    assert third.result(10).status is Status.MEASURED
    dealer.close()


def test_at_the_end_nobody_is_left_waiting() -> None:
    """What a device was told of but has not begun ends, and so does what comes later."""
    both_there, told, go_on = threading.Event(), threading.Event(), threading.Event()

    def work(bench: Any) -> Outcome:
        go_on.wait(10)
        return RIGHT

    dealer = Dealer({"one": mock.Mock(close=go_on.set)})
    dealer.ask(dealer.members[0], lambda bench: both_there.wait(10))
    first, second = dealer.deal(work, lambda bench: None), dealer.deal(work, lambda bench: told.set())
    both_there.set()
    assert told.wait(10)
    dealer.close()
    assert first.result(10).status is Status.MEASURED
    for late in (second, dealer.deal(work, lambda bench: None)):
        with pytest.raises(CancelledError):
            late.result(10)
