"""The plan: its rule stated a second time by brute force, and what follows from the rule."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mjolnir.kernel.plan import Chunk, Plan, make_plan, planned_tiles, run_length

CAPACITY = 1 << 20
lengths = st.lists(st.one_of(st.integers(0, 200), st.integers(0, 20_000)), min_size=1, max_size=12)
heads = st.integers(1, 5)
grids = st.integers(1, 300)
splits = st.one_of(st.just(0), st.integers(1, 12), st.just(512))


def brute_force_run(per_item: list[int], grid: int, max_splits: int) -> Fraction:
    """The length of a run, in words: of all lengths at which runs end with items, the one that may be taken."""
    equal, longest = Fraction(sum(per_item), grid), max(per_item)
    if longest < equal:
        run = Fraction(next(k for k in range(1, len(per_item) + 1) if k * longest >= equal) * longest)
        return run if run <= equal * 9 / 8 else equal
    # the most equal chunks of the longest item that are no shorter than an equal run
    filling = next(n for n in range(longest * grid, 0, -1) if Fraction(longest, n) >= equal)
    allowed = min(filling, max_splits or filling)
    run = Fraction(longest, allowed)
    return run if run <= equal * 9 / 8 or (allowed < filling and set(per_item) == {longest}) else equal


def brute_force_cuts(tiles: list[int], heads_kv: int, grid: int, max_splits: int) -> list[tuple[int, int]]:
    """The rule in words, over a list of every tile and every place where a cut may lie."""
    per_item = [count for count in tiles for _ in range(heads_kv)]
    line = [(item, tile) for item, count in enumerate(per_item) for tile in range(count)]
    run = brute_force_run(per_item, grid, max_splits)
    cuts = []
    for cut in range(grid):
        place = int(cut * run)
        if place >= len(line):
            cuts.append((len(per_item), 0))
            continue
        item, tile = line[place]
        count = per_item[item]
        grain = -(-count // max_splits) if max_splits else 1
        allowed = [*range(0, count, grain), count]
        best = min(allowed, key=lambda place: (abs(place - tile), place))
        cuts.append((item + 1, 0) if best == count else (item, best))
    return [*cuts, (len(per_item), 0)]


def run_lengths(plan: Plan) -> list[int]:
    runs = Counter(dict.fromkeys(range(len(plan.cuts) - 1), 0))
    for chunk in plan.chunks():
        runs[chunk.cta] += chunk.last - chunk.first
    return [runs[cta] for cta in range(len(plan.cuts) - 1)]


@given(lengths, heads, grids, splits)
@example([0], 1, 1, 0)
@example([65536] + [4096] * 31, 2, 264, 0)
@example([8192] * 8, 2, 132, 0)
@example([8192] * 8, 2, 132, 3)
@example([640] * 12, 5, 7, 0)
def test_cuts_are_those_of_the_rule(lengths: list[int], heads_kv: int, grid: int, max_splits: int) -> None:
    plan = make_plan(lengths, heads_kv, grid, max_splits, capacity=CAPACITY)
    assert list(plan.tiles) == [max(1, -(-length // 64)) for length in lengths]
    assert list(plan.cuts) == brute_force_cuts(list(plan.tiles), heads_kv, grid, max_splits)


@given(lengths, heads, grids, splits)
def test_every_tile_is_read_once(lengths: list[int], heads_kv: int, grid: int, max_splits: int) -> None:
    plan = make_plan(lengths, heads_kv, grid, max_splits, capacity=CAPACITY)
    read = [(chunk.item, tile) for chunk in plan.chunks() for tile in range(chunk.first, chunk.last)]
    assert read == [(item, tile) for item in range(plan.items) for tile in range(plan.tiles[item // heads_kv])]
    assert all(chunk.first < chunk.last for chunk in plan.chunks())
    assert [chunk.cta for chunk in plan.chunks()] == sorted(chunk.cta for chunk in plan.chunks())


@given(lengths, heads, grids, splits)
def test_cuts_ascend(lengths: list[int], heads_kv: int, grid: int, max_splits: int) -> None:
    plan = make_plan(lengths, heads_kv, grid, max_splits, capacity=CAPACITY)
    assert len(plan.cuts) == grid + 1
    assert plan.cuts[0] == (0, 0)
    assert plan.cuts[-1] == (plan.items, 0)
    assert all(low <= high for low, high in pairwise(plan.cuts))
    assert all(item == plan.items or 0 <= tile < plan.tiles[item // heads_kv] for item, tile in plan.cuts)


@given(lengths, heads, grids, splits.filter(bool))
def test_no_item_is_in_more_chunks_than_allowed(lengths: list[int], heads_kv: int, grid: int, max_splits: int) -> None:
    plan = make_plan(lengths, heads_kv, grid, max_splits, capacity=CAPACITY)
    assert max(Counter(chunk.item for chunk in plan.chunks()).values()) <= max_splits


@given(lengths, heads, grids)
def test_one_split_means_cuts_at_item_borders_and_no_partials(lengths: list[int], heads_kv: int, grid: int) -> None:
    plan = make_plan(lengths, heads_kv, grid, 1, capacity=CAPACITY)
    assert all(tile == 0 for _, tile in plan.cuts)
    assert all(chunk.slot is None for chunk in plan.chunks())


@given(lengths, heads, grids)
def test_free_cuts_leave_no_run_longer_than_9_8_of_its_share(lengths: list[int], heads_kv: int, grid: int) -> None:
    """And up to where the line ends, runs differ by one tile at most."""
    plan = make_plan(lengths, heads_kv, grid, 0, capacity=CAPACITY)
    runs = run_lengths(plan)
    share = Fraction(sum(plan.tiles) * heads_kv, grid)
    assert max(runs) < share * 9 / 8 + 1
    full = runs[: 1 + max(cta for cta, run in enumerate(runs) if run)]
    assert max(full[:-1], default=full[-1]) - min(full[:-1], default=full[-1]) <= 1
    assert full[-1] <= max(runs)


@given(lengths, heads, grids, splits)
def test_a_run_is_at_most_a_grain_off_its_length(lengths: list[int], heads_kv: int, grid: int, max_splits: int) -> None:
    """Each of a run's two cuts moves by half a grain at most, and its ideal length is rounded."""
    plan = make_plan(lengths, heads_kv, grid, max_splits, capacity=CAPACITY)
    grain = max(-(-count // max_splits) if max_splits else 1 for count in plan.tiles)
    total, items = sum(plan.tiles) * heads_kv, len(plan.tiles) * heads_kv
    length = Fraction(*run_length(total, max(plan.tiles), items, grid, max_splits))
    assert all(run - length < 1 + grain // 2 * 2 for run in run_lengths(plan))
    busy = [run for cta, run in enumerate(run_lengths(plan)) if (cta + 1) * length <= total]
    assert all(length - run < 1 + grain // 2 * 2 for run in busy)


@given(st.integers(1, 300), st.integers(1, 12), heads, grids, splits)
def test_equal_lengths_give_one_chunk_a_run_or_whole_items(
    tiles: int, batch: int, heads_kv: int, grid: int, max_splits: int
) -> None:
    """Where that costs at most an eighth, or where max_splits allows no more chunks."""
    items = batch * heads_kv
    length, pieces = run_length(tiles * items, tiles, items, grid, max_splits)
    chunks = list(make_plan([64 * tiles] * batch, heads_kv, grid, max_splits, capacity=CAPACITY).chunks())
    by_item, by_cta = Counter(chunk.item for chunk in chunks), Counter(chunk.cta for chunk in chunks)
    if (length, pieces) == (tiles * items, grid) and items % grid:
        return  # runs of equal length, whatever they cross
    assert pieces == 1 or length == tiles
    if pieces == 1:
        assert set(by_item.values()) == {1}
        assert set(list(by_cta.values())[:-1]) <= {length // tiles}
    elif not max_splits and pieces <= tiles:
        assert set(by_item.values()) == {pieces}
        assert set(by_cta.values()) == {1}
    else:
        assert max(by_item.values()) <= (max_splits or tiles)


@pytest.mark.parametrize(
    ("total", "longest", "items", "grid", "max_splits", "run"),
    [
        (8 * 8 * 128, 128, 64, 132, 0, (128, 2)),  # 62 tiles are equal, half an item is 64
        (8 * 8 * 128, 128, 64, 264, 0, (128, 4)),
        (8 * 8 * 128, 128, 64, 264, 3, (128, 3)),  # limited by max_splits, and all are as long
        (8 * 8 * 128, 128, 64, 264, 1, (128, 1)),
        (8 * 64, 64, 8, 264, 0, (64, 33)),
        (8 * 64, 64, 8, 264, 16, (64, 16)),
        (8 * 64 * 128, 128, 512, 264, 0, (256, 1)),  # 248.2 are equal, two items are 256
        (8 * 128 * 32, 32, 1024, 264, 0, (128, 1)),
        (8 * 32 * 64, 64, 256, 132, 0, (128, 1)),
        (8 * 32 * 64, 64, 256, 200, 0, (16384, 200)),  # 81.9 are equal, two items would be 128
        (64 * 10, 10, 64, 63, 0, (640, 63)),  # two items would be twice as much
        (64 * 10, 10, 64, 64, 0, (10, 1)),
        (8 * (1024 + 31 * 64), 1024, 256, 264, 0, (1024, 11)),  # 91.2 are equal, an eleventh is 93.1
        (8 * (1024 + 31 * 64), 1024, 256, 264, 8, (24064, 264)),  # an eighth is 128, and the others are shorter
        (18, 9, 2, 5, 0, (18, 5)),  # 3.6 are equal, half an item is 4.5
        (18, 9, 2, 5, 2, (18, 5)),  # and max_splits is not what limits it
    ],
)
def test_run_lengths_by_value(
    total: int, longest: int, items: int, grid: int, max_splits: int, run: tuple[int, int]
) -> None:
    assert run_length(total, longest, items, grid, max_splits) == run


def test_an_eighth_more_is_allowed_and_no_tile_beyond() -> None:
    """Runs of 8 tiles that may be 9 long, so that they hold an item of nine, but not of ten."""
    assert run_length(8 * 90, 9, 80, 90, 0) == (9, 1)
    assert run_length(8 * 100, 10, 80, 100, 0) == (800, 100)
    assert run_length(8 * 90, 3, 240, 90, 0) == (9, 1)  # three items
    assert run_length(8 * 100, 5, 160, 100, 0) == (800, 100)  # two would be ten tiles


@given(lengths, heads, grids, splits)
def test_partials_have_slots_of_their_own(lengths: list[int], heads_kv: int, grid: int, max_splits: int) -> None:
    plan = make_plan(lengths, heads_kv, grid, max_splits, capacity=CAPACITY)
    chunks = list(plan.chunks())
    slots = [chunk.slot for chunk in chunks if chunk.slot is not None]
    assert len(slots) == len(set(slots))
    assert all(0 <= slot < 2 * grid for slot in slots)
    per_item = Counter(chunk.item for chunk in chunks)
    for chunk in chunks:
        assert (chunk.slot is None) == (per_item[chunk.item] == 1)
        if chunk.slot is not None:
            first = next(other.item for other in chunks if other.cta == chunk.cta)
            assert chunk.slot == 2 * chunk.cta + (chunk.item != first)


def test_a_plan_by_hand() -> None:
    """Two items of five tiles and two of one on four CTAs: twelve tiles, three each."""
    plan = make_plan([300, 1], 2, 4, 0, capacity=CAPACITY)
    assert plan.cuts == ((0, 0), (0, 3), (1, 1), (1, 4), (4, 0))
    assert list(plan.chunks()) == [
        Chunk(0, 0, 0, 3, 0),
        Chunk(1, 0, 3, 5, 2),
        Chunk(1, 1, 0, 1, 3),
        Chunk(2, 1, 1, 4, 4),
        Chunk(3, 1, 4, 5, 6),
        Chunk(3, 2, 0, 1, None),
        Chunk(3, 3, 0, 1, None),
    ]


@pytest.mark.parametrize(
    ("length", "capacity", "margin", "tiles"),
    [(0, 640, 0, 1), (0, 640, 100, 1), (-5, 640, 0, 1), (1, 640, 0, 1), (64, 640, 0, 1), (65, 640, 0, 2),
     (60, 640, 5, 2), (9999, 640, 0, 10), (640, 640, 64, 10), (100, 0, 0, 1)],
)  # fmt: skip
def test_planned_tiles(length: int, capacity: int, margin: int, tiles: int) -> None:
    assert planned_tiles(length, capacity, margin) == tiles


def test_equal_plans_are_aliases() -> None:
    plans = [make_plan([500, 70], 2, 6, splits, capacity=CAPACITY) for splits in (0, 512, 1)]
    assert plans[0].digest() == plans[1].digest()
    assert plans[0].digest() != plans[2].digest()
    assert len(plans[0].digest()) == 16


def test_more_ctas_than_tiles_leave_empty_runs() -> None:
    plan = make_plan([10, 0], 1, 5, 0, capacity=CAPACITY)
    assert sorted(run_lengths(plan)) == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(("lengths", "heads_kv", "grid"), [([], 1, 1), ([1], 0, 1), ([1], 1, 0)])
def test_nothing_to_plan_is_refused(lengths: list[int], heads_kv: int, grid: int) -> None:
    with pytest.raises(ValueError, match="a plan needs sequences, heads and CTAs"):
        make_plan(lengths, heads_kv, grid, capacity=CAPACITY)
