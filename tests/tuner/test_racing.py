"""Races: slow everywhere is dropped, good anywhere is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mjolnir.tuner.bench import Status, Timing
from mjolnir.tuner.coordinator import run
from mjolnir.tuner.journal import MemoryJournal
from mjolnir.tuner.options import Options
from mjolnir.tuner.racing import LeadRace, first_points
from mjolnir.tuner.recording import Recording
from mjolnir.tuner.replay import ReplayBench
from mjolnir.tuner.statistics import Weights
from mjolnir.tuner.workload import DECODE8, Workload, uniform

FLOORS = dict.fromkeys(DECODE8.buckets, 0.01)


def timing(point: int, ratio: float) -> Timing:
    return Timing(point, (1000 + round(1000 * ratio),), (2000,), (1000,))


def test_the_first_points_are_spread_over_the_buckets() -> None:
    assert first_points(DECODE8) == (0, 5, 7)
    assert first_points(Workload("one", (uniform(1, 64),))) == ()
    assert first_points(Workload("two", (uniform(1, 64), uniform(8, 64)))) == ()


@pytest.mark.parametrize(
    ("ratios", "goes_on"),
    [((1.16, 1.16, 1.16), False), ((1.16, 1.13, 1.16), True), ((0.9, 3.0, 3.0), True)],
)
def test_a_setting_is_dropped_when_it_is_slow_at_each_first_point(ratios: tuple[float, ...], goes_on: bool) -> None:
    race = LeadRace(DECODE8, dict.fromkeys(DECODE8.buckets, 0.9), FLOORS)  # the limit is 0.9 x 1.27 = 1.143
    assert race(tuple(map(timing, race.points, ratios))) is goes_on


def test_without_leads_or_ratios_everything_goes_on() -> None:
    assert LeadRace(DECODE8, {}, FLOORS)(tuple(timing(point, 9.0) for point in (0, 5, 7)))
    assert LeadRace(DECODE8, dict.fromkeys(DECODE8.buckets, 0.9), FLOORS)([Timing(0, (5,), (5,), (5,))])


def test_a_raced_trial_has_the_ratios_of_whole_buckets_alone() -> None:
    weights = Weights(DECODE8)
    assert weights.complete({0: 2.0, 5: 1.5, 7: 1.2}) == pytest.approx({32: 1.5, 128: 1.2})
    assert weights.complete({0: 2.0, 1: 8.0, 2: 4.0})[1] == pytest.approx(4.0)


def test_a_campaign_races_and_never_leads_with_what_it_dropped(modelled: Recording) -> None:
    journal = MemoryJournal()
    options = Options(trials=60, minutes=60, proposer="random", noise=4, race=True)
    workload = Workload("four", (*modelled.workload.points,))
    result = run(ReplayBench(modelled), journal, options)
    trials = [record["body"] for record in journal.records if record["kind"] == "trial"]
    raced = [body for body in trials if body["status"] == Status.RACED]
    whole = [body for body in trials if body["status"] == Status.MEASURED]
    first = first_points(workload)
    assert first == (0, 2)
    assert len(raced) >= 3
    assert result.measured == len(whole)
    for body in raced:
        assert [row["point"] for row in body["timings"]] == list(first)
        assert (body["ratio"], body["verdict"], body["kept_buckets"], list(body["ratios"])) == (
            None,
            "discard",
            [],
            ["32"],
        )
        assert body["reason"].startswith("clearly slow")
        assert body["ratios"]["32"] > 1.25 * min(b["ratios"]["32"] for b in whole)
    mean = [sum(b["phases"]["measure"] for b in group) / len(group) for group in (raced, whole)]
    assert mean[0] == pytest.approx(2 / 3 * mean[1], rel=0.1)


def test_what_is_raced_is_measured_as_it_would_have_been(modelled: Recording) -> None:
    slowest = max(modelled.settings, key=lambda s: ReplayBench(modelled).measure(1, s).timings[0].candidate)
    race = LeadRace(modelled.workload, dict.fromkeys((1, 32), 0.2), {})
    whole, part = ReplayBench(modelled).measure(1, slowest), ReplayBench(modelled).measure(1, slowest, race=race)
    assert part.timings == tuple(whole.timings[point] for point in race.points)
    assert replace(part, timings=(), status=Status.MEASURED, reason="", phases={}) == replace(
        whole, timings=(), phases={}
    )
