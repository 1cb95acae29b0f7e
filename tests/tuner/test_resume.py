"""A replay that is killed and resumed makes the records of one that was not."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from mjolnir.tuner.coordinator import run
from mjolnir.tuner.journal import MemoryJournal, Record
from mjolnir.tuner.options import Options
from mjolnir.tuner.recording import Recording
from mjolnir.tuner.replay import ReplayBench
from mjolnir.tuner.session import Progress
from tests.fakes.bench import ScriptedBench
from tests.fakes.journal import Killed, MortalJournal
from tests.tuner.conftest import WINNER

OPTIONS = Options(trials=28, minutes=60, proposer="tpe", noise=3, incumbents={32: WINNER})


def undisturbed(recording: Recording, options: Options) -> list[tuple[str, Any]]:
    journal = MemoryJournal()
    run(ReplayBench(recording, options.seed), journal, options)
    return essence(journal.records)


def essence(records: list[Record]) -> list[tuple[str, Any]]:
    """Kinds and bodies; the lines that a certificate cites name writers and times, so they are left aside."""
    found = []
    for record in records:
        body = dict(record["body"])
        if record["kind"] == "promotion":
            body["certificate"] = {**body["certificate"], "records": len(body["certificate"]["records"])}
        found.append((record["kind"], body))
    return found


@pytest.mark.parametrize("acknowledge", [True, False])
@pytest.mark.parametrize("lives", [0, 1, 4, 9, 13, 21])
def test_killed_after_every_so_many_records(modelled: Recording, lives: int, acknowledge: bool) -> None:
    records: list[Record] = []
    runs = 0
    while True:
        runs += 1
        journal = MortalJournal(lives + (lives == 0 and not acknowledge), acknowledge, records)
        kept = len(records)
        try:
            run(ReplayBench(modelled, OPTIONS.seed), journal, OPTIONS)
            break
        except Killed:
            assert journal.records[:kept] == records
            records = journal.records
    assert runs > 1
    assert essence(journal.records) == undisturbed(modelled, OPTIONS)


def test_killed_with_the_gaussian_process_racing_and_an_early_end(modelled: Recording) -> None:
    options = replace(OPTIONS, proposer="gp", trials=60, race=True, until_flat=True)
    expected = undisturbed(modelled, options)
    assert [body["reason"] for kind, body in expected if kind == "end"] == ["flat"]
    for lives in (9, 17, 30):
        journal = MortalJournal(lives, acknowledge=True)
        with pytest.raises(Killed):
            run(ReplayBench(modelled, options.seed), journal, options)
        again = MemoryJournal(records=journal.records)
        run(ReplayBench(modelled, options.seed), again, options)
        assert essence(again.records) == expected


@pytest.mark.parametrize("depth", [0, 1, 6])
def test_killed_at_random_moments(gain: Recording, depth: int) -> None:
    options = Options(trials=34, minutes=0.7, proposer="tpe", noise=3, depth=depth, seed=2)
    expected = undisturbed(gain, options)
    dice = random.Random(depth)
    records: list[Record] = []
    for _ in range(100):
        journal = MortalJournal(dice.randrange(1, 30), dice.random() < 0.5, records)
        try:
            run(ReplayBench(gain, options.seed), journal, options)
            break
        except Killed:
            records = journal.records
    assert essence(journal.records) == expected


def test_compiles_under_way_are_under_way_again(slow: Recording) -> None:
    def replay(journal: MemoryJournal) -> list[tuple[str, Any]]:
        run(ReplayBench(slow, OPTIONS.seed, workers=1), journal, OPTIONS)
        return essence(journal.records)

    expected = replay(MemoryJournal())
    waits = [body["phases"]["compile"] for kind, body in expected if kind == "trial"]
    assert sum(wait > 0.5 for wait in waits) > len(waits) / 3
    for lives in (8, 15, 24):
        journal = MortalJournal(lives, acknowledge=True)
        with pytest.raises(Killed):
            replay(journal)
        assert replay(MemoryJournal(records=journal.records)) == expected


def test_interrupted_ones_differ_in_end_records_alone(modelled: Recording) -> None:
    journal = MemoryJournal()
    for patience in (3, 7, 11, 20, 40):
        left = iter(range(patience))
        run(ReplayBench(modelled, OPTIONS.seed), journal, OPTIONS, stop=lambda left=left: next(left, None) is None)  # type: ignore[misc]
    run(ReplayBench(modelled, OPTIONS.seed), journal, OPTIONS)
    ends = [record for record in journal.records if record["kind"] == "end"]
    assert len(ends) > 2
    rest = [record for record in journal.records if record["kind"] != "end"]
    assert essence(rest) == [entry for entry in undisturbed(modelled, OPTIONS) if entry[0] != "end"]


def test_a_real_bench_is_not_asked_again_and_its_clock_goes_on(modelled: Recording) -> None:
    journal = MortalJournal(20, acknowledge=True)
    with pytest.raises(Killed):
        run(ScriptedBench(modelled, simulated=False), journal, OPTIONS)
    known = [record["body"] for record in journal.records if record["kind"] == "trial"]
    last = journal.records[-1]["body"]["clock"]
    bench, resumed = ScriptedBench(modelled, simulated=False), MemoryJournal(records=journal.records)
    run(bench, resumed, OPTIONS)
    trials = [record["body"] for record in resumed.records if record["kind"] == "trial"]
    assert [number for number, _ in bench.measured] == list(range(len(known) + 1, OPTIONS.trials + 1))
    asked = {tuple(setting.as_dict().values()) for setting in bench.submitted}
    again = [body for body in trials[len(known) :] if body["proposal"]["replaced"] == "again"]
    repeated = {tuple(body["resolved"].values()) for body in again}
    assert not (asked - repeated) & {tuple(body["resolved"].values()) for body in known}
    assert 0 < trials[len(known)]["clock"] - last < 3
    assert [body["proposal"]["number"] for body in trials] == list(range(1, OPTIONS.trials + 1))


def test_watching_a_resumed_campaign_tells_old_from_new(modelled: Recording) -> None:
    news: list[Progress] = []

    class Observer:
        def update(self, progress: Progress) -> None:
            news.append(progress)

    journal = MortalJournal(12, acknowledge=True)
    with pytest.raises(Killed):
        run(ReplayBench(modelled), journal, OPTIONS)
    kept = len(journal.records)
    run(ReplayBench(modelled), MemoryJournal(records=journal.records), OPTIONS, Observer())
    assert [progress.replayed for progress in news] == [True] * kept + [False] * (len(news) - kept)
