"""Shoot-outs and confirmations in replay: whom they test, when they end, and what they count."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import resolve
from mjolnir.tuner import recording, synthetic
from mjolnir.tuner.bench import Instance, InstanceRequest, Status
from mjolnir.tuner.coordinator import Result, run
from mjolnir.tuner.journal import MemoryJournal, Record
from mjolnir.tuner.options import Options
from mjolnir.tuner.promotion import METHOD
from mjolnir.tuner.recording import Recording
from mjolnir.tuner.replay import ReplayBench
from mjolnir.tuner.workload import Point
from tests.fakes.bench import Script, ScriptedBench
from tests.tuner.conftest import SMALL, VALUES, WINNER

OPTIONS = Options(trials=1000, minutes=60, proposer="random", noise=4)
SECOND, THIRD = Setting(1, 2, max_splits=64, pdl=1), Setting(2, 2, max_splits=1, pdl=0)
COMMITTED = Path(__file__).parents[2] / "research" / "runs" / "h200-decode8" / "ledger.jsonl"


class TiltedBench(ScriptedBench):
    """A replay in which settings are slower in instances than in the search, by factors of arm and process."""

    def __init__(self, source: Recording, slower: dict[Setting, float], every: int = 1) -> None:
        super().__init__(source)
        self._slower = slower
        self._every = every

    def instance(self, request: InstanceRequest) -> Instance:
        taken = super().instance(request)
        if len(request.arms) > 2 or request.process % self._every:
            return taken
        factors = [self._slower.get(arm, 1.0) for arm in request.arms]
        samples = tuple(
            tuple(tuple(round(time * factor) for time in arm) for arm, factor in zip(point, factors, strict=True))
            for point in taken.samples
        )
        return replace(taken, samples=samples)


def bodies(journal: MemoryJournal, kind: str, bucket: int | None = None) -> list[dict[str, Any]]:
    found = [record["body"] for record in journal.records if record["kind"] == kind]
    return [body for body in found if bucket in (None, body.get("bucket"))]


def campaign(bench: ScriptedBench, options: Options = OPTIONS) -> tuple[Result, MemoryJournal]:
    journal = MemoryJournal()
    return run(bench, journal, options), journal


@pytest.fixture(scope="module")
def two() -> Recording:
    """`WINNER` is 5 % faster than the default, `SECOND` 4 %, and a third setting 3 %."""
    truth = synthetic.planted(SECOND, 0.04, synthetic.planted(WINNER, 0.05, synthetic.planted(THIRD, 0.03)))
    return synthetic.make(truth, name="two", values=VALUES, workload=SMALL)


@pytest.mark.parametrize("budget", [{"minutes": 1e-6}, {"trials": 1}])
def test_a_bucket_is_not_decided_where_only_the_default_was_tried(two: Recording, budget: dict[str, Any]) -> None:
    result, journal = campaign(ScriptedBench(two), replace(OPTIONS, **budget))
    assert [d["decision"] for d in result.decisions] == ["not-decided"] * 2
    assert result.decisions[0]["reason"] == "the search ended before it tried any other setting"
    longer = run(ScriptedBench(two), journal, replace(OPTIONS, trials=40))
    assert "not-decided" not in [d["decision"] for d in longer.decisions], "going on decides it"


def test_a_default_without_a_rival_is_the_best(two: Recording) -> None:
    default = resolve(Setting(), two.geometry, two.device).as_dict()
    result, _ = campaign(ScriptedBench(two), replace(OPTIONS, pins={name: default[name] for name in VALUES}))
    assert [d["decision"] for d in result.decisions] == ["default-is-best"] * 2


def test_each_process_takes_a_group_of_every_open_bucket(two: Recording) -> None:
    _, journal = campaign(ScriptedBench(two))
    order = [(body["process"], body["bucket"]) for body in bodies(journal, "confirmation")]
    first = order[0][0]
    assert order == [(first + n // 4, (1, 32)[n // 2 % 2]) for n in range(len(order))]
    assert first == 1 + max(body["process"] for body in bodies(journal, "shootout"))


def test_the_runner_up_is_tested_when_the_winner_is_not_proven(two: Recording) -> None:
    result, journal = campaign(TiltedBench(two, {WINNER: 1.05}))
    for decision in result.decisions:
        assert (decision["decision"], decision["setting"]) == ("promote", SECOND.as_dict())
        tested = [body["arms"][0] for body in bodies(journal, "confirmation", decision["bucket"])]
        assert tested[0] == WINNER.as_dict()
        assert tested.count(SECOND.as_dict()) == decision["certificate"]["instances"] == 20
        assert tested.count(WINNER.as_dict()) < 20


def test_two_candidates_at_most_are_tested_and_the_first_is_reported(two: Recording) -> None:
    bench = TiltedBench(two, {setting: 1.06 for setting in two.settings if setting != two.default})
    result, journal = campaign(bench)
    for decision in result.decisions:
        assert (decision["decision"], decision["setting"]) == ("not-proven", WINNER.as_dict())
        assert "not faster than the default by the margin of 1.0%" in decision["reason"]
        assert decision["certificate"]["evidence"] < 1
    assert {tuple(body["arms"][0].items()) for body in bodies(journal, "confirmation")} == {
        tuple(setting.as_dict().items()) for setting in (WINNER, SECOND)
    }


def test_a_few_processes_against_it_cost_instances_and_many_the_promotion(two: Recording) -> None:
    some, journal = campaign(TiltedBench(two, {WINNER: 1.06, SECOND: 1.06}, every=9))
    assert {decision["decision"] for decision in some.decisions} == {"promote"}
    assert 20 < len(bodies(journal, "confirmation", 1)) <= 60
    many, journal = campaign(TiltedBench(two, {WINNER: 1.06, SECOND: 1.06}, every=2))
    assert {decision["decision"] for decision in many.decisions} == {"not-proven"}
    assert "in 6 of 1" in many.decisions[0]["reason"]
    assert max(len(bodies(journal, "confirmation", bucket)) for bucket in (1, 32)) < 60


def test_an_instance_that_fails_refuses_its_candidate_and_one_that_is_lost_is_taken_again(gain: Recording) -> None:
    lost = Instance(Status.DIRTY, "another process on the device")
    wrong = Instance(Status.INCORRECT, "error 3.0 above 0.1")
    _, journal = campaign(ScriptedBench(gain))
    number = bodies(journal, "confirmation", 32)[2]["instance"] + 1
    result, journal = campaign(ScriptedBench(gain, Script(instances={4: lost, number: wrong})))
    first = bodies(journal, "confirmation", 1)
    assert [body["status"] for body in first].count("measured") == 20
    assert (len(first), first[1]["status"], first[1]["samples"]) == (21, "dirty", [])
    assert first[2]["process"] == first[1]["process"] == first[0]["process"]
    assert [decision["decision"] for decision in result.decisions] == ["promote", "not-proven"]
    assert result.decisions[1]["reason"] == "instance 3 incorrect: error 3.0 above 0.1"


def test_a_lead_within_the_margin_is_not_tested() -> None:
    slight = synthetic.make(
        synthetic.planted(WINNER, 0.008), values=VALUES, workload=SMALL, noise=1e-4, rebuild_noise=1e-4
    )
    result, journal = campaign(ScriptedBench(slight))
    assert not bodies(journal, "confirmation")
    assert [decision["decision"] for decision in result.decisions] == ["not-proven"] * 2
    assert "in the shoot-out 0." in result.decisions[0]["reason"]
    assert result.decisions[0]["certificate"]["instances"] == 0


def test_a_lead_that_is_slower_at_a_point_leaves_the_test_to_the_next() -> None:
    short = SMALL.points[0]

    def truth(setting: Setting, point: Point) -> float:
        gains = {WINNER: -0.04 if point == short else 0.12, SECOND: 0.04}
        return synthetic.flat(setting, point) / (1 + gains.get(setting, 0.0))

    source = synthetic.make(truth, name="a slow point", values=VALUES, workload=SMALL)
    result, journal = campaign(ScriptedBench(source))
    assert bodies(journal, "shootout", 1)[0]["arms"][0] == WINNER.as_dict()
    assert {tuple(body["arms"][0].values()) for body in bodies(journal, "confirmation", 1)} == {
        tuple(SECOND.as_dict().values())
    }
    assert (result.decisions[0]["decision"], result.decisions[0]["setting"]) == ("promote", SECOND.as_dict())


def test_what_an_uneven_batch_would_pay_for_is_no_candidate_but_where_a_sequence_is_alone() -> None:
    unsplit, free = Setting(2, 2, max_splits=1), Setting(2, 2)
    truth = synthetic.planted(unsplit, 0.06, synthetic.planted(free, 0.04))
    source = synthetic.make(truth, name="unsplit", values={**VALUES, "max_splits": (0, 1, 64)}, workload=SMALL)
    result, journal = campaign(ScriptedBench(source))
    assert [decision["setting"]["max_splits"] for decision in result.decisions] == [1, 0]
    assert [decision["decision"] for decision in result.decisions] == ["promote", "promote"]
    assert unsplit.as_dict() not in bodies(journal, "shootout", 32)[0]["arms"]


def test_attempts_are_counted_within_the_tag_and_elsewhere(gain: Recording) -> None:
    _, journal = campaign(ScriptedBench(gain), replace(OPTIONS, trials=400))
    assert {body["attempt"] for body in bodies(journal, "confirmation")} == {1}
    promotions = [record for record in journal.records if record["kind"] == "promotion"]

    class Neighbours(MemoryJournal):
        def elsewhere(self) -> tuple[Record, ...]:
            return tuple(promotions[:1])

    again = Neighbours()
    result = run(ScriptedBench(gain), again, OPTIONS)
    assert [decision["certificate"]["attempt"] for decision in result.decisions] == [2, 1]
    assert [decision["certificate"]["instances"] for decision in result.decisions] == [24, 20]
    assert {(body["bucket"], body["attempt"]) for body in bodies(again, "confirmation")} == {(1, 2), (32, 1)}


def test_going_on_with_more_trials_is_a_further_attempt(gain: Recording) -> None:
    options = replace(OPTIONS, trials=len(gain.settings) - 1, enqueued=(WINNER,))
    _, journal = campaign(ScriptedBench(gain), options)
    result = run(ScriptedBench(gain), journal, OPTIONS)
    assert [decision["certificate"]["attempt"] for decision in result.decisions] == [2, 2]
    journal.append("epoch", {"epoch": "e2"})
    result = run(ScriptedBench(gain), journal, OPTIONS)
    assert [decision["certificate"]["attempt"] for decision in result.decisions] == [3, 3]


def test_a_robust_choice_takes_another_setting_and_both_tell_their_price() -> None:
    """`WINNER` gains 12 % at the long context alone, `SECOND` 7 % at both."""
    long = SMALL.points[1]

    def truth(setting: Setting, point: Point) -> float:
        gains = {WINNER: 0.12 if point == long else 0.0, SECOND: 0.07}
        return synthetic.flat(setting, point) / (1 + gains.get(setting, 0.0))

    source = synthetic.make(truth, name="lengths", values=VALUES, workload=SMALL)
    weighted = campaign(ScriptedBench(source))[0].decisions[0]
    robust = campaign(ScriptedBench(source), replace(OPTIONS, robust=True))[0].decisions[0]
    assert (weighted["decision"], weighted["setting"]) == ("promote", WINNER.as_dict())
    assert weighted["price"]["points"] == pytest.approx({"1x4096": 0.07, "1x16384": 0.0}, abs=0.008)
    assert weighted["price"]["weighted"] == pytest.approx(1.07 ** (1 / 3) - 1, abs=0.004)
    assert (robust["decision"], robust["setting"]) == ("promote", SECOND.as_dict())
    assert robust["price"]["points"] == pytest.approx({"1x4096": 0.0, "1x16384": 1.12 / 1.07 - 1}, abs=0.008)


def test_the_floor_is_that_of_the_recorded_rebuilds(gain: Recording) -> None:
    result, journal = campaign(ScriptedBench(gain), replace(OPTIONS, trials=3, noise=30))
    values = np.array([body["values"] for body in bodies(journal, "noise")])
    assert values.shape == (30, 3)
    assert result.floor == pytest.approx(np.maximum(0.005, np.quantile(np.abs(values), 0.95, axis=0)).tolist())


def committed() -> tuple[list[Record], Options]:
    """The committed records of the H200, and their options as they read today."""
    lines = COMMITTED.read_text().splitlines()
    records: list[Record] = [{**json.loads(line), "hash": str(number)} for number, line in enumerate(lines)]
    return records, Options.from_dict(next(r["body"]["options"] for r in records if r["kind"] == "campaign"))


def bench_of_its_day(records: list[Record]) -> ReplayBench:
    """The packaged recording with the canaries that the committed campaign knew, and no later ones."""
    packaged = recording.packaged("h200-32x8-d128-p64")
    known = {record["body"]["fault"] for record in records if record["kind"] == "canary"}
    return ReplayBench(replace(packaged, canaries=tuple(c for c in packaged.canaries if c["fault"] in known)))


def test_a_campaign_of_the_first_method_reads_as_it_was() -> None:
    records, options = committed()
    journal = MemoryJournal(records=records)
    result = run(bench_of_its_day(records), journal, options)
    assert len(journal.records) == len(records)
    assert list(result.decisions) == [record["body"] for record in records if record["kind"] == "promotion"]


def test_one_that_the_first_method_left_undecided_is_decided_by_this_one() -> None:
    records, options = committed()
    kept = [r for r in records if (r["kind"] != "end" and r["body"].get("bucket") != 4) or r["kind"] == "trial"]
    journal = MemoryJournal(records=kept)
    result = run(bench_of_its_day(records), journal, options)
    methods = {body["bucket"]: body["certificate"]["method"] for body in result.decisions}
    assert [bucket for bucket, method in methods.items() if method == METHOD] == [4]
    fresh = [r["body"] for r in journal.records[len(kept) :] if r["kind"] in ("shootout", "confirmation")]
    before = [r["body"] for r in kept if r["kind"] in ("shootout", "confirmation")]
    for name in ("process", "instance"):
        assert min(body[name] for body in fresh) > max(body[name] for body in before)
