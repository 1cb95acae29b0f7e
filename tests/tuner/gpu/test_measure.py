"""Rounds: rotation, the division by chains, dirty windows, and records that lose nothing."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Mapping, Sequence
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
    """Its clock ticks in whole ns; `throttled` are the looks, counted from 1, that see it throttle."""

    def __init__(self, throttled: Container[int] = ()) -> None:
        self.replayed: list[str] = []
        self.batches: list[int] = []
        self.events: list[str] = []
        self._looks, self._throttled = 0, throttled

    def start(self, graphs: Sequence[Graph]) -> None:
        self.events.append("start")
        self.batches.append(len(graphs))
        self.replayed += [graph.name for graph in graphs if isinstance(graph, Named)]

    def finish(self) -> list[float]:
        self.events.append("finish")
        begin = len(self.replayed) - self.batches[-1]
        cost = {"a": 30_000, "b": 20_000, "empty": 10_000}
        return [cost[name] + begin + place for place, name in enumerate(self.replayed[begin:])]

    def look(self) -> dict[str, Any]:
        self._looks += 1
        self.events.append(f"look {self._looks}")
        return {"look": self._looks, "throttle": ["hw_thermal"] if self._looks in self._throttled else []}


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


@pytest.mark.parametrize(("throttled", "discarded", "dirty"), [((1,), 1, False), ((1, 2, 3), 1, True)])
def test_a_dirty_window_is_taken_again_and_kept_as_data(throttled: Sequence[int], discarded: int, dirty: bool) -> None:
    job = Job((Named("a"),), Named("empty"), 1)
    (block,) = take(Card(throttled), [lambda: job], Policy(attempts=2))
    assert len(block.window["discarded"]) == discarded
    assert "hw_thermal" in block.window["discarded"][0]["dirty"]
    assert bool(block.window["dirty"]) is dirty


def three(card: Card, policy: Policy) -> tuple[list[Block], list[str]]:
    """Two rounds at three points, and in which order these were made ready."""
    ready: list[str] = []

    def at(name: str) -> Job:
        ready.append(name)
        return Job((Named("a"),), Named("empty"), 1)

    return take(card, [partial(at, name) for name in ("first", "second", "third")], policy, rounds=2), ready


def looks(window: Mapping[str, Any]) -> tuple[int, int]:
    return window["before"]["look"], window["after"]["look"]


def test_looks_are_taken_while_replays_run_and_end_the_window_before_as_well() -> None:
    card = Card()
    blocks, ready = three(card, Policy())
    taken = [["start", f"look {number}", "finish"] for number in (1, 2, 3)]
    assert card.events == [*itertools.chain(*taken), "look 4"]
    assert ready == ["first", "second", "third"]
    assert [looks(block.window) for block in blocks] == [(1, 2), (2, 3), (3, 4)]
    assert all(block.window.keys() == {"before", "after", "dirty"} for block in blocks)


def test_dirty_blocks_are_taken_again_after_all_points_and_their_samples_are_kept() -> None:
    card = Card(throttled=(3,))
    blocks, ready = three(card, Policy(attempts=3))
    assert ready == ["first", "second", "third", "second", "third"]
    assert card.events[9:] == ["look 4", "start", "finish", "look 5", "start", "finish", "look 6"]
    assert [looks(block.window) for block in blocks] == [(1, 2), (4, 5), (5, 6)]
    assert [block.window["dirty"] for block in blocks] == [""] * 3
    assert [len(block.window.get("discarded", ())) for block in blocks] == [0, 1, 1]
    for number, block in enumerate(blocks[1:], 2):
        (kept,) = block.window["discarded"]
        assert looks(kept) == (number, number + 1)
        assert "hw_thermal" in kept["dirty"]
        assert (len(kept["samples"][0]), len(kept["empty"])) == (2, 2)
        assert tuple(kept["samples"][0]) != block.samples[0]


def test_a_block_is_taken_as_often_as_the_policy_allows() -> None:
    # The look that saw the third attempt at the second block throttle is also the one before the third's second.
    blocks, ready = three(Card(throttled=(3, 5, 6)), Policy(attempts=3))
    assert ready == ["first", "second", "third", "second", "second", "third", "third"]
    assert [bool(block.window["dirty"]) for block in blocks] == [False, True, False]
    assert [len(block.window.get("discarded", ())) for block in blocks] == [0, 2, 2]
    assert [looks(kept) for kept in blocks[1].window["discarded"]] == [(2, 3), (4, 5)]
    assert looks(blocks[2].window) == (7, 8)


@pytest.mark.parametrize("nanoseconds", [float("nan"), float("inf"), 0.0, -5.0])
def test_a_time_that_is_none_is_no_sample(nanoseconds: float) -> None:
    card = Card()
    card.finish = lambda: [nanoseconds] * card.batches[-1]  # type: ignore[method-assign]
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
