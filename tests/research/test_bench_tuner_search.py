"""The benchmark of the search: what it counts, on tables of known truth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mjolnir.kernel.knobs import Setting
from mjolnir.research.bench import rivals, tuner_search
from mjolnir.research.bench.tuner_search import Table
from mjolnir.tuner import synthetic
from mjolnir.tuner.space import Space
from mjolnir.tuner.workload import Workload, uniform

WINNER = Setting(1, 4, pdl=1)
GRID = {"ctas_per_sm": (1, 2), "kv_stages": (2, 4, 5), "l2_prefetch": (0, 1, 2), "pdl": (0, 1)}


@pytest.fixture(scope="module")
def table() -> Table:
    workload = Workload("two", (uniform(1, 4096), uniform(32, 4096)))
    truth = synthetic.planted(WINNER, 0.05)
    return Table(synthetic.make(truth, values=GRID, workload=workload, noise=0.002))


def place_of(table: Table, setting: Setting) -> int:
    found = table.space.coordinates(setting)
    return [table.space.member(place) for place in range(table.space.size)].index(found or ())


def test_the_planted_winner_has_no_regret_and_all_others_five_percent(table: Table) -> None:
    winner = place_of(table, WINNER)
    assert table.regrets[winner].tolist() == [0.0, 0.0]
    others = np.delete(table.regrets, winner, axis=0)
    assert others == pytest.approx(np.full(others.shape, np.log(1.05)), abs=0.008)
    assert table.truth[winner] == pytest.approx(np.full(2, -np.log(1.05)), abs=0.004)


def test_truth_and_regret_are_means_over_the_instances(table: Table) -> None:
    source = table.source
    arrays, count = dict(source.arrays), len(source.arrays["candidate"])
    for name in ("candidate", "baseline", "empty", "cell_plan", "cell_window", "cell_chunk"):
        arrays[name] = np.concatenate([arrays[name], arrays[name]])
    winner = source.arrays["cell"][0, source.index[WINNER]]
    net = arrays["candidate"][winner] - 9000.0
    arrays["candidate"][winner + count] = np.rint(9000 + 1.02**2 * net)
    arrays["cell"] = np.concatenate([arrays["cell"], arrays["cell"] + count])
    two = Table(replace(source, arrays=arrays))
    place = place_of(table, WINNER)
    assert two.truth[place] - table.truth[place] == pytest.approx(np.full(2, np.log(1.02)), abs=2e-3)
    assert np.delete(two.truth, place, axis=0) == pytest.approx(np.delete(table.truth, place, axis=0))
    others = np.delete(two.regrets, place, axis=0)
    assert others == pytest.approx(np.full(others.shape, np.log(1.05 / 1.02)), abs=0.008)
    assert two.regrets[place].tolist() == [0.0, 0.0]


def test_what_can_be_no_row_is_the_best_of_nothing(table: Table) -> None:
    truth = synthetic.planted(Setting(1, 4, max_splits=1, pdl=1), 0.05)
    limited = Table(synthetic.make(truth, values={**GRID, "max_splits": (0, 1)}, workload=table.source.workload))
    left_out = [place for place in range(limited.space.size) if not limited.fit[place, 1]]
    assert limited.fit[:, 0].all(), "alone in a batch a sequence is as the points are"
    assert 0 < len(left_out) < limited.space.size
    for values in (limited.truth, limited.draws(0)):
        assert (values[left_out, 1] == tuner_search.UNFIT).all()
        assert values[:, 0].max() < 1
    leads, _ = tuner_search.campaign(limited, 0, 30, proposer="random")
    assert not set(leads[5:, 1].tolist()) & set(left_out)


def test_draws_are_those_of_the_setting_whoever_asks(table: Table) -> None:
    draws = table.draws(3)
    leads, taken = tuner_search.campaign(table, 3, table.space.size, proposer="random")
    assert leads[-1].tolist() == draws.argmin(axis=0).tolist() == [place_of(table, WINNER)] * 2
    assert taken == table.space.size
    assert (table.draws(4) != draws).any()


def test_leads_and_trials_are_counted() -> None:
    draws = np.array([0.3, 0.1, 0.2, 0.0])
    assert tuner_search._lead([0, 2, 1], draws, 5) == [0, 2, 1, 1, 1]
    assert tuner_search._interval(np.array([0.1, 0.2, 0.3]), np.array([0.2, 0.3, 0.4])) == pytest.approx((-0.1, -0.1))


def test_trials_to_101_is_the_median_over_seeds_of_each_bucket(table: Table) -> None:
    good, bad = place_of(table, WINNER), place_of(table, Setting(1, 2))
    leads = np.array([[[bad, good]] * 3 + [[good, good]], [[bad, bad]] * 4, [[good, bad]] * 4])
    assert tuner_search.trials_to(table, leads).tolist() == [4.0, float("inf")]


def test_rivals_stay_inside_the_table_and_the_budget(table: Table) -> None:
    draws = table.draws(0)[:, 0]
    for rival in (rivals.at_random, rivals.plain_tpe):
        tried = rival(table.space, draws, 0, 12)
        assert 0 < len(tried) <= 12
        assert 0 <= min(tried) <= max(tried) < table.space.size
        assert tried == rival(table.space, draws, 0, 12)
    assert len(set(rivals.at_random(table.space, draws, 0, 12))) == 12


def test_kernel_tuner_replays_the_table(table: Table) -> None:
    pytest.importorskip("kernel_tuner")
    draws = table.draws(0)[:, 0]
    tried = rivals.kernel_tuner("genetic_algorithm")(table.space, draws, 0, 20)
    assert 0 < len(set(tried)) == len(tried) <= 20
    assert max(tried) < table.space.size


def test_kernel_tuner_leaves_out_what_a_recording_lacks(table: Table) -> None:
    pytest.importorskip("kernel_tuner")
    held = [setting for setting in table.source.settings if setting != Setting(1, 2)]
    space = Space(table.source.geometry, table.source.device, {}, held)
    assert space.size == len(held) == table.space.size - 1
    draws = np.linspace(0.0, 0.1, space.size)
    tried = rivals.kernel_tuner("genetic_algorithm")(space, draws, 0, 20)
    assert 0 < len(set(tried)) == len(tried) <= 20
    assert max(tried) < space.size
