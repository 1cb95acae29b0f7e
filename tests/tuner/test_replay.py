"""Replay: recorded levels, recorded noise, a clock of its own, and nothing that depends on the order of calls."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ks_2samp

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.bench import CANARIES, InstanceRequest, Status
from mjolnir.tuner.recording import Recording
from mjolnir.tuner.replay import ReplayBench
from mjolnir.tuner.statistics import Weights, instance_values, point_ratios
from tests.tuner.conftest import WINNER

ANY = Setting(2, 4, max_splits=0, pdl=1)


def test_draws_depend_on_seed_and_number_alone(modelled: Recording) -> None:
    one, two, other = ReplayBench(modelled, 5), ReplayBench(modelled, 5), ReplayBench(modelled, 6)
    two.noise(1)
    two.measure(1, Setting())
    request = InstanceRequest(3, 8, (0, 2), (ANY, Setting()))
    two.instance(InstanceRequest(1, 1, (0,), (ANY, Setting())))
    assert one.measure(7, ANY).timings == two.measure(7, ANY).timings
    assert one.measure(7, ANY).timings != one.measure(8, ANY).timings
    assert one.measure(7, ANY).timings != other.measure(7, ANY).timings
    assert one.noise(2) == two.noise(2) != other.noise(2)
    assert one.instance(request) == two.instance(request) != other.instance(request)


def test_replayed_ratios_lie_around_the_recorded_ones(gain: Recording) -> None:
    bench = ReplayBench(gain)
    ratios = np.array([point_ratios(bench.measure(trial, WINNER).timings) for trial in range(200)])
    place = gain.index[WINNER]
    cells = gain.arrays["cell"][0, place]
    net = [np.median(gain.arrays[name][cells], axis=1) - 9000 for name in ("candidate", "baseline")]
    assert ratios.mean(axis=0) == pytest.approx(net[0] / net[1], abs=0.002)
    assert ratios.mean(axis=0) == pytest.approx(1 / 1.05, abs=0.006)


@pytest.fixture
def twice(gain: Recording) -> Recording:
    """A recording with a second instance of each cell, on which candidates take a tenth longer than on the first."""
    arrays, count = dict(gain.arrays), len(gain.arrays["candidate"])
    for name in ("candidate", "baseline", "empty", "cell_plan", "cell_window", "cell_chunk"):
        arrays[name] = np.concatenate([arrays[name], arrays[name]])
    arrays["candidate"][count:] = np.rint(9000 + 1.1 * (arrays["candidate"][:count] - 9000.0))
    arrays["cell"] = np.concatenate([arrays["cell"], np.where(arrays["cell"] >= 0, arrays["cell"] + count, -1)])
    return replace(gain, arrays=arrays)


def test_a_trial_draws_one_of_the_recorded_instances(twice: Recording) -> None:
    bench = ReplayBench(twice)
    ratios = np.array([point_ratios(bench.measure(trial, WINNER).timings) for trial in range(100)])
    slow = ratios > 1 / 1.05 * 1.05
    assert (slow.all(axis=1) | ~slow.any(axis=1)).all()
    assert 0.3 < slow.mean() < 0.7
    assert np.median(ratios[slow]) / np.median(ratios[~slow]) == pytest.approx(1.1, abs=0.01)


def test_the_arms_of_an_instance_share_one_of_the_recorded_instances(twice: Recording) -> None:
    bench = ReplayBench(twice)
    arms = (WINNER, ANY, Setting())
    found = []
    for number in range(60):
        samples = bench.instance(InstanceRequest(number, number, (0, 1, 2), arms)).samples
        found.append([instance_values(samples, arm, 2) for arm in (0, 1)])
    slow = np.array(found) > np.mean(found, axis=0)
    assert (slow[:, 0] == slow[:, 1]).all()
    assert 0.3 < slow.mean() < 0.7


def test_replayed_noise_is_distributed_as_the_recorded_one(modelled: Recording) -> None:
    bench = ReplayBench(modelled)
    replayed, recorded = [], []
    for trial in range(60):
        timing = bench.measure(trial, Setting()).timings[0]
        difference = np.log(np.array(timing.candidate) / np.array(timing.baseline))
        replayed += (difference - np.median(difference)).tolist()
    pairs = np.log(modelled.arrays["pair_candidate"][0] / modelled.arrays["pair_baseline"][0])
    recorded = pairs - np.median(pairs)
    assert ks_2samp(replayed, recorded).pvalue > 0.001
    assert np.std(replayed) == pytest.approx(np.std(recorded), rel=0.15)


def test_each_trial_costs_its_compile_gate_and_measuring_time(modelled: Recording) -> None:
    bench = ReplayBench(modelled, workers=1)
    place = modelled.index[ANY]
    compiled = modelled.arrays["binary_ms"][modelled.arrays["setting_binary"][place]] / 1e3
    gate, measure = modelled.arrays["setting_ms"][place] / 1e3
    outcome = bench.measure(1, ANY)
    assert outcome.phases == pytest.approx({"compile": compiled, "gate": gate, "measure": measure})
    assert bench.now() == pytest.approx(compiled + gate + measure)
    again = bench.measure(2, ANY)
    assert again.phases["compile"] == 0.0
    assert again.facts == {"compile_seconds": pytest.approx(compiled)}


def test_compiles_ahead_hide_behind_the_device(modelled: Recording) -> None:
    bench = ReplayBench(modelled, workers=2)
    others = [Setting(1, 2), Setting(1, 4), Setting(1, 5)]
    for setting in others:
        bench.submit(setting)
    seconds = [bench.measure(0, setting).facts["compile_seconds"] for setting in others]
    third = min(seconds[:2]) + seconds[2]
    fresh = ReplayBench(modelled, workers=2)
    for setting in others:
        fresh.submit(setting)
    assert fresh.measure(0, others[2]).phases["compile"] == pytest.approx(third, abs=1e-6)
    assert fresh.measure(0, others[0]).phases["compile"] == 0.0


def test_a_compile_begins_when_it_is_submitted(modelled: Recording) -> None:
    bench = ReplayBench(modelled)
    bench.advance(100.0)
    bench.submit(ANY)
    bench.advance(0.1)
    outcome = bench.measure(1, ANY)
    assert outcome.phases["compile"] == pytest.approx(outcome.facts["compile_seconds"] - 0.1)


def test_processes_share_a_bias_that_others_do_not(null: Recording) -> None:
    bench = ReplayBench(null, 1)
    values = np.array(
        [
            [
                instance_values(
                    bench.instance(InstanceRequest(p, 100 * p + n, (1,), (WINNER, Setting()), 40)).samples, 0, 1
                )[0]
                for n in range(6)
            ]
            for p in range(30)
        ]
    )
    within, between = values.std(axis=1).mean(), values.mean(axis=1).std()
    chains = [np.median(null.arrays[f"rebuild_{n}"][1], axis=1) - 9000 for n in ("candidate", "baseline")]
    assert between == pytest.approx(np.log(chains[0] / chains[1]).std(), rel=0.3)
    assert between > 1.2 * within


def test_instances_compare_any_arms_on_a_common_level(modelled: Recording) -> None:
    bench = ReplayBench(modelled)
    arms = (Setting(1, 4), ANY, Setting())
    totals = np.zeros((3, 2))
    for number in range(60):
        samples = bench.instance(InstanceRequest(number, number, (0, 1, 2), arms)).samples
        totals += np.array([instance_values(samples, arm, 2) for arm in (0, 1)]).T / 60
    for column, arm in enumerate(arms[:2]):
        ratios = point_ratios(ReplayBench(modelled).measure(1, arm).timings)
        assert np.exp(totals[:, column]) == pytest.approx(ratios, abs=0.01)


def test_canaries_are_those_of_the_kernel_and_what_else_was_recorded(modelled: Recording) -> None:
    assert ReplayBench(modelled).canaries == ("mask", "skip", "silent")
    more = ({"fault": fault, "status": "incorrect", "reason": "seen"} for fault in ("replayed", "stale"))
    bench = ReplayBench(replace(modelled, canaries=(*modelled.canaries, *more)))
    assert bench.canaries == CANARIES
    assert bench.measure(0, Setting(), "stale").reason == "seen"


def test_canaries_say_what_the_recorded_gate_said(modelled: Recording) -> None:
    outcome = ReplayBench(modelled).measure(0, Setting(), "mask")
    assert (outcome.status, outcome.reason, outcome.timings) == (Status.INCORRECT, "synthetic: the gate sees mask", ())


def test_what_was_not_recorded_is_refused(modelled: Recording) -> None:
    bench = ReplayBench(modelled)
    assert bench.measure(1, Setting(3, 3)).status is Status.INFEASIBLE
    instance = bench.instance(InstanceRequest(1, 1, (0,), (Setting(3, 3), Setting())))
    assert (instance.status, instance.samples) == (Status.INFEASIBLE, ())
    assert "no timings of ctas_per_sm=3" in instance.reason


def test_weights_agree_with_the_speed_model(modelled: Recording) -> None:
    from mjolnir.tuner.synthetic import speed_model

    truth = [speed_model(ANY, p) / speed_model(modelled.default, p) for p in modelled.workload.points]
    expected, overall = Weights(modelled.workload).means(np.array(truth))
    buckets, whole = Weights(modelled.workload).means(point_ratios(ReplayBench(modelled).measure(1, ANY).timings))
    assert buckets == pytest.approx(expected, abs=0.02)
    assert whole == pytest.approx(overall, abs=0.02)


def test_a_replay_knows_what_to_expect(modelled: Recording) -> None:
    bench = ReplayBench(modelled)
    chains = [np.median(modelled.arrays[f"rebuild_{n}"], axis=2) - 9000 for n in ("candidate", "baseline")]
    logs = np.log(chains[0] / chains[1])
    expected = max(np.sqrt(np.mean(np.square((logs[0] + 2 * logs[1]) / 3))), np.sqrt(np.mean(np.square(logs[2]))))
    assert bench.deviation == pytest.approx(expected, rel=0.05)
    assert bench.trial_seconds == pytest.approx(0.35 + 1.1)
    assert bench.compile_seconds == pytest.approx(modelled.arrays["binary_ms"].mean() / 4000)
    bench.noise(1)
    assert bench.now() == pytest.approx(bench.noise_seconds, abs=1e-6)
