"""Proposers: deterministic in what they were told, never the same setting twice."""

from __future__ import annotations

import numpy as np
import pytest

from mjolnir.kernel.device import H200
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.proposers import make
from mjolnir.tuner.proposers.unseen import unseen
from mjolnir.tuner.space import Coordinates, Space, grid

SPACE = Space(Geometry(32, 8), H200)


def loss(coordinates: Coordinates) -> float:
    """A smooth valley over the space."""
    target = (20, 3, 1, 4, 1)
    spans = [len(dimension.values) for dimension in SPACE.dimensions]
    return 1 + sum(((a - b) / span) ** 2 for a, b, span in zip(coordinates, target, spans, strict=True))


@pytest.mark.parametrize("name", ["tpe", "random"])
def test_an_ask_depends_on_what_was_told_not_on_earlier_asks(name: str) -> None:
    busy, fresh = make(name, SPACE, 3), make(name, SPACE, 3)
    rng = np.random.default_rng(0)
    for number in range(1, 30):
        asked = busy.ask(1, number)
        told = SPACE.random(rng)
        for proposer in (busy, fresh):
            proposer.tell(1, told, None if number % 7 == 0 else loss(told))
        assert all(0 <= place < len(d.values) for place, d in zip(asked, SPACE.dimensions, strict=True))
    assert busy.ask(1, 30) == fresh.ask(1, 30)
    assert busy.ask(1, 31) != fresh.ask(1, 30)
    assert make(name, SPACE, 4).ask(1, 30) != make(name, SPACE, 3).ask(1, 30)


def test_tpe_learns_each_bucket_apart() -> None:
    proposer = make("tpe", SPACE, 0)
    rng = np.random.default_rng(1)
    for _ in range(120):
        told = SPACE.random(rng)
        proposer.tell(1, told, loss(told))
        proposer.tell(8, told, -loss(told))
    near = np.mean([loss(proposer.ask(1, number)) for number in range(200, 230)])
    far = np.mean([loss(proposer.ask(8, number)) for number in range(200, 230)])
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
    asked = [proposer.ask(1, number)[3] for number in range(300, 330)]
    assert np.mean([place >= 4 for place in asked]) < 0.3


def test_a_duplicate_becomes_a_neighbour_then_anything_then_nothing() -> None:
    held = grid(Geometry(32, 8), H200, {"ctas_per_sm": (1, 2), "kv_stages": (2, 4), "pdl": (0, 1)})
    space = Space(Geometry(32, 8), H200, allowed=held)
    rng = np.random.default_rng(0)
    here = space.coordinates(Setting(1, 2))
    assert here is not None
    assert unseen(space, here, set(), rng) == (here, "")
    found = unseen(space, here, {here}, rng)
    assert found is not None
    assert (found[0] in set(space.neighbours(here)), found[1]) == (True, "neighbour")
    taken = {here, *space.neighbours(here)}
    while (found := unseen(space, here, taken, rng)) is not None:
        assert found[0] not in taken
        assert found[1] in ("random", "neighbour")
        taken.add(found[0])
    assert len(taken) == space.size == len(held)


def test_an_unknown_proposer_is_named() -> None:
    with pytest.raises(ValueError, match="proposer 'oracle' is unknown; there are tpe, random"):
        make("oracle", SPACE, 0)
