"""The runner on the CPU, with the launch functions replaced: what would be launched, on what, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.runner import Runner
from tests.fakes import launches as fake
from tests.fakes.launches import Launches

GEOMETRY = Geometry(8, 2, page_size=16)
DRAFT = Geometry(8, 2, page_size=16, q_len=4)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    return fake.install(monkeypatch)


def attend(given: dict[str, Any]) -> None:
    """Leave three times the query in the output."""
    with torch.inference_mode():  # a kernel knows of no such mode
        given["out"].copy_(given["query"] * 3)


def test_plain_arguments_reach_the_kernel_as_they_are(launches: Launches) -> None:
    runner = fake.runner(GEOMETRY)
    given = fake.arguments(GEOMETRY, 3)
    runner.run(**given)
    (seen,) = launches.layers
    for name, launched in (("query", "query"), ("k_cache", "k_cache"), ("v_cache", "v_cache"), ("out", "out")):
        assert seen[launched] is given[name]
    assert seen["table"] is given["block_table"]
    assert seen["lengths"] is given["seq_lens"]
    assert seen["k_scale"].shape == (3, 2)
    assert seen["k_scale"].stride() == (0, 0)
    assert seen["scale"] == pytest.approx(128**-0.5 * 1.4426950408889634)


def test_the_runners_own_buffers_fit_the_launch(launches: Launches) -> None:
    runner = fake.runner(DRAFT, max_batch=5)
    runner.plan(torch.zeros(3, dtype=torch.int32), margin=2)
    runner.run(**fake.arguments(DRAFT, 3))
    (seen,), (plan,) = launches.layers, launches.plans
    grid, rows = runner.grid, runner.engine.rows
    assert seen["cuts"].shape == (grid + 1, 4)
    assert seen["partial"].shape == (2 * grid, rows, 128)
    assert seen["partial_lse"].shape == (2 * grid, rows)
    assert seen["counters"].shape == (4 * grid,)
    assert seen["tiles"].shape == (3,)
    assert seen["lse"].shape == (12, 8)
    assert seen["q_mul"].shape == seen["o_mul"].shape == (8, 128)
    for name in ("cuts", "tiles", "counters"):
        assert plan[name].data_ptr() == seen[name].data_ptr()
        assert plan[name].shape == seen[name].shape
    assert {name: plan[name] for name in fake.PLAN_NAMES[4:]} == {
        "items_per_sequence": 2 * runner.engine.blocks, "max_splits": 0, "capacity": 256, "margin": 2,
    }  # fmt: skip


def test_row_blocks_count_as_items(launches: Launches) -> None:
    runner = fake.runner(Geometry(32, 2, q_len=4), engine="warp")
    runner.plan(torch.zeros(3, dtype=torch.int32))
    assert (runner.engine.name, runner.engine.rows, runner.engine.blocks) == ("warp", 16, 4)
    assert launches.plans[0]["items_per_sequence"] == 2 * 4


def test_the_second_call_makes_no_view_and_no_check(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = fake.runner(GEOMETRY)
    given = fake.arguments(GEOMETRY, 3)
    for name in ("k_cache", "v_cache"):
        given[name] = given[name].view(torch.float8_e4m3fn)
    given["out"] = torch.zeros(5, 1024, dtype=torch.bfloat16)
    runner.run(**given)
    monkeypatch.setattr("mjolnir.kernel.call.check_views", lambda *_: pytest.fail("checked again"))
    monkeypatch.setattr("mjolnir.kernel.binding.View.of", lambda *_: pytest.fail("made again"))
    runner.run(**given)
    first, second = launches.layers
    assert all(first[name] is second[name] for name in fake.NAMES if name != "scale")
    assert second["k_cache"].dtype == torch.uint8
    assert second["out"].shape == (3, 8, 128)


def test_a_tensor_that_changed_in_place_is_checked_anew(launches: Launches) -> None:
    runner = fake.runner(GEOMETRY)
    given = fake.arguments(GEOMETRY, 3)
    runner.run(**given)
    given["query"].resize_(2, 8, 128)
    with pytest.raises(ValueError, match=r"query has shape \(2, 8, 128\)"):
        runner.run(**given)
    assert len(launches.layers) == 1


def test_rows_beyond_the_batch_are_not_touched(launches: Launches) -> None:
    runner = fake.runner(DRAFT, lse=True)
    given = fake.arguments(DRAFT, 3)
    given["query"] = torch.randn(20, 8, 128).to(torch.bfloat16)
    given["out"] = torch.full((20, 8, 128), 7.0, dtype=torch.bfloat16)
    launches.body = attend
    runner.run(**given, lse=torch.zeros(20, 8))
    assert launches.layers[0]["query"].shape == (12, 8, 128)
    assert launches.layers[0]["lse"].shape == (12, 8)
    assert torch.equal(given["out"][:12], given["query"][:12] * 3)
    assert (given["out"][12:] == 7).all()


@pytest.mark.parametrize("offset", [1, 4])
def test_what_tma_cannot_take_is_packed_once_and_unpacked(launches: Launches, offset: int) -> None:
    runner = fake.runner(GEOMETRY)
    bare = runner.workspace_bytes
    given = fake.arguments(GEOMETRY, 3)
    memory = torch.randn(2, 6000).to(torch.bfloat16)
    given["query"] = memory.as_strided((3, 8, 128), (1030, 128, 1), offset)
    given["out"] = memory.as_strided((3, 8, 128), (1030, 128, 1), 6000 + offset)
    before = memory.clone()
    launches.body = attend
    runner.run(**given)
    (seen,) = launches.layers
    assert seen["query"].data_ptr() % 16 == seen["out"].data_ptr() % 16 == 0
    assert torch.equal(given["out"], given["query"] * 3)
    untouched = torch.ones_like(memory, dtype=torch.bool)
    untouched.as_strided((3, 8, 128), (1030, 128, 1), offset + 6000).fill_(False)
    assert torch.equal(memory[untouched], before[untouched])
    assert runner.workspace_bytes == bare + 2 * 2 * 8 * 8 * 128
    runner.run(**given)
    assert launches.layers[1]["query"].data_ptr() == seen["query"].data_ptr()


def test_workspace_is_what_the_formula_says(launches: Launches) -> None:
    runner = fake.runner(DRAFT, max_batch=5)
    grid, rows = runner.grid, runner.engine.rows
    tokens = 5 * 4
    assert runner.workspace_bytes == (
        16 * (grid + 1) + 4 * 5 + 16 * grid + 8 * grid * rows * 129 + 4 * tokens * 8 + 4 * 8 * 128
    )


def test_multipliers_are_handed_on(launches: Launches) -> None:
    runner = fake.runner(GEOMETRY, q_mul=True, o_mul=True)
    q_mul, o_mul = torch.rand(2, 8, 128)
    runner.run(**fake.arguments(GEOMETRY, 2), q_mul=q_mul, o_mul=o_mul)
    assert launches.layers[0]["q_mul"] is q_mul
    assert launches.layers[0]["o_mul"] is o_mul


def test_multipliers_that_begin_oddly_are_refused(launches: Launches) -> None:
    runner = fake.runner(GEOMETRY, q_mul=True)
    odd = torch.rand(8 * 128 + 4)[1:1025].view(8, 128)
    with pytest.raises(ValueError, match=r"q_mul starts at 0x\w+4; it must start at a multiple of 16 bytes"):
        runner.run(**fake.arguments(GEOMETRY, 2), q_mul=odd)


@pytest.mark.parametrize("first", [True, False])
def test_calls_in_and_out_of_inference_mode_mix(launches: Launches, first: bool) -> None:
    launches.body = attend
    runner = fake.runner(GEOMETRY)
    for inside in (first, not first):
        with torch.inference_mode(inside):
            given = fake.arguments(GEOMETRY, 3)
            for name in ("query", "out"):
                given[name] = torch.randn(3, 1027).to(torch.bfloat16)[:, 3:]
        for mode in (True, False):
            with torch.inference_mode(mode):
                runner.run(**given)
            assert torch.equal(given["out"], given["query"] * 3)


def test_two_runners_share_no_buffer(launches: Launches) -> None:
    for runner in (fake.runner(GEOMETRY), fake.runner(GEOMETRY)):
        runner.run(**fake.arguments(GEOMETRY, 2))
    first, second = launches.layers
    for name in ("lse", "cuts", "tiles", "partial", "partial_lse", "counters"):
        assert first[name].untyped_storage().data_ptr() != second[name].untyped_storage().data_ptr()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "float query": ({"query": torch.zeros(3, 8, 128)}, "query is torch.float32"),
    "no query": ({"query": None}, "query is NoneType"),
    "number for a scale": ({"k_scale": 1.0}, "k_scale is float; expected a tensor"),
    "other device": ({"v_scale": torch.ones((), device="meta")}, "v_scale is on meta"),
    "too few rows": ({"out": torch.zeros(2, 8, 128, dtype=torch.bfloat16)}, r"out has shape \(2, 8, 128\)"),
    "expanded out": ({"out": torch.zeros(1, 8, 128, dtype=torch.bfloat16).expand(3, 8, 128)}, "rows that are written"),
    "long lengths": ({"seq_lens": torch.zeros(3, dtype=torch.int64)}, "seq_lens is torch.int64"),
    "no sequences": (
        {"seq_lens": torch.zeros(0, dtype=torch.int32), "block_table": torch.zeros(0, 16, dtype=torch.int32)},
        "a batch of 0",
    ),
    "batch of the table": ({"block_table": torch.zeros(4, 16, dtype=torch.int32)}, r"expected \(3, any\)"),
    "narrow table": ({"block_table": torch.zeros(3, 15, dtype=torch.int32)}, "at least 16 pages a row"),
    "float cache": ({"k_cache": torch.zeros(48, 16, 2, 128)}, "k_cache is torch.float32"),
    "scale shape": ({"k_scale": torch.ones(3)}, r"k_scale has shape \(3,\)"),
    "negative scale": ({"scale": -1.0}, "scale = -1.0 must be above zero"),
    "nan scale": ({"scale": float("nan")}, "scale = nan must be above zero"),
    "lse unasked": ({"lse": torch.zeros(3, 8)}, "lse is given exactly when"),
    "q_mul unasked": ({"q_mul": torch.zeros(8, 128)}, "q_mul is given exactly when"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("warm", [False, True])
def test_wrong_arguments_are_refused_before_anything_is_launched(launches: Launches, case: str, warm: bool) -> None:
    runner = fake.runner(GEOMETRY)
    given = fake.arguments(GEOMETRY, 3)
    if warm:
        runner.run(**given)
    changes, message = WRONG[case]
    for _ in range(2):
        with pytest.raises((ValueError, TypeError), match=message):
            runner.run(**{**given, **changes})
    assert len(launches.layers) == warm


@pytest.mark.parametrize("name", ["lse", "q_mul", "o_mul"])
def test_what_the_runner_was_made_with_must_come(launches: Launches, name: str) -> None:
    runner = fake.runner(GEOMETRY, **{name: True})
    with pytest.raises(ValueError, match=f"{name} is given exactly when the runner was made with {name}=True"):
        runner.run(**fake.arguments(GEOMETRY, 3))


@pytest.mark.parametrize(
    ("seq_lens", "margin", "message"),
    [
        (torch.zeros(0, dtype=torch.int32), 0, "seq_lens holds 0 sequences; this runner plans for 1 to 8"),
        (torch.zeros(9, dtype=torch.int32), 0, "seq_lens holds 9 sequences"),
        (torch.zeros(3), 0, "seq_lens is torch.float32"),
        (torch.zeros(3, dtype=torch.int32), -1, "margin = -1"),
    ],
)
def test_a_plan_of_something_else_is_refused(
    launches: Launches, seq_lens: torch.Tensor, margin: int, message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        fake.runner(GEOMETRY).plan(seq_lens, margin)
    assert not launches.plans


def test_a_plan_may_be_for_a_wider_table(launches: Launches) -> None:
    runner = fake.runner(GEOMETRY)
    lengths = torch.ones(2, dtype=torch.int32)
    runner.plan(lengths, capacity=1024)
    assert launches.plans[0]["capacity"] == 1024
    with pytest.raises(ValueError, match="capacity = 255 is below this runner's 256"):
        runner.plan(lengths, capacity=255)


def test_a_changed_number_of_splits_reaches_the_plan(launches: Launches) -> None:
    runner = fake.runner(GEOMETRY)
    runner.use_splits(4)
    runner.plan(torch.ones(2, dtype=torch.int32))
    assert launches.plans[0]["max_splits"] == 4
    with pytest.raises(ValueError, match="max_splits = 1 is another variant"):
        runner.use_splits(1)


@pytest.mark.parametrize("options", [{"max_batch": 0}, {"max_batch": 8193}])
def test_a_runner_that_is_too_large_is_refused(launches: Launches, options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"max_batch = {options['max_batch']} is not between 1 and 8192"):
        fake.runner(GEOMETRY, **options)


def test_forgetting_forms_only_means_checking_again(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mjolnir.kernel.call.MAX_FORMS", 2)
    runner: Runner = fake.runner(GEOMETRY)
    for batch in (1, 2, 3, 4, 1):
        runner.run(**fake.arguments(GEOMETRY, batch))
    assert len(launches.layers) == 5
    assert len(runner._calls) <= 2
