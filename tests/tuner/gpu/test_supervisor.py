"""The worker and the processes behind it: when they are started, taken and given up. No process is real here."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mjolnir.tuner.gpu import supervisor
from mjolnir.tuner.gpu.protocol import Died
from mjolnir.tuner.gpu.supervisor import Backend, Supervisor

ONE, TWO = {"op": "open", "geometry": 1}, {"op": "open", "geometry": 2}


class Stub:
    """A child that answers each request with what it was asked, or dies of it."""

    made: list[Stub]

    def __init__(
        self, target: str, *, environment: Mapping[str, str] | None = None, nice: int = 0, tree: Path | None = None
    ) -> None:
        assert tree is None
        self.pid = len(self.made)
        self.environment, self.nice = environment, nice
        self.asked: list[Mapping[str, Any]] = []
        self.gone = False
        self._waiting: deque[Mapping[str, Any]] = deque()
        self.made.append(self)

    def ask(self, request: Mapping[str, Any], limits: Mapping[str, float]) -> dict[str, Any]:
        self.send(request)
        return self.receive(limits)

    def send(self, request: Mapping[str, Any]) -> None:
        self.asked.append(request)
        self._waiting.append(request)

    def receive(self, limits: Mapping[str, float]) -> dict[str, Any]:
        request = self._waiting.popleft()
        if request.get("dies"):
            raise Died("as asked", "measure", "", -9)
        return {"seconds": 0.0} if request["op"] == "open" else {"of": request["op"], "by": self.pid}

    def leave(self) -> None:
        self.gone = True

    close = leave


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    Stub.made = []
    made = Clock()
    monkeypatch.setattr(supervisor, "Child", Stub)
    monkeypatch.setattr(supervisor, "time", made)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(16))
    return made


def test_spares_are_started_one_by_one_and_taken_oldest_first(clock: Clock) -> None:
    worker = Supervisor(Backend(environment={"CUDA_VISIBLE_DEVICES": "1"}))
    worker.warm()
    worker.warm()
    assert len(Stub.made) == 1
    worker.open(ONE)
    assert [(child.pid, child.nice) for child in Stub.made] == [(0, 0), (1, 5)]
    worker.ask(ONE, {"op": "measure"})
    assert len(Stub.made) == 2  # not at once: imports fill a CPU each
    for _ in range(10):
        clock.now += supervisor.SPARE_SECONDS
        worker.ask(ONE, {"op": "measure"})
    assert len(Stub.made) == 1 + supervisor.MOST_SPARES
    taken = [worker.ask(ONE, {"op": "instance"}, process=("a", number))["by"] for number in (1, 2, 3)]
    assert taken == [1, 2, 3]
    assert [child.gone for child in Stub.made[:4]] == [True, True, True, False]
    assert {tuple((child.environment or {}).items()) for child in Stub.made} == {(("CUDA_VISIBLE_DEVICES", "1"),)}
    worker.close()
    assert all(child.gone for child in Stub.made)


def test_two_devices_share_the_cpus(clock: Clock) -> None:
    worker = Supervisor(Backend(), devices=2)
    worker.open(ONE)
    for _ in range(10):
        clock.now += supervisor.SPARE_SECONDS
        worker.ask(ONE, {"op": "measure"})
    assert len(Stub.made) == 1 + 2


def test_campaigns_in_turns_open_their_problems_in_one_fresh_process(clock: Clock) -> None:
    worker = Supervisor(Backend())
    worker.ask(ONE, {"op": "measure"})
    order = [("a", 1, ONE), ("b", 4, TWO), ("a", 1, ONE), ("a", 2, ONE), ("b", 5, TWO), ("b", 5, TWO)]
    by = [worker.ask(problem, {"op": "instance"}, process=(name, index))["by"] for name, index, problem in order]
    assert by == [1, 1, 1, 2, 2, 2]
    opened = [[request["geometry"] for request in child.asked if request["op"] == "open"] for child in Stub.made[:3]]
    assert opened == [[1], [1, 2, 1], [1, 2]]


def test_what_was_sent_ahead_is_asked_for_once_and_lost_with_its_worker(clock: Clock) -> None:
    worker = Supervisor(Backend())
    worker.send(ONE, {"op": "early"}, "x")
    assert not worker.sent("x")  # there is no worker yet

    def behind() -> None:
        worker.send(ONE, {"op": "second"}, "n2")
        worker.send(ONE, {"op": "third"}, "n3")  # one at a time

    assert worker.ask(ONE, {"op": "first"}, ticket="n1", behind=behind)["of"] == "first"
    assert (worker.sent("n2"), worker.sent("n3")) == (True, False)
    assert worker.ask(ONE, {"op": "second"}, ticket="n2")["of"] == "second"
    assert [request["op"] for request in Stub.made[0].asked] == ["open", "first", "second"]
    with pytest.raises(Died):
        worker.ask(ONE, {"op": "fourth", "dies": True}, ticket="n4", behind=behind)
    assert not worker.sent("n2")
    assert worker.ask(ONE, {"op": "second"}, ticket="n2") == {"of": "second", "by": 1}
    worker.ask(ONE, {"op": "fifth"}, behind=behind)
    assert worker.ask(TWO, {"op": "sixth"})["of"] == "sixth"  # the answer to the second is passed over
    assert worker.pid == 1
