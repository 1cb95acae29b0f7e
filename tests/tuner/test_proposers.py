"""Proposers: deterministic in what they were told, never the same setting twice."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from mjolnir.kernel.device import H200
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.proposers import Foresight, ProposerError, make
from mjolnir.tuner.proposers.gp import GpProposer
from mjolnir.tuner.proposers.unseen import unseen
from mjolnir.tuner.space import Coordinates, Space, grid
from mjolnir.tuner.uneven import serves

SPACE = Space(Geometry(32, 8), H200)


def loss(coordinates: Coordinates) -> float:
    """A smooth valley over the space."""
    target = (18, 3, 1, 4, 1)
    spans = [len(dimension.values) for dimension in SPACE.dimensions]
    return 1 + sum(((a - b) / span) ** 2 for a, b, span in zip(coordinates, target, spans, strict=True))


@pytest.mark.parametrize("name", ["gp", "tpe", "cmaes", "qmc", "random"])
def test_an_ask_depends_on_what_was_told_not_on_earlier_asks(name: str) -> None:
    busy, fresh = make(name, SPACE, 3), make(name, SPACE, 3)
    rng = np.random.default_rng(0)
    taken: set[Coordinates] = set()
    for number in range(1, 30):
        asked = busy.ask(1, number, taken)
        told = SPACE.random(rng)
        taken |= {asked, told}
        for proposer in (busy, fresh):
            proposer.tell(1, told, None if number % 7 == 0 else loss(told))
        assert all(0 <= place < len(d.values) for place, d in zip(asked, SPACE.dimensions, strict=True))
    assert busy.gain(1, 30, taken) == fresh.gain(1, 30, taken)
    asked = busy.ask(1, 30, taken)
    assert asked == fresh.ask(1, 30, taken)
    assert busy.ask(1, 31, {*taken, asked}) != asked
    assert make(name, SPACE, 4).ask(1, 30, set()) != make(name, SPACE, 3).ask(1, 30, set())


@pytest.mark.parametrize("name", ["tpe", "gp"])
def test_each_bucket_is_learnt_apart(name: str) -> None:
    proposer = make(name, SPACE, 0)
    taken: set[Coordinates] = set()
    rng = np.random.default_rng(1)
    for _ in range(120):
        told = SPACE.random(rng)
        taken.add(told)
        proposer.tell(1, told, loss(told))
        proposer.tell(8, told, 3 - loss(told))
    for number in range(60):  # the star of the Gaussian process
        taken.add(proposer.ask(1, number, taken))
    near = np.mean([loss(proposer.ask(1, number, taken)) for number in range(200, 230)])
    far = np.mean([loss(proposer.ask(8, number, taken)) for number in range(200, 230)])
    anywhere = np.mean([loss(SPACE.random(rng)) for _ in range(300)])
    assert near < 1 + 0.6 * (anywhere - 1)
    assert far > anywhere


def test_tpe_keeps_away_from_failures() -> None:
    proposer = make("tpe", SPACE, 0)
    rng = np.random.default_rng(2)
    good = 0
    for told in (SPACE.random(rng) for _ in range(150)):
        if told[3] >= 4:
            proposer.tell(1, told, None)
        elif good < 8:
            proposer.tell(1, told, 1.0)
            good += 1
    asked = [proposer.ask(1, number, set())[3] for number in range(300, 330)]
    assert np.mean([place >= 4 for place in asked]) < 0.3


def test_a_duplicate_becomes_a_neighbour_then_anything_then_nothing() -> None:
    held = grid(Geometry(32, 8), H200, {"ctas_per_sm": (1, 2), "kv_stages": (2, 4), "pdl": (0, 1)})
    space = Space(Geometry(32, 8), H200, allowed=held)
    rng = np.random.default_rng(0)
    here = space.coordinates(Setting(1, 2))
    assert here is not None
    assert unseen(space, here, set().__contains__, rng) == (here, "")
    found = unseen(space, here, {here}.__contains__, rng)
    assert found is not None
    assert (found[0] in set(space.neighbours(here)), found[1]) == (True, "neighbour")
    taken = {here, *space.neighbours(here)}
    while (found := unseen(space, here, taken.__contains__, rng)) is not None:
        assert found[0] not in taken
        assert found[1] in ("random", "neighbour")
        taken.add(found[0])
    assert len(taken) == space.size == len(held)


def test_an_unknown_proposer_is_named() -> None:
    with pytest.raises(ValueError, match="proposer 'oracle' is unknown; there are gp, tpe, cmaes, qmc"):
        make("oracle", SPACE, 0)


def test_the_star_varies_each_knob_alone_about_the_default() -> None:
    proposer = make("gp", SPACE, 0)
    centre = SPACE.coordinates(SPACE.default)
    assert centre is not None
    star: list[Coordinates] = []
    proposer.tell(1, centre, 1.0)
    while proposer.gain(1, 0, {*star, centre}) is None and len(star) < 40:
        star.append(proposer.ask(1, len(star), {*star, centre}))
        proposer.tell(1, star[-1], 1.0)
    changed = [[axis for axis, place in enumerate(point) if place != centre[axis]] for point in star]
    assert {len(axes) for axes in changed} == {1}
    assert {axes[0] for axes in changed} == set(range(5))
    rings = {SPACE.dimensions[0].values[point[0]] for point in star if point[0] != centre[0]}
    assert {(1, 4, 5), (3, 4, 3), (2, 4, 2), (1, 8, 4), (1, 4, 12)} <= rings
    assert {SPACE.dimensions[1].values[point[1]][0] for point in star if point[1] != centre[1]} == {16, 512}
    assert len(set(star)) == len(star) < 13


def test_what_is_under_way_is_no_reason_to_end_a_search() -> None:
    """Asked far ahead of the device, the star was taken before anything was known of it."""
    proposer, taken = make("gp", SPACE, 0), set[Coordinates]()
    centre = SPACE.coordinates(SPACE.default)
    assert centre is not None
    proposer.tell(1, centre, 1.0)
    taken.add(centre)
    star = []
    for number in range(2, 30):
        asked = proposer.ask(1, number, taken)
        star.append(asked)
        taken.add(asked)
    assert proposer.gain(1, 30, taken) is None
    for asked in star:
        proposer.tell(1, asked, 1.0)
    gain = proposer.gain(1, 30, taken)
    assert gain is not None
    assert gain.optimistic >= 0


def test_what_can_be_no_row_is_not_proposed() -> None:
    proposer = GpProposer(SPACE, 0)
    serving = {
        point: serves(SPACE.setting(point), 64, SPACE.geometry, SPACE.device)
        for point in map(SPACE.member, range(SPACE.size))
    }
    assert 0 < sum(serving.values()) < SPACE.size
    taken = {next(point for point, serves_it in serving.items() if not serves_it)}
    proposer.tell(64, min(taken), 0.9)  # as another bucket may have asked; ahead of whatever could be a row
    for number in range(2, 40):
        asked = proposer.ask(64, number, taken)
        taken.add(asked)
        proposer.tell(64, asked, 1.0)
        gain = proposer.gain(64, number, taken)
        if gain is not None:
            assert serving[proposer.ask(64, number + 1, taken)]
    judged = proposer._judge(64, 40, taken)
    assert judged is not None
    assert all(serving[asked] for asked in judged.settings)


def test_the_process_finds_the_valley_and_knows_when_nothing_is_left() -> None:
    proposer = make("gp", SPACE, 0)
    centre = SPACE.coordinates(SPACE.default)
    assert centre is not None
    taken, best = {centre}, loss(centre)
    proposer.tell(1, centre, best)
    for number in range(2, 90):
        asked = proposer.ask(1, number, taken)
        assert asked not in taken
        taken.add(asked)
        proposer.tell(1, asked, loss(asked))
        best = min(best, loss(asked))
    gain = proposer.gain(1, 90, taken)
    assert gain is not None
    assert best == min(loss(SPACE.member(index)) for index in range(SPACE.size))
    assert 0 <= gain.expected < 0.001
    assert gain.optimistic < 0.01


def test_failures_are_avoided_by_the_process_too() -> None:
    proposer = make("gp", SPACE, 0)
    taken: set[Coordinates] = set()
    for number in range(1, 70):
        asked = proposer.ask(1, number, taken)
        taken.add(asked)
        proposer.tell(1, asked, None if asked[3] >= 4 else 1 + 0.01 * asked[1])
    assert max(proposer.ask(1, number, taken)[3] for number in range(70, 75)) < 4


def test_exhaustive_proposes_everything_once_and_in_order() -> None:
    held = grid(Geometry(32, 8), H200, {"kv_stages": (2, 4), "pdl": (0, 1)})
    space = Space(Geometry(32, 8), H200, allowed=held)
    proposer, taken = make("exhaustive", space, 0), list[Coordinates]()
    for number in range(space.size):
        taken.append(proposer.ask(1, number, set(taken)))
    assert taken == [space.member(index) for index in range(space.size)]


def test_quasi_random_points_cover_every_value_soon() -> None:
    proposer = make("qmc", SPACE, 0)
    asked = [proposer.ask(1, number, set()) for number in range(64)]
    assert [len({point[axis] for point in asked}) for axis in range(5)] == [len(d.values) for d in SPACE.dimensions]


def test_cmaes_moves_to_where_values_are_small() -> None:
    proposer = make("cmaes", SPACE, 0)
    for number in range(160):
        asked = proposer.ask(1, number, set())
        proposer.tell(1, asked, loss(asked))
    late = np.mean([loss(proposer.ask(1, number, set())) for number in range(200, 230)])
    rng = np.random.default_rng(0)
    assert late < 1 + 0.4 * (np.mean([loss(SPACE.random(rng)) for _ in range(300)]) - 1)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cmaes", None)
    with pytest.raises(ProposerError, match="pip install cmaes"):
        make("cmaes", SPACE, 0)


def test_what_is_asked_next_was_foreseen() -> None:
    proposer = make("gp", SPACE, 0)
    assert isinstance(proposer, Foresight)
    taken: set[Coordinates] = set()
    for number in range(1, 60):
        foreseen = proposer.likely(1, number, taken)
        asked = proposer.ask(1, number, taken)
        assert asked in foreseen
        taken.add(asked)
        proposer.tell(1, asked, loss(asked))
    assert 0 < len(foreseen) < 10
    assert not isinstance(make("random", SPACE, 0), Foresight)
