"""The search: skips, an early end, and asks that do not hold the device up."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Set
from typing import Any

import pytest

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.bench import Outcome, Race, Status
from mjolnir.tuner.coordinator import run
from mjolnir.tuner.journal import MemoryJournal
from mjolnir.tuner.options import Options
from mjolnir.tuner.proposers import Gain
from mjolnir.tuner.recording import Recording
from mjolnir.tuner.space import Coordinates
from tests.fakes.bench import Script, ScriptedBench

SPILLED = Outcome(Status.INFEASIBLE, "registers: the compiled code spills 16 bytes a thread", binary="k")


def trials_of(journal: MemoryJournal) -> list[dict[str, Any]]:
    return [record["body"] for record in journal.records if record["kind"] == "trial"]


class Fixed:
    """Proposes what it was given, and gains what it was told to."""

    name = "fixed"

    def __init__(self, recording: Recording, wanted: list[Setting], left: float = 1.0, seconds: float = 0.0) -> None:
        from mjolnir.tuner.space import Space

        space = Space(recording.geometry, recording.device, {}, recording.settings)
        self.wanted = [space.coordinates(setting) for setting in wanted]
        self.left, self.seconds = left, seconds
        self.threads: set[int] = set()

    def ask(self, bucket: int, number: int, taken: Set[Coordinates]) -> Coordinates:
        self.threads.add(threading.get_ident())
        time.sleep(self.seconds)
        found = self.wanted[(number - 2) % len(self.wanted)]
        assert found is not None
        return found

    def gain(self, bucket: int, number: int, taken: Set[Coordinates]) -> Gain:
        return Gain(0.01, self.left / number)

    def tell(self, bucket: int, coordinates: Coordinates, value: float | None) -> None: ...


def use(monkeypatch: pytest.MonkeyPatch, proposer: Fixed) -> Fixed:
    monkeypatch.setattr("mjolnir.tuner.coordinator.make", lambda *_, **__: proposer)
    return proposer


def test_what_needs_no_less_than_what_spilled_is_not_compiled(
    modelled: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, worse, fine = Setting(1, 4, pdl=1), Setting(1, 5, pdl=1), Setting(1, 5, max_splits=1)
    use(monkeypatch, Fixed(modelled, [bad, fine, Setting(1, 2), worse]))
    bench, journal = ScriptedBench(modelled, Script(settings={bad: SPILLED, worse: SPILLED})), MemoryJournal()
    options = Options(trials=8, minutes=60, noise=3, depth=1, enqueued=(bad, worse, Setting(2, 4, pdl=1)))
    run(bench, journal, options)
    reasons = {body["trial"]: body["reason"] for body in trials_of(journal) if body["status"] == Status.INFEASIBLE}
    assert reasons[2] == SPILLED.reason
    assert (
        reasons[3] == reasons[4] == f"not compiled: it needs no less than trial 2, which did not fit ({SPILLED.reason})"
    )
    assert [number for number, _ in bench.measured] == [1, 2, 5, 6, 7, 8]
    assert Setting(2, 4, pdl=1) not in bench.submitted
    tried = [Setting.from_dict(body["resolved"]) for body in trials_of(journal)[4:]]
    assert all(not (s.kv_stages >= 4 and s.pdl == 1 and s.l2_prefetch == 0) for s in tried)


def test_what_is_known_not_to_fit_does_not_stand_in_the_way_of_what_comes_after_it(modelled: Recording) -> None:
    """The process goes on with its next guess; else every trial would be a neighbour of what was refused."""
    bad = Setting(1, 4)
    bench, journal = ScriptedBench(modelled, Script(settings={bad: SPILLED})), MemoryJournal()
    run(bench, journal, Options(trials=12, minutes=60, noise=3, depth=1, enqueued=(bad,), until_flat=False))
    asked = [body for body in trials_of(journal) if body["proposal"]["origin"] == "sampler"]
    assert any(body["status"] == Status.INFEASIBLE for body in trials_of(journal))
    assert len(asked) > 6
    assert [body["proposal"]["replaced"] for body in asked if body["proposal"]["replaced"] not in ("", "again")] == []


def test_a_search_ends_when_what_is_left_is_noise(modelled: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    proposer = use(monkeypatch, Fixed(modelled, list(modelled.settings), left=0.1))
    journal = MemoryJournal()
    result = run(ScriptedBench(modelled), journal, Options(trials=70, minutes=60, noise=4))
    count = len(trials_of(journal))
    assert (result.reason, result.resumable) == ("flat", False)
    assert 0.1 / (count + 1) < max(result.floor)
    assert 0.1 / count >= min(result.floor)
    assert journal.records[-1]["body"]["reason"] == "flat"
    assert proposer.threads
    whole = run(ScriptedBench(modelled), MemoryJournal(), Options(trials=30, minutes=60, noise=4, until_flat=False))
    assert whole.reason == "trials"


def test_the_device_does_not_wait_for_answers(modelled: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    proposer = use(monkeypatch, Fixed(modelled, list(modelled.settings), seconds=0.02))
    spans: list[tuple[float, float]] = []

    class Slow(ScriptedBench):
        def measure(self, trial: int, setting: Setting, fault: str = "none", race: Race | None = None) -> Outcome:
            begin = time.perf_counter()
            time.sleep(0.03)
            outcome = super().measure(trial, setting, fault, race)
            spans.append((begin, time.perf_counter()))
            return outcome

    run(Slow(modelled), MemoryJournal(), Options(trials=24, minutes=60, noise=3))
    search = spans[-24:]
    idle = sorted(after[0] - before[1] for before, after in itertools.pairwise(search))
    assert idle[len(idle) // 2] < 0.012
    assert threading.get_ident() not in proposer.threads
