"""Several devices as one bench: order, throughput, and what becomes of a device that fails."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from mjolnir.kernel.device import H200
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import Variant, resolve
from mjolnir.tuner.bench import Bench, InstanceRequest, Outcome, Race, Status
from mjolnir.tuner.coordinator import Result, run
from mjolnir.tuner.fleet import FleetBench
from mjolnir.tuner.journal import MemoryJournal
from mjolnir.tuner.options import Options
from mjolnir.tuner.recording import Recording
from mjolnir.tuner.session import MOST_FAILURES
from tests.fakes.bench import Script, ScriptedBench, failed
from tests.fakes.fleet import SlowBench
from tests.tuner.conftest import WINNER

OPTIONS = Options(trials=24, minutes=60, proposer="random", noise=4)
CHANGING = ("clock", "phases", "facts")


def campaign(bench: Bench, options: Options = OPTIONS) -> tuple[Result, MemoryJournal]:
    journal = MemoryJournal()
    journal.append("epoch", {"epoch": "e1"})
    try:
        return run(bench, journal, options), journal
    finally:
        bench.close()


def trials(journal: MemoryJournal) -> list[dict[str, Any]]:
    return [record["body"] for record in journal.records if record["kind"] == "trial"]


def comparable(journal: MemoryJournal) -> list[dict[str, Any]]:
    return [{name: value for name, value in body.items() if name not in CHANGING} for body in trials(journal)]


def fleet(*benches: Bench) -> FleetBench:
    return FleetBench({f"cuda:{number}": bench for number, bench in enumerate(benches)})


def test_the_records_are_those_of_one_device_however_long_trials_take(modelled: Recording) -> None:
    _, alone = campaign(SlowBench(modelled))
    uneven = {number: 0.02 * (number * 7 % 5) for number in range(1, 25)}
    result, shared = campaign(fleet(SlowBench(modelled, slow=uneven), SlowBench(modelled, slow=uneven)))
    assert comparable(shared) == comparable(alone)
    assert [body["trial"] for body in trials(shared)] == list(range(1, 25))
    assert result.reason == "trials"
    assert {body["facts"]["device"] for body in trials(shared)} == {"cuda:0", "cuda:1"}


def test_two_devices_are_at_work_together(modelled: Recording) -> None:
    both, met = threading.Barrier(2, timeout=60), []

    class PairedBench(SlowBench):
        """Ends no trial before the other device is at one as well; but for the last ones, which may fall to one."""

        def measure(self, trial: int, setting: Setting, fault: str = "none", race: Race | None = None) -> Outcome:
            if fault == "none" and trial > 16:
                both.abort()
            elif fault == "none":
                with suppress(threading.BrokenBarrierError):
                    both.wait()
                    met.append(trial)
            return super().measure(trial, setting, fault, race)

    result, _ = campaign(fleet(PairedBench(modelled), PairedBench(modelled)))
    assert (result.reason, result.measured) == ("trials", 24)
    assert len(met) >= 14


def test_a_device_that_dies_costs_no_trial_and_none_is_run_twice(modelled: Recording) -> None:
    _, alone = campaign(SlowBench(modelled))
    dies, lives = SlowBench(modelled, 0.005, fails=lambda number: number > 12), SlowBench(modelled, 0.005)
    result, journal = campaign(fleet(dies, lives))
    assert comparable(journal) == comparable(alone)
    assert (result.reason, result.measured) == ("trials", 24)
    assert sorted(trial for trial, _ in [*dies.measured, *lives.measured]) == list(range(1, 25))
    lost = [entry for body in trials(journal) for entry in body["facts"].get("lost", ())]
    assert [(entry["device"], entry["reason"]) for entry in lost] == [("cuda:0", "the worker was killed")] * 3
    assert [bool(entry["aside"]) for entry in lost] == [False, False, True]
    assert {body["facts"]["device"] for body in trials(journal)[-8:]} == {"cuda:1"}


def test_a_device_that_recovers_is_not_set_aside(modelled: Recording) -> None:
    shaky = SlowBench(modelled, 0.005, fails=lambda number: number > 10 and number % 3 > 0)
    result, journal = campaign(fleet(shaky, SlowBench(modelled, 0.005)))
    assert result.measured == 24
    lost = [entry for body in trials(journal) for entry in body["facts"].get("lost", ())]
    assert len(lost) >= MOST_FAILURES
    assert not any(entry["aside"] for entry in lost)


def test_when_all_devices_are_gone_the_campaign_ends_and_says_so(modelled: Recording) -> None:
    result, journal = campaign(fleet(*(SlowBench(modelled, 0.002, fails=lambda number: number > 9) for _ in range(2))))
    assert (result.reason, result.resumable) == ("infrastructure", True)
    last = trials(journal)[-1]
    assert last["status"] == "infrastructure"
    assert "the worker was killed" in last["reason"]
    again = run(SlowBench(modelled), journal, OPTIONS)
    assert again.reason == "trials"
    assert [body["trial"] for body in trials(journal)] == list(range(1, 25))


def test_a_setting_that_kills_every_worker_is_asked_of_two(modelled: Recording) -> None:
    script = Script(trials={5: failed(Status.INFRASTRUCTURE, "killed")})
    benches = [ScriptedBench(modelled, script, simulated=False) for _ in range(3)]
    _, journal = campaign(fleet(*benches))
    assert trials(journal)[4]["status"] == "infrastructure"
    assert len(trials(journal)[4]["facts"]["lost"]) == 2
    assert sum(trial == 5 for bench in benches for trial, _ in bench.measured) == 2


def test_every_card_has_its_canaries_and_its_noise(modelled: Recording) -> None:
    first, second = SlowBench(modelled), SlowBench(modelled)
    _, journal = campaign(fleet(first, second), replace(OPTIONS, trials=2))
    canaries = [record["body"] for record in journal.records if record["kind"] == "canary"]
    assert [set(body["correctness"]["devices"]) for body in canaries] == [{"cuda:0", "cuda:1"}] * 3
    noise = [record["body"]["timings"] for record in journal.records if record["kind"] == "noise"]
    assert [{timing["window"]["device"] for timing in timings} for timings in noise] == [
        {"cuda:1"}, {"cuda:0"}, {"cuda:1"}, {"cuda:0"},
    ]  # fmt: skip
    assert len(first.threads) == len(second.threads) == 1


def test_one_gate_that_is_blind_voids_the_campaign(modelled: Recording) -> None:
    blind = ScriptedBench(modelled, Script(canaries={"skip": [Outcome(Status.MEASURED)]}), simulated=False)
    result, _ = campaign(fleet(ScriptedBench(modelled, simulated=False), blind))
    assert (result.reason, result.void) == ("canary", True)


def test_a_device_that_cannot_do_its_canaries_is_set_aside_and_the_others_go_on(modelled: Recording) -> None:
    result, journal = campaign(fleet(SlowBench(modelled, fails=lambda number: True), SlowBench(modelled)))
    assert result.measured == 24
    first = [record["body"] for record in journal.records if record["kind"] == "canary"][:3]
    assert [body["status"] for body in first] == ["infrastructure", "infrastructure", "incorrect"]


def test_the_instances_of_a_process_share_a_device(modelled: Recording) -> None:
    made = fleet(SlowBench(modelled), SlowBench(modelled))
    arms = (modelled.default, modelled.settings[0])
    found = [made.instance(InstanceRequest(process, number, (0,), arms)) for number, process in enumerate((4, 4, 5, 5))]
    assert [instance.window["device"] for instance in found] == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]
    made.close()


def test_the_finals_keep_all_devices_at_work(gain: Recording) -> None:
    benches = [SlowBench(gain, 0.02), SlowBench(gain, 0.02)]
    options = replace(OPTIONS, enqueued=(WINNER,))
    result, journal = campaign(fleet(*benches), options)
    assert {body["decision"] for body in result.decisions} == {"promote"}
    processes = [{process for process, _, _ in bench.spans} for bench in benches]
    assert not processes[0] & processes[1]
    assert {number % 2 for number in processes[0]} == {0}
    first, second = (bench.spans for bench in benches)
    assert any(b < other_e and other_b < e for _, b, e in first for _, other_b, other_e in second)  # at one time
    confirmed = [record["body"] for record in journal.records if record["kind"] == "confirmation"]
    order = [(body["bucket"], body["process"] - confirmed[0]["process"]) for body in confirmed][:8]
    assert order == [(1, 0), (1, 0), (1, 1), (1, 1), (32, 0), (32, 0), (32, 1), (32, 1)]


@pytest.mark.parametrize("widths", [(2, 1), (1, 2)])
def test_finals_go_on_with_other_devices_and_take_nothing_twice(gain: Recording, widths: tuple[int, int]) -> None:
    def bench(width: int) -> FleetBench:
        return fleet(*(SlowBench(gain) for _ in range(width)))

    options, journal, seen = replace(OPTIONS, enqueued=(WINNER,)), MemoryJournal(), []
    journal.append("epoch", {"epoch": "e1"})

    class Watch:
        def update(self, progress: Any) -> None:
            seen.append(progress.phase)

    first = bench(widths[0])
    run(first, journal, options, Watch(), lambda: seen.count("confirmation") >= 5)
    first.close()
    assert not [record for record in journal.records if record["kind"] == "promotion"]
    second = bench(widths[1])
    result = run(second, journal, options)
    second.close()
    assert [body["decision"] for body in result.decisions] == ["promote"] * 2
    finals = [r["body"] for r in journal.records if r["kind"] in ("shootout", "confirmation")]
    assert len({body["instance"] for body in finals}) == len(finals)
    for bucket in (1, 32):
        confirmed = [b for b in finals if "attempt" in b and b["bucket"] == bucket]
        assert [b["number"] for b in confirmed] == list(range(1, 1 + len(confirmed)))
        counts = Counter(b["process"] for b in confirmed)
        assert set(counts.values()) == {options.group}


def test_a_fleet_races_as_one_device_does(modelled: Recording) -> None:
    options = replace(OPTIONS, trials=60, race=True)
    _, alone = campaign(SlowBench(modelled), options)
    _, shared = campaign(fleet(SlowBench(modelled, 0.001), SlowBench(modelled, 0.002)), options)
    assert comparable(shared) == comparable(alone)
    assert "raced" in {body["status"] for body in trials(shared)}


def test_of_what_was_announced_only_what_has_begun_is_measured(modelled: Recording) -> None:
    benches = [SlowBench(modelled, 0.1), SlowBench(modelled, 0.1)]
    made = fleet(*benches)
    for trial in range(1, 9):
        made.begin(trial, modelled.settings[trial])
    while sum(bench.busy for bench in benches) == 0:
        time.sleep(0.01)
    begun = [trial for trial in range(1, 9) if made.begun(trial)]
    for trial in begun:
        assert made.measure(trial, modelled.settings[trial]).status is Status.MEASURED
    assert begun == list(range(1, 1 + len(begun)))
    assert 2 <= len(begun) < 8
    made.noise(1)
    made.close()
    assert sorted(trial for bench in benches for trial, _ in bench.measured) == begun


def test_a_trial_that_was_passed_over_is_begun_with_the_one_that_passed_it(modelled: Recording) -> None:
    slow = {1: 0.2, 3: 0.2}
    made = fleet(SlowBench(modelled, slow=slow))
    first = modelled.settings[0]
    second = next(other for other in modelled.settings if made._binary(other) != made._binary(first))
    settings = {1: first, 2: second, 3: first}
    for trial, setting in settings.items():
        made.begin(trial, setting)
    while not made._begun[3][1].running():
        time.sleep(0.01)
    assert not made._begun[2][1].running()
    assert [made.begun(trial) for trial in (1, 2, 3)] == [True] * 3
    assert [made.measure(trial, setting).status for trial, setting in settings.items()] == [Status.MEASURED] * 3
    made.close()


def test_settings_share_a_binary_as_variants_do(modelled: Recording) -> None:
    made = fleet(SlowBench(modelled))
    settings = [replace(setting, max_splits=splits) for setting in modelled.settings[:40] for splits in (0, 1, 2, 8)]
    settings += [Setting(), Setting(kv_stages=resolve(Setting(), made.geometry, made.device).kv_stages)]
    variants = [Variant.of(setting, made.geometry, made.device) for setting in settings]
    binaries = [made._binary(setting) for setting in settings]
    assert len(set(variants)) == len(set(binaries)) == len(set(zip(variants, binaries, strict=True)))
    made.close()


def test_devices_have_to_be_equal(modelled: Recording) -> None:
    other = SlowBench(replace(modelled, device=replace(H200, name="NVIDIA H100")))
    with pytest.raises(ValueError, match=r"cuda:1 differs from the other devices in its device: .*H100"):
        fleet(SlowBench(modelled), other)


def test_a_trial_is_measured_as_it_was_announced(modelled: Recording) -> None:
    made = fleet(SlowBench(modelled), SlowBench(modelled))
    made.begin(1, modelled.settings[1])
    with pytest.raises(ValueError, match="trial 1 was announced with"):
        made.measure(1, Setting(1, 4))
    made.close()
    assert made.environment["devices"] == ["cuda:0", "cuda:1"]
