"""Rounds: rotation, the division by chains, dirty windows, and records that lose nothing."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mjolnir.kernel.geometry import Geometry
from mjolnir.tuner.bench import Timing
from mjolnir.tuner.gpu.card import Graph
from mjolnir.tuner.gpu.measure import Block, Job, Policy, TimingError, passes_of, rotated, schedule, sets_of, take
from mjolnir.tuner.gpu.plans import kv_bytes_of
from mjolnir.tuner.workload import DECODE8


class Named:
    def __init__(self, name: str) -> None:
        self.name = name

    def replay(self) -> None:
        pass


class Card:
    """Its clock ticks in whole ns; the first looks may be dirty."""

    def __init__(self, dirty: int = 0) -> None:
        self.replayed: list[str] = []
        self.batches: list[int] = []
        self._looks, self._dirty = 0, dirty

    def time(self, graphs: Sequence[Graph]) -> list[float]:
        self.batches.append(len(graphs))
        begin = len(self.replayed)
        names = [graph.name for graph in graphs if isinstance(graph, Named)]
        self.replayed += names
        cost = {"a": 30_000, "b": 20_000, "empty": 10_000}
        return [cost[name] + begin + place for place, name in enumerate(names)]

    def look(self) -> dict[str, Any]:
        self._looks += 1
        return {"throttle": ["hw_slowdown"] if self._looks <= self._dirty else []}


@given(st.integers(1, 6), st.integers(0, 40))
def test_a_round_has_every_arm_once(count: int, number: int) -> None:
    assert sorted(rotated(count, number)) == list(range(count))


def test_three_arms_meet_in_every_order() -> None:
    assert {tuple(rotated(3, number)) for number in range(6)} == set(itertools.permutations(range(3)))
    assert Counter(rotated(3, number)[0] for number in range(12)) == {0: 4, 1: 4, 2: 4}


def test_the_empty_chain_can_be_taken_in_some_rounds_only() -> None:
    order = schedule(arms=2, rounds=12, empty_every=3)
    assert Counter(order) == {0: 12, 1: 12, 2: 4}
    assert Counter(schedule(2, 12, 1)) == {0: 12, 1: 12, 2: 12}


def test_samples_are_per_chain_and_warmups_are_no_samples() -> None:
    card = Card()
    job = Job((Named("a"), Named("b")), Named("empty"), chains=4)
    (block,) = take(card, [lambda: job], Policy(rounds=6, warmups=2))
    assert card.batches == [6 + 18]
    assert card.replayed[:6] == ["a", "b", "empty"] * 2
    assert [len(arm) for arm in (*block.samples, block.empty)] == [6, 6, 6]
    replays = [(name, place) for place, name in enumerate(card.replayed)][6:]
    assert list(block.samples[0]) == [round((30_000 + place) / 4) for name, place in replays if name == "a"]
    assert list(block.empty) == [round((10_000 + place) / 4) for name, place in replays if name == "empty"]
    assert block.window["dirty"] == ""


def test_every_point_is_readied_right_before_it_is_timed() -> None:
    card = Card()
    ready: list[tuple[str, int]] = []

    def at(name: str) -> Job:
        ready.append((name, len(card.batches)))
        return Job((Named("a"),), Named("empty"), 1)

    blocks = take(card, [lambda: at("first"), lambda: at("second")], Policy(), rounds=3)
    assert ready == [("first", 0), ("second", 1)]
    assert len(blocks) == 2
    assert len(blocks[0].samples[0]) == 3


@pytest.mark.parametrize(("looks", "discarded", "dirty"), [(1, 1, False), (3, 1, True)])
def test_a_dirty_window_is_taken_again_and_kept_as_data(looks: int, discarded: int, dirty: bool) -> None:
    job = Job((Named("a"),), Named("empty"), 1)
    (block,) = take(Card(dirty=looks), [lambda: job], Policy(attempts=2))
    assert len(block.window["discarded"]) == discarded
    assert "hw_slowdown" in block.window["discarded"][0]["dirty"]
    assert bool(block.window["dirty"]) is dirty


def test_only_the_dirty_block_is_taken_again_and_its_samples_are_kept() -> None:
    card = Card()
    looks = iter([[], [], ["hw_thermal"], [], [], []])
    card.look = lambda: {"throttle": next(looks)}  # type: ignore[method-assign]
    ready: list[str] = []

    def at(name: str) -> Job:
        ready.append(name)
        return Job((Named("a"),), Named("empty"), 1)

    points = [partial(at, name) for name in ("first", "second", "third")]
    blocks = take(card, points, Policy(attempts=3), rounds=2)
    # The look that saw the second block throttle is also the one before its second attempt.
    assert ready == ["first", "second", "second", "second", "third"]
    assert [block.window["dirty"] for block in blocks] == [""] * 3
    assert [len(block.window.get("discarded", ())) for block in blocks] == [0, 2, 0]
    kept = blocks[1].window["discarded"][0]
    assert (len(kept["samples"][0]), len(kept["empty"])) == (2, 2)
    assert tuple(kept["samples"][0]) != blocks[1].samples[0]


@pytest.mark.parametrize("nanoseconds", [float("nan"), float("inf"), 0.0, -5.0])
def test_a_time_that_is_none_is_no_sample(nanoseconds: float) -> None:
    card = Card()
    card.time = lambda graphs: [nanoseconds] * len(graphs)  # type: ignore[method-assign]
    with pytest.raises(TimingError, match="a replay of 1 chains took"):
        take(card, [lambda: Job((Named("a"),), Named("empty"), 1)], Policy())


def test_net_takes_off_the_empty_chain_of_the_same_round() -> None:
    assert Block(((30, 31), (20, 22)), (10, 12), {}).net == ((20, 19), (10, 10))
    with pytest.raises(ValueError, match="zip"):
        _ = Block(((30, 31),), (10,), {}).net


@given(st.lists(st.tuples(*[st.integers(1, 10**9)] * 3), min_size=1))
def test_timings_survive_their_record(rounds: list[tuple[int, int, int]]) -> None:
    candidate, baseline, empty = (tuple(column) for column in zip(*rounds, strict=True))
    timing = Timing(3, candidate, baseline, empty, {"dirty": ""})
    assert Timing.from_dict(timing.as_dict()) == timing


def test_sets_and_passes_of_decode8() -> None:
    geometry, policy = Geometry(32, 8), Policy()
    read = [kv_bytes_of(point, geometry) for point in DECODE8.points]
    sets = [sets_of(size, policy) for size in read]
    assert sets == [48, 12, 3, 6, 3, 2, 2, 2]
    assert all(size * count >= 400_000_000 for size, count in zip(read, sets, strict=True))
    assert 5.7e9 < sum(size * count for size, count in zip(read, sets, strict=True)) < 6.2e9
    assert [passes_of(size, count, policy) for size, count in zip(read, sets, strict=True)] == [1, 2, 3, 3, 3, 3, 1, 2]
