"""Whole campaigns in replay: what is recorded, what is promoted, and how failures end."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

import pytest

from mjolnir.kernel.device import H200
from mjolnir.kernel.knobs import Setting
from mjolnir.tuner import synthetic
from mjolnir.tuner.bench import BenchFailure, Instance, InstanceRequest, Outcome, Race, Status, Timing
from mjolnir.tuner.coordinator import Result, Run, estimate, run, run_together
from mjolnir.tuner.journal import MemoryJournal
from mjolnir.tuner.options import EFFORTS, Options
from mjolnir.tuner.recording import Recording
from mjolnir.tuner.replay import ReplayBench
from mjolnir.tuner.session import MOST_DIRTY, MOST_FAILURES, Progress
from mjolnir.tuner.uneven import serves
from mjolnir.tuner.workload import DECODE8
from tests.fakes.bench import Script, ScriptedBench, failed
from tests.tuner.conftest import VALUES, WINNER

QUICK = Options(trials=20, minutes=60, proposer="random", noise=4)


def campaign(
    recording: Recording, options: Options = QUICK, script: Script | None = None, **keywords: Any
) -> tuple[Result, MemoryJournal, ScriptedBench]:
    bench, journal = ScriptedBench(recording, script), MemoryJournal()
    journal.append("epoch", {"epoch": "e1"})
    return run(bench, journal, options, **keywords), journal, bench


def bodies(journal: MemoryJournal, kind: str) -> list[dict[str, Any]]:
    return [record["body"] for record in journal.records if record["kind"] == kind]


def kinds(journal: MemoryJournal) -> list[str]:
    found: list[str] = []
    for record in journal.records:
        if not found or found[-1] != record["kind"]:
            found.append(record["kind"])
    return found


def test_a_campaign_takes_its_steps_in_order(modelled: Recording) -> None:
    result, journal, bench = campaign(modelled, replace(QUICK, incumbents={32: Setting(1, 4)}))
    assert kinds(journal)[:4] == ["epoch", "canary", "noise", "trial"]
    assert kinds(journal)[-1] == "end"
    assert [body["fault"] for body in bodies(journal, "canary")] == ["mask", "skip", "silent"]
    trials = bodies(journal, "trial")
    assert [body["trial"] for body in trials] == list(range(1, 21))
    assert [body["proposal"]["origin"] for body in trials] == ["default", "incumbent", *["sampler"] * 18]
    assert (trials[0]["setting"], trials[1]["setting"]) == (Setting().as_dict(), Setting(1, 4).as_dict())
    assert trials[0]["resolved"] == modelled.default.as_dict()
    assert (result.reason, result.trials, result.measured, result.void) == ("trials", 20, 20, False)
    assert [body["bucket"] for body in bodies(journal, "promotion")] == [1, 32]
    assert bodies(journal, "end")[0]["best"].keys() == {"1", "32"}
    assert not bench.closed


def test_every_body_is_json_and_carries_epoch_and_clock(modelled: Recording) -> None:
    _, journal, _ = campaign(modelled)
    clocks = [record["body"]["clock"] for record in journal.records[1:]]
    assert clocks == sorted(clocks)
    for record in journal.records[1:]:
        assert json.loads(json.dumps(record["body"], allow_nan=False)) == record["body"]
        assert record["body"]["epoch"] == "e1"


def test_only_contenders_are_run_twice_and_the_space_can_be_used_up(modelled: Recording) -> None:
    result, journal, bench = campaign(modelled, replace(QUICK, trials=1000))
    assert result.reason == "exhausted"
    trials = bodies(journal, "trial")
    again = [body for body in trials if body["proposal"]["replaced"] == "again"]
    settings = [tuple(body["resolved"].values()) for body in trials if body not in again]
    assert len(set(settings)) == len(settings) == len(modelled.settings)
    assert len(bench.measured) == len(trials)
    assert 0 < len(again) < 2 * 3 * len(modelled.workload.buckets)
    for body in again:
        asked = str(body["bucket"])
        earlier = [b["ratios"][asked] for b in trials[: body["trial"] - 1] if b["resolved"] == body["resolved"]]
        assert earlier[0] < 1.03 * min(b["ratios"][asked] for b in trials[: body["trial"] - 1])


def test_a_trial_says_what_it_found(modelled: Recording) -> None:
    _, journal, _ = campaign(modelled)
    best: dict[str, float] = {}
    for body in bodies(journal, "trial"):
        setting = Setting.from_dict(body["resolved"])
        rows = {b: ratio for b, ratio in body["ratios"].items() if serves(setting, int(b), modelled.geometry, H200)}
        kept = [int(b) for b, ratio in rows.items() if ratio < best.get(b, 9.9)]
        assert body["kept_buckets"] == kept
        assert body["verdict"] == ("keep" if kept else "discard")
        best.update({str(b): body["ratios"][str(b)] for b in kept})
        timing = Timing.from_dict(body["timings"][1])
        assert timing.point == 1
        assert len(timing.candidate) == len(timing.baseline) == 12
        assert set(body["phases"]) == {"propose", "compile", "gate", "measure", "record"}
        assert len(body["plans"]) == len(body["point_ratios"]) == 3
        assert body["binary"] in modelled.binaries
    assert bodies(journal, "end")[0]["best"]["1"]["ratio"] == best["1"]


def test_a_planted_gain_is_found_and_promoted(gain: Recording) -> None:
    result, journal, _ = campaign(gain, replace(QUICK, trials=1000))
    for decision in result.decisions:
        assert (decision["decision"], decision["setting"]) == ("promote", WINNER.as_dict())
        assert decision["ratio_default"] == pytest.approx(1 / 1.05, abs=0.006)
        assert decision["ratio_incumbent"] is None
        assert decision["value"] == {"engine": "warp", **WINNER.as_dict()}
    confirmations = bodies(journal, "confirmation")
    assert len(confirmations) == 40
    assert len({body["process"] for body in confirmations}) == 10  # which the two buckets share
    assert len({body["instance"] for body in confirmations}) == 40
    shootouts = {body["process"] for body in bodies(journal, "shootout")}
    assert not shootouts & {body["process"] for body in confirmations}


def test_a_certificate_cites_records_by_the_hash_of_their_lines(gain: Recording) -> None:
    result, journal, _ = campaign(gain, replace(QUICK, trials=1000))
    cited = [r for r in journal.records if r["hash"] in result.decisions[0]["certificate"]["records"]]
    assert len(cited) == len(result.decisions[0]["certificate"]["records"])
    count = {
        kind: sum(r["kind"] == kind for r in cited) for kind in ("canary", "noise", "trial", "shootout", "confirmation")
    }
    mine = [b for b in bodies(journal, "trial") if b["resolved"] == result.decisions[0]["setting"]]
    assert 1 <= len(mine) <= 3
    assert count == {"canary": 3, "noise": 4, "trial": len(mine), "shootout": 1, "confirmation": 20}
    assert {r["body"]["bucket"] for r in cited if r["kind"] == "confirmation"} == {1}
    certificate = result.decisions[0]["certificate"]
    assert (certificate["tag"], certificate["attempt"], certificate["instances"]) == ("memory", 1, 20)
    assert certificate["noise_floor"]["1x4096"] == result.floor[0]


@pytest.mark.parametrize("seed", range(8))
def test_a_null_is_not_promoted(null: Recording, seed: int) -> None:
    result = run(ReplayBench(null, seed), MemoryJournal(), replace(QUICK, trials=1000, seed=seed))
    assert {decision["decision"] for decision in result.decisions} <= {"default-is-best", "not-proven"}


def test_an_incumbent_as_good_as_the_best_stays(gain: Recording) -> None:
    result, journal, _ = campaign(gain, replace(QUICK, trials=1000, incumbents={1: WINNER}))
    row, free = result.decisions
    assert (row["decision"], row["setting"]) == ("not-proven", WINNER.as_dict())
    assert "what is in force is as fast" in row["reason"]
    assert free["decision"] == "promote"
    assert {body["bucket"] for body in bodies(journal, "confirmation")} == {32}


def test_a_default_that_beats_a_slow_row_is_promoted() -> None:
    slow = Setting(1, 4, pdl=1)
    truth = synthetic.planted(slow, -0.06)
    recording = synthetic.make(truth, values={"pdl": (0, 1)}, extra=[slow], workload=DECODE8)
    result, _, _ = campaign(recording, replace(QUICK, incumbents={4: slow}))
    decision = next(d for d in result.decisions if d["bucket"] == 4)
    assert (decision["decision"], decision["setting"]) == ("promote", recording.default.as_dict())
    assert decision["ratio_incumbent"] == pytest.approx(0.94, abs=0.01)
    assert decision["ratio_default"] is None


@pytest.mark.parametrize(
    "status",
    [s for s in Status if s not in (Status.MEASURED, Status.INFRASTRUCTURE, Status.DIRTY)],
)
def test_a_failed_trial_is_recorded_and_the_campaign_goes_on(modelled: Recording, status: Status) -> None:
    result, journal, _ = campaign(modelled, script=Script(trials={5: failed(status)}))
    body = bodies(journal, "trial")[4]
    assert (body["status"], body["reason"], body["verdict"]) == (status, "as scripted", "discard")
    assert (body["ratio"], body["ratios"], body["timings"]) == (None, {}, [])
    assert (result.reason, result.trials, result.measured) == ("trials", 20, 19)


class Watched:
    """A proposer that remembers what it was told."""

    name = "watched"

    def __init__(self) -> None:
        self.told: list[tuple[int, tuple[int, ...], float | None]] = []
        self.asks: list[tuple[int, int]] = []

    def ask(self, bucket: int, number: int, taken: object) -> tuple[int, ...]:
        self.asks.append((number, len({t[1] for t in self.told})))
        return (0, 0, 0, 0, 0)

    def gain(self, bucket: int, number: int, taken: object) -> None:
        return None

    def tell(self, bucket: int, coordinates: tuple[int, ...], value: float | None) -> None:
        self.told.append((bucket, coordinates, value))


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    proposer = Watched()
    monkeypatch.setattr("mjolnir.tuner.coordinator.make", lambda *_, **__: proposer)
    return proposer


def test_every_study_hears_of_every_trial_and_ask_n_sees_those_below_n_minus_depth(
    modelled: Recording, watched: Watched
) -> None:
    _, journal, _ = campaign(modelled, replace(QUICK, depth=3))
    assert watched.asks == [(number, max(0, number - 4)) for number in range(2, 21)]
    trials = bodies(journal, "trial")
    assert [value for bucket, _, value in watched.told if bucket == 32] == [body["ratios"]["32"] for body in trials]
    assert len(watched.told) == 2 * len(trials)


@pytest.mark.parametrize("status", [Status.INFRASTRUCTURE, Status.DIRTY])
def test_what_says_nothing_of_the_setting_is_not_told(modelled: Recording, watched: Watched, status: Status) -> None:
    _, journal, _ = campaign(modelled, script=Script(trials={7: failed(status), 9: failed(Status.CRASHED)}))
    assert bodies(journal, "trial")[6]["status"] == status
    values = [value for bucket, _, value in watched.told if bucket == 1]
    assert len(values) == 19
    assert values.count(None) == 1


def test_a_default_lost_to_infrastructure_is_tried_again(modelled: Recording) -> None:
    result, journal, _ = campaign(modelled, script=Script(trials={1: failed(Status.INFRASTRUCTURE)}))
    defaults = [b["trial"] for b in bodies(journal, "trial") if b["proposal"]["origin"] == "default"]
    assert defaults == [1, 6]
    assert result.reason == "trials"


def test_a_default_that_cannot_be_measured_ends_the_campaign(modelled: Recording) -> None:
    result, journal, _ = campaign(modelled, script=Script(trials={1: failed(Status.INCORRECT)}))
    assert (result.reason, result.trials, result.decisions) == ("default", 1, ())
    assert kinds(journal)[-2:] == ["trial", "end"]


def test_three_infrastructure_failures_in_a_row_end_the_campaign_and_resuming_goes_on(modelled: Recording) -> None:
    broken = failed(Status.INFRASTRUCTURE)
    script = Script(trials={4: broken, 5: broken, 7: broken, 8: broken, 9: broken})
    result, journal, _ = campaign(modelled, script=script)
    assert (result.reason, bodies(journal, "trial")[-1]["trial"], result.resumable) == ("infrastructure", 9, True)
    again = run(ReplayBench(modelled), journal, QUICK)
    assert (again.reason, [b["trial"] for b in bodies(journal, "trial")]) == ("trials", list(range(1, 21)))


def test_times_that_are_no_numbers_end_as_nan(modelled: Recording) -> None:
    bad = ReplayBench(modelled).measure(3, Setting(1, 4))
    timings = (bad.timings[0], replace(bad.timings[1], candidate=(cast(int, float("nan")),) * 12), bad.timings[2])
    result, journal, _ = campaign(modelled, script=Script(trials={6: replace(bad, timings=timings)}))
    body = bodies(journal, "trial")[5]
    assert (body["status"], body["ratio"], body["timings"]) == ("nan", None, [])
    assert body["reason"].startswith("point 1 has no ratio: candidate nan ns")
    assert result.measured == 19


def test_a_bench_that_leaves_points_out_has_failed_itself(modelled: Recording) -> None:
    short = replace(ReplayBench(modelled).measure(3, Setting(1, 4)), timings=())
    _, journal, _ = campaign(modelled, script=Script(trials={6: short}))
    body = bodies(journal, "trial")[5]
    assert (body["status"], body["reason"]) == (
        "infrastructure", "the bench returned timings of 0 points, the workload has 3",
    )  # fmt: skip


@pytest.mark.parametrize("status", [Status.MEASURED, Status.CRASHED, Status.COMPILE_FAILED])
def test_a_canary_that_is_not_rejected_voids_everything(modelled: Recording, status: Status) -> None:
    result, journal, bench = campaign(modelled, script=Script(canaries={"skip": [Outcome(status)]}))
    assert (result.reason, result.void, result.resumable, bench.measured) == ("canary", True, False, [])
    assert [(b["fault"], b["rejected"]) for b in bodies(journal, "canary")] == [("mask", True), ("skip", False)]
    size = len(journal.records)
    assert run(ScriptedBench(modelled), journal, QUICK).void
    assert len(journal.records) == size


def test_a_canary_lost_to_infrastructure_is_sent_again(modelled: Recording) -> None:
    script = Script(canaries={"mask": [failed(Status.INFRASTRUCTURE)] * 2})
    result, journal, _ = campaign(modelled, script=script)
    assert [b["number"] for b in bodies(journal, "canary")] == [1, 2, 3, 1, 1]
    assert result.reason == "trials"


def test_noise_that_fails_is_recorded_and_taken_again(modelled: Recording) -> None:
    result, journal, _ = campaign(modelled, script=Script(noise=(2,)))
    found = bodies(journal, "noise")
    assert [(b["number"], b["status"]) for b in found] == [
        (1, "measured"), (2, "infrastructure"), (3, "measured"), (4, "measured"), (5, "measured"),
    ]  # fmt: skip
    assert found[-1]["floor"] == list(result.floor)
    assert min(result.floor) >= 0.005


class NoNoise(ScriptedBench):
    """The A/A comparison fails in the bench, or its windows are dirty."""

    how = Status.INFRASTRUCTURE

    def noise(self, number: int) -> tuple[Timing, ...]:
        timings = super().noise(number)
        if self.how is Status.INFRASTRUCTURE:
            raise BenchFailure("the device is gone")
        return tuple(replace(timing, window={"dirty": "the card throttled (hw_thermal)"}) for timing in timings)


@pytest.mark.parametrize(
    ("how", "reason", "times", "kept", "void"),
    [
        (Status.INFRASTRUCTURE, "infrastructure", MOST_FAILURES, 0, False),
        (Status.DIRTY, "no-clean-window", MOST_DIRTY, 3, True),
    ],
)
def test_noise_that_cannot_be_measured_ends_the_campaign_in_words(
    modelled: Recording, how: Status, reason: str, times: int, kept: int, void: bool
) -> None:
    bench, journal = NoNoise(modelled), MemoryJournal()
    bench.how = how
    result = run(bench, journal, QUICK)
    assert (result.reason, result.void, result.resumable, bench.measured) == (reason, void, True, [])
    found = bodies(journal, "noise")
    assert [(body["status"], len(body["timings"]), body["values"]) for body in found] == [(how, kept, [])] * times
    assert found[0]["reason"] == ("the card throttled (hw_thermal)" if kept else "the device is gone")


def test_dirty_windows_in_a_row_end_the_campaign_and_what_they_held_is_kept(modelled: Recording) -> None:
    measured = ReplayBench(modelled).measure(3, Setting(1, 4))
    dirty = replace(measured, status=Status.DIRTY, reason="the clock fell")
    script = Script(trials=dict.fromkeys(range(4, 40), dirty))
    result, journal, _ = campaign(modelled, replace(QUICK, trials=40), script)
    assert (result.reason, result.void, result.resumable) == ("no-clean-window", True, True)
    held = bodies(journal, "trial")[3:]
    assert [(b["status"], b["ratio"], b["ratios"], len(b["timings"])) for b in held] == [("dirty", None, {}, 3)] * 10
    assert result.decisions == ()
    again = run(ReplayBench(modelled), journal, QUICK)
    assert again.reason == "trials"


def test_a_disk_that_is_full_ends_the_campaign_and_what_is_recorded_goes_on(modelled: Recording) -> None:
    class Full(MemoryJournal):
        def append(self, kind: str, body: Any) -> Any:
            if len(self.records) >= 15:
                raise OSError("no space left on the device")
            return super().append(kind, body)

    journal = Full()
    with pytest.raises(OSError, match="no space"):
        run(ScriptedBench(modelled), journal, QUICK)
    assert len(journal.records) == 15
    result = run(ScriptedBench(modelled), resumed := MemoryJournal(records=journal.records), QUICK)
    undisturbed = campaign(modelled)[1]
    assert result.reason == "trials"
    assert [b["resolved"] for b in bodies(resumed, "trial")] == [b["resolved"] for b in bodies(undisturbed, "trial")]


def test_every_record_of_a_measurement_says_by_which_policy(modelled: Recording) -> None:
    _, journal, _ = campaign(modelled)
    with_policy = {record["kind"] for record in journal.records if record["body"].get("policy") == "synthetic"}
    assert with_policy == {"canary", "noise", "trial", "shootout", "confirmation"} & set(kinds(journal))
    assert {"canary", "noise", "trial", "shootout"} <= with_policy


@pytest.mark.parametrize("status", [Status.INCORRECT, Status.CRASHED, Status.HUNG])
def test_a_candidate_that_fails_in_the_shootout_leaves_it_to_the_others(gain: Recording, status: Status) -> None:
    fake = Script()
    bench, journal = ScriptedBench(gain, fake), MemoryJournal()
    stop_at = [False]

    class Arm:
        def update(self, progress: Progress) -> None:
            if progress.phase == "search" and progress.done == progress.total:
                fake.settings = {WINNER: failed(status)}
                stop_at[0] = True

    options = replace(QUICK, trials=len(gain.settings))
    result = run(bench, journal, options, Arm())
    assert stop_at[0]
    found = [b for b in bodies(journal, "shootout") if b["bucket"] == 1]
    assert [b["status"] for b in found] == [status, status, "measured"]
    assert all(d["setting"] != WINNER.as_dict() or d["decision"] != "promote" for d in result.decisions)


def test_minutes_end_the_search_on_the_benchs_clock(modelled: Recording) -> None:
    result, journal, _ = campaign(modelled, replace(QUICK, trials=1000, minutes=0.5))
    trials = bodies(journal, "trial")
    began = bodies(journal, "noise")[-1]["clock"]
    assert result.reason == "minutes"
    assert trials[-2]["clock"] - began < 30 <= trials[-1]["clock"] - began
    assert len(result.decisions) == 2


def test_stopping_keeps_the_best_so_far_and_promotes_nothing(gain: Recording) -> None:
    calls = iter(range(1000))
    result, journal, _ = campaign(gain, stop=lambda: next(calls) >= 12)
    assert (result.reason, result.trials, result.resumable, result.decisions) == ("interrupted", 5, True, ())
    assert result.best[1].ratio == bodies(journal, "end")[0]["best"]["1"]["ratio"]
    assert kinds(journal)[-2:] == ["trial", "end"]
    final = run(ReplayBench(gain), journal, QUICK)
    assert (final.reason, final.trials) == ("trials", 20)


def test_pins_hold_and_the_default_is_measured_all_the_same(modelled: Recording) -> None:
    _, journal, _ = campaign(modelled, replace(QUICK, pins={"kv_stages": 4}))
    stages = [body["resolved"]["kv_stages"] for body in bodies(journal, "trial")]
    assert stages[0] == modelled.default.kv_stages
    assert set(stages[1:]) == {4}


def test_an_infeasible_row_is_recorded_without_asking_the_bench(modelled: Recording) -> None:
    _, journal, bench = campaign(modelled, replace(QUICK, incumbents={1: Setting(4, 12)}))
    trials = bodies(journal, "trial")
    assert [body["status"] for body in trials[1:3]] == ["infeasible", "measured"]
    assert trials[1]["reason"].startswith("shared memory: 12 stages")
    assert Setting(4, 12) not in {setting for _, setting in bench.measured}


def test_a_row_that_the_recording_lacks_is_not_displaced(gain: Recording) -> None:
    rows = {1: Setting(3, 3)}
    result, journal, bench = campaign(gain, replace(QUICK, trials=len(gain.settings), incumbents=rows))
    first, second = result.decisions[:2]
    assert (first["decision"], first["setting"]) == ("not-proven", Setting(3, 3).as_dict())
    assert first["reason"] == "the recording does not hold the row in force, and nothing displaces it unbeaten"
    assert not [body for body in bodies(journal, "confirmation") if body["bucket"] == 1]
    assert second["decision"] == "promote"
    assert Setting(3, 3) not in {setting for _, setting in bench.measured}


def test_rows_that_do_not_hold_the_pins_are_compared_with_and_never_chosen(gain: Recording) -> None:
    pins = {"kv_stages": 4}
    rows = {bucket: Setting(2, 2) for bucket in gain.workload.buckets}
    result, journal, _ = campaign(gain, replace(QUICK, pins=pins, incumbents=rows))
    held = {body["trial"] for body in bodies(journal, "trial") if body["resolved"]["kv_stages"] == 4}
    assert len(held) < len(bodies(journal, "trial"))
    assert all(best.trial in held | {1} for best in result.best.values())
    for body in bodies(journal, "shootout"):
        arms = [arm for place, arm in enumerate(body["arms"]) if place not in (body["default"], body["incumbent"])]
        assert all(arm["kv_stages"] == 4 for arm in arms)


def test_an_observer_hears_of_every_record(modelled: Recording) -> None:
    news: list[Progress] = []

    class Observer:
        def update(self, progress: Progress) -> None:
            news.append(progress)

    _, journal, _ = campaign(modelled, observer=Observer())
    assert [n.record["hash"] for n in news] == [r["hash"] for r in journal.records[1:-1]]
    search = [n for n in news if n.phase == "search"]
    assert [n.done for n in search] == list(range(1, 21))
    assert search[-1].seconds_left == 0
    assert 20 < search[-1].trials_per_minute < 60
    assert search[-1].best[1].ratio <= search[0].best[1].ratio
    assert not any(n.replayed for n in news)


def test_more_trials_go_on_with_new_finals(gain: Recording) -> None:
    _, journal, _ = campaign(gain)
    size = len(journal.records)
    same = run(ReplayBench(gain), journal, QUICK)
    assert (len(journal.records), same.reason, len(same.decisions)) == (size, "trials", 2)
    more = run(ReplayBench(gain), journal, replace(QUICK, trials=len(gain.settings)))
    assert more.trials == len(gain.settings)
    assert [body["after"] for body in bodies(journal, "promotion")] == [20, 20, len(gain.settings), len(gain.settings)]
    processes = [b["process"] for kind in ("shootout", "confirmation") for b in bodies(journal, kind)]
    instances = [b["instance"] for kind in ("shootout", "confirmation") for b in bodies(journal, kind)]
    assert len(set(instances)) == len(instances)
    assert min(b["process"] for b in bodies(journal, "shootout") if b["after"] > 20) > 1
    first = [body for body in bodies(journal, "shootout") if body["process"] == 1]
    assert (processes.count(1), [body["after"] for body in first]) == (2, [20, 20])  # both buckets share it


def test_a_new_epoch_starts_over_with_what_is_known(modelled: Recording, watched: Watched) -> None:
    _, journal, _ = campaign(modelled)
    before = len(watched.told)
    journal.append("epoch", {"epoch": "e2"})
    result = run(ScriptedBench(modelled), journal, QUICK)
    trials = [b for b in bodies(journal, "trial") if b["epoch"] == "e2"]
    assert [b["trial"] for b in trials] == list(range(21, 41))
    assert trials[0]["proposal"]["origin"] == "default"
    assert len([b for b in bodies(journal, "canary") if b["epoch"] == "e2"]) == 3
    assert len(watched.told) == before + 2 * 40
    assert result.trials == 20
    assert trials[0]["clock"] > bodies(journal, "end")[0]["clock"]


def test_presets_and_estimates() -> None:
    assert {name: (e.trials, e.minutes) for name, e in EFFORTS.items()} == {
        "quick": (40, 2.0), "default": (150, 10.0), "full": (600, 40.0),
    }  # fmt: skip
    options = Options.of_effort("quick", seed=3)
    assert (options.trials, options.minutes, options.seed, options.effort) == (40, 2.0, 3, "quick")
    assert Options.from_dict({**options.as_dict(), "later": 1}) == options
    assert json.loads(json.dumps(options.as_dict())) == options.as_dict()
    plan = estimate(options, 6, deviation=0.003, trial_seconds=1.0)
    assert (plan.trials, plan.instances, plan.seconds) == (40, 720, 40 + 6 * (1 + 60) + 2 + 120 + 30)
    slow = estimate(options, 6, trial_seconds=1.0, compile_seconds=1.5, noise_seconds=4.0)
    assert (slow.search_seconds, slow.proof_seconds - plan.proof_seconds) == (100.0, 30 * 3.0)
    assert estimate(options, 6, trial_seconds=1.0, compile_seconds=9.0).search_seconds == 120.0, "the limit"
    assert estimate(options, 6, trial_seconds=1.0, devices=2).seconds == plan.seconds / 2
    assert 0.01 < plan.smallest_gain < estimate(options, 6, deviation=0.003, attempt=3).smallest_gain < 0.02
    assert Options.from_dict({"trials": 7, "instances": 12, "processes": 3}) == Options(trials=7, until_flat=False)
    for bad, message in (
        ({"trials": 0}, "--trials 0"), ({"proposer": "x"}, "--proposer 'x'"), ({"margin": 1.0}, "^margin 1.0"),
        ({"minutes": 0.0}, "--minutes 0.0"), ({"depth": -1}, "--depth -1"), ({"alpha": 2.0}, "--alpha 2.0"),
        ({"proposer_seconds": 0.0}, "--proposer-seconds 0.0"), ({"pins": {"pdl": 7}}, "pdl = 7"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            Options(**bad)
    with pytest.raises(ValueError, match="--effort 'lazy' is unknown"):
        Options.of_effort("lazy")
    assert "kv_stages" in VALUES


def test_campaigns_that_take_turns_share_the_fresh_processes_of_their_finals(gain: Recording) -> None:
    asked: list[tuple[str, int]] = []

    class Noted(ScriptedBench):
        def __init__(self, name: str) -> None:
            super().__init__(gain)
            self._name = name

        def measure(self, trial: int, setting: Setting, fault: str = "none", race: Race | None = None) -> Outcome:
            asked.append((self._name, 0))
            return super().measure(trial, setting, fault, race)

        def instance(self, request: InstanceRequest) -> Instance:
            asked.append((self._name, request.process))
            return super().instance(request)

    options = replace(QUICK, enqueued=(WINNER,))
    alone, _, _ = campaign(gain, options)
    journals = [MemoryJournal(name) for name in ("a", "b")]
    results = run_together(Run(Noted(journal.tag), journal, options) for journal in journals)
    names = ("bucket", "decision", "setting", "ratio_default", "reason")
    for result in results:
        assert [[body[name] for name in names] for body in result.decisions] == [
            [body[name] for name in names] for body in alone.decisions
        ]
    turns = list(dict.fromkeys(asked))
    count = max(process for _, process in asked)
    assert turns == [(name, process) for process in range(count + 1) for name in ("a", "b")]


def test_one_of_several_campaigns_that_is_void_leaves_the_others_alone(gain: Recording) -> None:
    blind = ScriptedBench(gain, Script(canaries={"skip": [Outcome(Status.MEASURED)]}))
    runs = [Run(blind, MemoryJournal(), QUICK), Run(ScriptedBench(gain), MemoryJournal(), QUICK)]
    void, sound = run_together(runs)
    assert (void.reason, void.void, void.decisions) == ("canary", True, ())
    assert (sound.reason, len(sound.decisions)) == ("trials", 2)
