"""Several processes on one campaign come to the trials and decisions of one, whoever is killed, late or sick."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import optuna
import pytest

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.bench import Outcome, Status
from mjolnir.tuner.coordinator import run
from mjolnir.tuner.journal import MemoryJournal, Record
from mjolnir.tuner.options import Options
from mjolnir.tuner.recording import Recording
from mjolnir.tuner.replay import ReplayBench
from mjolnir.tuner.team import SharedTape
from tests.fakes.bench import Script, ScriptedBench
from tests.fakes.journal import Killed
from tests.fakes.team import Headquarters, MemoryTeam

OPTIONS = Options(trials=24, minutes=60, proposer="tpe", noise=3, seed=1, race=True, until_flat=False)
SHARED = ("noise", "trial", "shootout", "confirmation", "promotion")

Make = Callable[[Recording], Any]


class Paced(ReplayBench):
    """Takes real time for a trial, so that all have their share; can be told what to do in one of them."""

    def __init__(self, recording: Recording, during: Callable[[int], None] = lambda trial: None) -> None:
        super().__init__(recording, OPTIONS.seed)
        self._during = during
        self.measured: list[int] = []
        self.raced: dict[int, dict[int, float]] = {}

    def measure(self, trial: int, setting: Setting, fault: str = "none", race: Any = None) -> Outcome:
        if race is not None:
            self.raced[trial] = dict(race._leads)
        if trial:
            self.measured.append(trial)
            self._during(trial)
            time.sleep(0.01)
        return super().measure(trial, setting, fault, race)


class Member(threading.Thread):
    """A process of the campaign."""

    def __init__(self, headquarters: Headquarters, name: str, bench: Any, stop: Callable[[], bool]) -> None:
        super().__init__(daemon=True)
        self.team = MemoryTeam(headquarters, name)
        self.bench = bench
        self.stop = stop
        self.result: Any = None
        self.killed = False

    def run(self) -> None:
        try:
            self.result = run(self.bench, self.team, OPTIONS, stop=self.stop, team=self.team)
        except Killed:
            self.killed = True


def together(
    benches: list[Any], *, seconds: float = 30.0, stops: dict[int, Callable[[], bool]] | None = None
) -> tuple[Headquarters, list[Member]]:
    """Run a campaign with one member a bench; all have come to their end."""
    headquarters = Headquarters(seconds, storage=optuna.storages.InMemoryStorage())
    headquarters.journal.append("epoch", {"epoch": "e"})
    members = []
    for place, bench in enumerate(benches):
        stop = (stops or {}).get(place, lambda: False)
        members.append(Member(headquarters, f"member{place}", bench, stop))
    for member in members:
        member.start()
    for member in members:
        member.join(60)
        assert not member.is_alive()
    return headquarters, members


def alone(recording: Recording) -> list[Record]:
    journal = MemoryJournal("shared")
    journal.append("epoch", {"epoch": "e"})
    run(ReplayBench(recording, OPTIONS.seed), journal, OPTIONS)
    return journal.records


def essence(records: list[Record]) -> list[tuple[str, str, Any]]:
    """The shared steps without what depends on who took them when: clocks, waits, verdicts on the way, cited lines."""
    found = []
    for record in records:
        if record["kind"] not in SHARED:
            continue
        body = {k: v for k, v in record["body"].items() if k not in ("clock", "phases", "verdict", "kept_buckets")}
        if record["kind"] == "promotion":
            body["certificate"] = {k: v for k, v in body["certificate"].items() if k != "records"}
        key = [body.get(name) for name in ("trial", "after", "bucket", "number", "instance")]
        found.append((record["kind"], repr(key), body))
    return sorted(found, key=lambda entry: entry[:2])


def shares(records: list[Record]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for record in records:
        if record["kind"] == "trial":
            found.setdefault(record["writer"], []).append(record["body"]["trial"])
    return found


@pytest.mark.parametrize("proposer", ["tpe", "gp"])
def test_three_make_the_trials_and_decisions_of_one(modelled, monkeypatch, proposer):
    monkeypatch.setattr("tests.tuner.test_team.OPTIONS", replace(OPTIONS, proposer=proposer))
    headquarters, members = together([Paced(modelled) for _ in range(3)])
    records = headquarters.journal.records
    assert essence(records) == essence(alone(modelled))
    measured = sorted(trial for member in members for trial in member.bench.measured)
    assert measured == list(range(1, OPTIONS.trials + 1))
    assert len(shares(records)) >= 2
    results = [member.result for member in members]
    assert [(r.reason, r.trials, r.best) for r in results] == [("trials", 24, results[0].best)] * 3
    assert [dict(d) for r in results for d in r.decisions] == [dict(d) for d in results[0].decisions] * 3


def test_no_clock_goes_back(modelled):
    headquarters = Headquarters()
    headquarters.journal.append("epoch", {"epoch": "e"})
    bench = ReplayBench(modelled)
    tape = SharedTape(MemoryTeam(headquarters, "mine"), bench, lambda: False)
    bench.advance(10.0)
    for trial, clock, expected in ((1, 5.0, 10.0), (2, 12.0, 12.0)):
        headquarters.journal.append("trial", {"trial": trial, "epoch": "e", "clock": clock})
        _, replayed = tape.step("trial", (trial,), dict)
        assert not replayed
        assert tape.clock() == expected
    tape.close()


def test_what_a_trial_is_raced_against_does_not_depend_on_who_is_ahead(modelled):
    def raced(members: int) -> dict[int, dict[int, float]]:
        _, ran = together([Paced(modelled) for _ in range(members)])
        return {trial: leads for member in ran for trial, leads in member.bench.raced.items()}

    assert len(raced(1)) > OPTIONS.trials / 2
    assert raced(3) == raced(1)


def test_finals_are_run_by_one(modelled):
    headquarters, _ = together([Paced(modelled) for _ in range(3)])
    kinds = ("shootout", "confirmation", "promotion")
    writers = {record["writer"] for record in headquarters.journal.records if record["kind"] in kinds}
    assert len(writers) == 1


def test_each_proves_its_own_gate(modelled):
    headquarters, members = together([Paced(modelled) for _ in range(2)])
    canaries = [record for record in headquarters.journal.records if record["kind"] == "canary"]
    faults = len(members[0].bench.canaries)
    assert sorted(record["writer"] for record in canaries) == ["member0"] * faults + ["member1"] * faults


def test_a_killed_ones_trial_is_taken_over_and_nothing_else_changes(modelled):
    in_hand: list[int] = []

    def die(trial: int) -> None:
        if trial >= 7 and not in_hand:
            in_hand.append(trial)
            members[0].team.dead = True
            raise Killed

    headquarters = Headquarters(0.3)
    headquarters.journal.append("epoch", {"epoch": "e"})
    benches = [Paced(modelled, die), Paced(modelled), Paced(modelled)]
    members = [Member(headquarters, f"member{n}", bench, lambda: False) for n, bench in enumerate(benches)]
    for member in members:
        member.start()
    for member in members:
        member.join(60)
    assert members[0].killed
    records = headquarters.journal.records
    assert essence(records) == essence(alone(modelled))
    trials = [record for record in records if record["kind"] == "trial"]
    assert sorted(record["body"]["trial"] for record in trials) == list(range(1, OPTIONS.trials + 1))
    taken = next(record for record in trials if record["body"]["trial"] == in_hand[0])
    assert taken["writer"] != "member0"
    assert headquarters.grants[f"e/trial/{in_hand[0]}"].token == 2


def test_a_late_answer_is_kept_as_a_note_that_counts_for_nothing(modelled):
    """The first member loses its heartbeat, sleeps beyond its lease, and then comes with its answer."""
    slept: list[int] = []

    def oversleep(trial: int) -> None:
        if trial >= 5 and not slept:
            slept.append(trial)
            members[0].team.renew = lambda lease: True  # type: ignore[method-assign]
            time.sleep(1.0)

    headquarters = Headquarters(0.3)
    headquarters.journal.append("epoch", {"epoch": "e"})
    benches = [Paced(modelled, oversleep), Paced(modelled)]
    members = [Member(headquarters, f"member{n}", bench, lambda: False) for n, bench in enumerate(benches)]
    for member in members:
        member.start()
    for member in members:
        member.join(60)
    records = headquarters.journal.records
    assert essence(records) == essence(alone(modelled))
    notes = [record["body"] for record in records if record["kind"] == "note"]
    assert {"about": f"e/trial/{slept[0]}"}.items() <= notes[0].items()
    assert notes[0]["late"]["trial"] == slept[0]
    assert notes[0]["late"]["status"] in ("measured", "raced")
    counted = next(r for r in records if r["kind"] == "trial" and r["body"]["trial"] == slept[0])
    assert counted["writer"] == "member1"


def test_work_of_any_length_is_held_by_the_heartbeat(modelled):
    def linger(trial: int) -> None:
        if trial == 3:
            time.sleep(0.8)

    headquarters, _ = together([Paced(modelled, linger), Paced(modelled, linger)], seconds=0.2)
    assert headquarters.grants["e/trial/3"].token == 1
    assert not [record for record in headquarters.journal.records if record["kind"] == "note"]


def test_a_wrong_kernel_that_passes_one_gate_voids_the_campaign_for_all(modelled):
    passed = Script(canaries={"mask": [Outcome(Status.MEASURED)]})
    _, members = together([ScriptedBench(modelled, passed, OPTIONS.seed), Paced(modelled)])
    assert [(member.result.reason, member.result.void) for member in members] == [("canary", True)] * 2


def test_a_sick_one_leaves_and_the_others_go_on(modelled):
    broken = {n: Outcome(Status.INFRASTRUCTURE, "device lost") for n in range(1, 100)}
    sick = ScriptedBench(modelled, Script(trials=broken), OPTIONS.seed)
    headquarters, members = together([Paced(modelled), sick])
    assert [member.result.reason for member in members] == ["trials", "infrastructure"]
    statuses = [r["body"]["status"] for r in headquarters.journal.records if r["kind"] == "trial"]
    assert len(statuses) == OPTIONS.trials
    assert 3 <= statuses.count("infrastructure") <= 3 + 2


def test_one_that_is_stopped_gives_back_what_it_held(modelled):
    benches = [Paced(modelled), Paced(modelled)]
    headquarters, members = together(benches, stops={0: lambda: len(benches[0].measured) >= 4})
    assert [member.result.reason for member in members] == ["interrupted", "trials"]
    assert essence(headquarters.journal.records) == essence(alone(modelled))
    assert all(grant.token <= 2 for name, grant in headquarters.grants.items() if "trial" in name)


def test_one_that_joins_late_walks_through_what_is_known(modelled):
    headquarters, _ = together([Paced(modelled)])
    before = len(headquarters.journal.records)
    late = Member(headquarters, "late", Paced(modelled), lambda: False)
    late.start()
    late.join(60)
    assert late.result.reason == "trials"
    assert late.bench.measured == []
    assert {record["kind"] for record in headquarters.journal.records[before:]} == {"canary", "end"}


def test_numbers_in_hand_of_others_are_nobody_elses(modelled):
    """Trial 2 is in hand elsewhere when a second one joins: 3 and 4 on record do not become its second and third."""
    go = threading.Event()

    def wait(trial: int) -> None:
        if trial == 2:
            go.wait(20)

    headquarters = Headquarters()
    headquarters.journal.append("epoch", {"epoch": "e"})
    first, second = (Member(headquarters, f"m{n}", Paced(modelled, wait), lambda: False) for n in range(2))
    first.start()
    while 2 not in first.bench.measured:
        time.sleep(0.01)
    second.start()
    while len(second.bench.measured) < 2:
        time.sleep(0.01)
    third = Member(headquarters, "m2", Paced(modelled), lambda: False)
    third.start()
    time.sleep(0.3)
    go.set()
    for member in (first, second, third):
        member.join(60)
    assert essence(headquarters.journal.records) == essence(alone(modelled))


def test_studies_are_kept_in_optunas_storage_once_each_and_in_order(modelled):
    headquarters, _ = together([Paced(modelled) for _ in range(3)])
    trials = sorted(
        (r["body"] for r in headquarters.journal.records if r["kind"] == "trial"), key=lambda body: body["trial"]
    )
    storage = headquarters.storage
    names = optuna.study.get_all_study_names(storage)
    assert sorted(names) == [f"shared/e/bucket-{bucket}" for bucket in modelled.workload.buckets]
    for bucket in modelled.workload.buckets:
        study = optuna.load_study(storage=storage, study_name=f"shared/e/bucket-{bucket}")
        values = [trial.value for trial in study.trials]
        told = [body["ratios"] if body["status"] == "measured" else {} for body in trials]
        assert values == [ratios.get(str(bucket)) for ratios in told]


@pytest.mark.parametrize("minutes", [0.5])
def test_a_limit_of_time_ends_the_search_for_all_at_one_trial(modelled, monkeypatch, minutes):
    monkeypatch.setattr(
        "tests.tuner.test_team.OPTIONS", Options(trials=200, minutes=minutes, noise=2, proposer="random")
    )
    headquarters, members = together([Paced(modelled) for _ in range(3)])
    assert {member.result.reason for member in members} == {"minutes"}
    assert len({member.result.trials for member in members}) == 1
    finals = {record["body"]["after"] for record in headquarters.journal.records if record["kind"] == "promotion"}
    assert finals == {members[0].result.trials}
