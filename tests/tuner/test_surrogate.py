"""The surrogate: its gradient, what it interpolates, and the features that it sees."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import check_grad
from scipy.stats import norm

from mjolnir.kernel.device import H200
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting, knob
from mjolnir.tuner import surrogate
from mjolnir.tuner.features import STREAM_STEPS, Features
from mjolnir.tuner.runs import planned
from mjolnir.tuner.space import Space
from mjolnir.tuner.surrogate import Array, Belief, Shape, believe, fit
from mjolnir.tuner.workload import DECODE8, Point, uniform

GRID = np.array([[a, b] for a in range(5) for b in range(5)], dtype=float)


def additive(points: Array) -> Array:
    """A sum of what each feature does alone."""
    found: Array = np.array([0.0, 0.3, 0.1, 0.5, 0.2])[points[:, 0].astype(int)] - 0.2 * points[:, 1]
    return found


def test_the_gradient_is_that_of_the_loss() -> None:
    rng = np.random.default_rng(0)
    settings, values = rng.integers(0, 5, (20, 3)).astype(float), rng.normal(size=20)
    near = [surrogate._near(column, column) for column in settings.T]
    for logs in (np.array([0.0, 0.0, 0.0, -4.0]), np.array([1.0, -2.0, 0.5, -3.0])):
        error = check_grad(
            lambda x: surrogate._loss(x, near, values)[0], lambda x: surrogate._loss(x, near, values)[1], logs
        )
        assert error < 1e-4


def test_what_each_feature_does_alone_is_carried_to_their_combinations() -> None:
    star = np.array([point for point in GRID.tolist() if 0.0 in point])
    values = additive(star)
    shape = fit(star, values - values.mean())
    rest = np.array([point for point in GRID.tolist() if 0.0 not in point])
    belief = believe(shape, star, values, np.empty((0, 2)), rest)
    assert np.corrcoef(belief.mean, additive(rest))[0, 1] > 0.95
    assert rest[belief.mean.argmin()].tolist() == rest[additive(rest).argmin()].tolist()


def test_what_is_known_is_believed_and_what_is_pending_takes_doubt_away() -> None:
    told, far = GRID[:6], GRID[-1:]
    shape = Shape(np.ones(2), 1e-6)
    belief = believe(shape, told, additive(told), np.empty((0, 2)), np.concatenate([told, far]))
    assert belief.mean[:6] == pytest.approx(additive(told), abs=1e-3)
    assert belief.deviation[:6].max() < 0.01 < belief.deviation[6]
    waiting = believe(shape, told, additive(told), far, far)
    assert waiting.deviation[0] < 0.01
    assert waiting.mean[0] == pytest.approx(belief.mean[6])


def test_the_best_is_what_is_believed_of_it_not_one_lucky_measurement() -> None:
    told = np.repeat(GRID[:3], 2, axis=0)
    values = np.array([0.0, 0.0, 0.0, -0.3, 0.0, 0.0])
    shape = Shape(np.ones(2), 0.5)
    nothing = np.empty((0, 2))
    belief = believe(shape, told, values, nothing, told)
    assert belief.best == pytest.approx(belief.mean.min())
    assert -0.2 < belief.best < -0.05
    assert believe(Shape(np.ones(2), 1e-6), GRID[:3], values[1::2], nothing, GRID).best == pytest.approx(-0.3, abs=1e-3)


def test_expected_improvement_is_that_of_a_normal_distribution() -> None:
    belief = Belief(np.array([1.0, 0.5]), np.array([0.2, 0.1]), best=0.9)
    draws = 0.9 - (
        np.array([1.0, 0.5]) + np.array([0.2, 0.1]) * norm.ppf(np.linspace(0.00001, 0.99999, 99999))[:, None]
    )
    assert belief.improvement == pytest.approx(np.maximum(draws, 0).mean(axis=0), rel=1e-3)
    assert belief.optimistic_gap(2.0) == pytest.approx(0.9 - 0.5 + 0.2)
    assert Belief(np.array([2.0]), np.array([0.1]), 0.9).optimistic_gap(2.0) == 0.0


def test_what_does_not_count_is_never_the_best() -> None:
    shape, nothing = Shape(np.ones(2), 1e-6), np.empty((0, 2))
    told, values = GRID[::6], np.array([0.3, 0.1, -0.4, 0.2, 0.0])
    counted = np.array([True, True, False, True, True])
    assert believe(shape, told, values, nothing, GRID).best == pytest.approx(-0.4, abs=1e-3)
    assert believe(shape, told, values, nothing, GRID, counted).best == pytest.approx(0.0, abs=1e-3)
    waiting = believe(shape, told, values, GRID[12:13] + 0.01, GRID, np.append(counted, False))
    assert waiting.best == pytest.approx(0.0, abs=1e-3)


def run_of(point: Point, heads: int, grid: int, max_splits: int) -> int:
    """Tiles of the longest run."""
    return planned(point, heads, grid, max_splits)[0]


def test_features_are_steps_of_knobs_and_the_stream_of_the_slowest_sm() -> None:
    space = Space(Geometry(32, 8), H200)
    settings = [Setting(1, 2, max_splits=16), Setting(2, 3, max_splits=0, pdl=1), Setting(1, 12, max_splits=1)]
    settings += [Setting(1, 4), Setting(1, 4, consumer_warps=8)]
    coordinates = [found for setting in settings if (found := space.coordinates(setting))]
    plain = Features(space, None).table(8, coordinates)
    unlimited = len(knob("max_splits").search) - 1
    assert plain[:2].tolist() == [[0, 0, 0, 4, 0, 0, 1], [1, 1, 0, unlimited, 1, 0, 1]]
    assert (plain[4] - plain[3]).tolist() == [0, 0, 1, 0, 0, 0, 0]  # the warps, and nothing else
    whole = Features(space, DECODE8).table(8, coordinates)
    others = [0, 1, 2, 4, 5, 6]
    assert whole[:, others].tolist() == plain[:, others].tolist()
    # 8 sequences x 8 heads of 128 tiles on 132 SMs; unsplit, one CTA streams a whole pair.
    assert run_of(uniform(8, 8192), 8, 132, 1) == 128
    assert whole[2, 7] == pytest.approx(STREAM_STEPS * np.log(128))
    runs = [run_of(uniform(8, 8192), 8, 132 * ctas, splits) for ctas, splits in ((1, 16), (2, 0))]
    assert 8 * 8 * 128 / 132 <= runs[0] < 128
    assert whole[:2, 7] == pytest.approx(STREAM_STEPS * np.log([runs[0], 2 * runs[1]]))


def test_limits_that_give_a_bucket_the_same_plans_are_one() -> None:
    """64 items on 132 CTAs are cut in a few pieces at most: a limit of two already binds no more."""
    space = Space(Geometry(32, 8), H200)
    features = Features(space, DECODE8)
    where = {limit: space.coordinates(Setting(1, 4, max_splits=limit)) for limit in (0, 1, 2, 4, 8, 128)}
    rows = {limit: features.table(8, [found])[0].tolist() for limit, found in where.items() if found}
    plans = {limit: planned(uniform(8, 8192), 8, 132, limit)[1] for limit in rows}
    assert {a for a in rows for b in rows if a < b and rows[a] == rows[b]} == {
        a for a in rows for b in rows if a < b and plans[a] == plans[b]
    }
    assert len({tuple(row) for row in rows.values()}) == len(set(plans.values())) < len(rows)
    assert rows[0] == rows[128] != rows[1]
    alike = {limit: features.alike(found) for limit, found in where.items() if found}
    assert alike[4] != alike[8], "one sequence of 65,536 tokens is cut in more"
    assert Features(space, None).alike(where[4] or ()) != Features(space, None).alike(where[0] or ())


def test_the_stream_counts_the_row_blocks_of_a_head() -> None:
    """128 query rows of a head are two items of 64: the KV that they share is read twice."""
    space = Space(Geometry(64, 8, q_len=16), H200)
    where = space.coordinates(Setting(max_splits=1))
    assert where is not None
    stream = Features(space, DECODE8).table(64, [where])[0, -1]
    longest = run_of(uniform(64, 8192), 2 * 8, 264, 1)
    assert longest == 512  # four items a CTA, and some of the CTAs three
    assert stream == pytest.approx(STREAM_STEPS * np.log(2 * longest))
