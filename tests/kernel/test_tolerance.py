"""The tolerance: by hand, with room for what is right whatever the data, and none for NaN or a lost zero."""

from collections.abc import Callable

import pytest
import torch

from mjolnir.kernel.emulator import emulate
from mjolnir.kernel.engine import engine_for
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.plan import make_plan
from mjolnir.kernel.reference import attention_f64
from mjolnir.kernel.tolerance import bound, excess, lse_bound, lse_excess
from tests.kernel.problems import problem

BF16, F16 = Geometry(4, 2), Geometry(4, 2, dtype="f16")


def test_by_hand_on_equal_elements() -> None:
    reference = torch.full((2, 4, 128), -3.0)
    reference[1] *= 2
    for geometry, roundoff in ((BF16, 2.0**-8), (F16, 2.0**-11)):
        one_rounding = bound(reference, geometry)
        assert torch.allclose(one_rounding, (roundoff + 8 * 2.0**-11) * reference.abs(), rtol=1e-4)
        two_roundings = bound(reference.half(), geometry)
        assert torch.allclose(two_roundings, (2 * roundoff + 8 * 2.0**-11) * reference.abs(), rtol=1e-4)


def test_one_flip_of_the_last_bit_is_allowed_between_rounded_outputs() -> None:
    for geometry, dtype in ((BF16, torch.bfloat16), (F16, torch.float16)):
        reference = torch.randn(3, 4, 128, generator=torch.Generator().manual_seed(0)).to(dtype)
        flipped = (reference.view(torch.int16) + 1).view(dtype)
        assert 0 < excess(flipped, reference, geometry) <= 1


def test_channels_that_are_larger_have_a_larger_bound_in_every_row() -> None:
    reference = torch.randn(50, 4, 128, generator=torch.Generator().manual_seed(0))
    reference[..., 7] *= 100
    reference[0, 0, 7] = 0
    plain = 8 * 2.0**-11
    assert bound(reference, F16)[0, 0, 7] > 50 * plain
    assert bound(reference, F16)[0, 0, 8] < 1.5 * plain


def test_rows_of_zeros_are_met_exactly_and_do_not_count() -> None:
    reference = torch.ones(3, 4, 128)
    reference[1] = 0
    assert (bound(reference, BF16)[1] == 0).all()
    assert torch.equal(bound(reference, BF16)[0], bound(reference[:1], BF16)[0])
    assert excess(reference, reference, BF16) == 0
    wrong = reference.clone()
    wrong[1, 2, 3] = 1e-30
    assert excess(wrong, reference, BF16) == torch.inf


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_is_infinitely_wrong(value: float) -> None:
    reference = torch.ones(3, 4, 128)
    wrong = reference.clone()
    wrong[2, 0, 5] = value
    assert excess(wrong, reference, BF16) == torch.inf


def test_excess_is_the_largest_ratio() -> None:
    reference = torch.ones(2, 4, 128)
    wrong = reference.clone()
    wrong[0, 0, 0] += 3 * bound(reference, BF16)[0, 0, 0]
    wrong[1, 3, 9] -= 5 * bound(reference, BF16)[0, 0, 0]
    assert excess(wrong, reference, BF16) == pytest.approx(5, rel=1e-3)


def test_the_log_sum_exp() -> None:
    reference = torch.tensor([-torch.inf, 1.0, 7.0])
    rms = 5.0
    assert lse_bound(reference)[1:].tolist() == pytest.approx([2.0**-16 + rms / 2**18, 2.0**-16 + 7 / 2**18])
    assert lse_excess(reference.clone(), reference) == 0
    off = 3 * lse_bound(reference)[1].item()
    assert lse_excess(torch.tensor([-torch.inf, 1.0 + off, 7.0]), reference) == pytest.approx(3, rel=1e-2)
    for wrong in ([0.0, 1.0, 7.0], [-torch.inf, -torch.inf, 7.0], [-torch.inf, torch.nan, 7.0]):
        assert lse_excess(torch.tensor(wrong), reference) == torch.inf


def outlying_channels(v: torch.Tensor) -> torch.Tensor:
    return v * torch.where(torch.arange(128) % 60 == 3, 60.0, 1.0)


def outlying_channel(v: torch.Tensor) -> torch.Tensor:
    return v * torch.where(torch.arange(128) == 7, 100.0, 1.0)


def outlying_token(v: torch.Tensor) -> torch.Tensor:
    return v * torch.where(torch.arange(64) == 5, 100.0, 1.0)[None, :, None, None]


def outlying_cells(v: torch.Tensor) -> torch.Tensor:
    v = v.clone()
    v[::7, 5, :, 9] = 448
    return v


HOSTILE: dict[str, tuple[float, float, Callable[[torch.Tensor], torch.Tensor]]] = {
    "plain": (1, 1, lambda v: v),
    "peaked": (6, 1, lambda v: v),
    "flat": (1e-3, 1, lambda v: v),
    "large-k": (1, 60, lambda v: v),
    "large-q": (1e4, 1, lambda v: v),
    "mean": (1, 1, lambda v: v + 10),
    "channels": (1, 1, outlying_channels),
    "channel": (1, 1, outlying_channel),
    "token": (1, 1, outlying_token),
    "cells": (1, 1, outlying_cells),
}


QUERIES: dict[str, Geometry] = {
    "bf16": BF16,
    "f16": F16,
    "drafts": Geometry(4, 2, q_len=3, q_format="fp8"),
    "wgmma": Geometry(16, 2, q_len=4, dtype="f16"),
}


@pytest.mark.parametrize("lengths", [[1, 2, 3, 5, 9, 17, 33, 40, 100, 64, 65, 30], [9000]], ids=["short", "long"])
@pytest.mark.parametrize("queries", QUERIES)
@pytest.mark.parametrize("data", HOSTILE)
def test_there_is_room_for_what_is_right(data: str, queries: str, lengths: list[int]) -> None:
    geometry = QUERIES[queries]
    q_gain, k_gain, shape_v = HOSTILE[data]
    q_gain *= 1e26 if data == "large-q" and geometry is BF16 else 1
    arguments = problem(geometry, lengths, 5, q_gain=q_gain, k_gain=k_gain, shape_v=shape_v)
    exact, exact_lse = attention_f64(**arguments)
    capacity, engine = arguments["block_table"].shape[1] * 64, engine_for(geometry, "sm_90a")
    assert (engine.name == "wgmma") == (queries == "wgmma")
    outputs = [
        emulate(plan=make_plan(lengths, 2, 40, splits, capacity=capacity), engine=engine, lse=True, **arguments)
        for splits in (0, 1)
    ]
    for out, lse in outputs:
        assert lse is not None
        assert excess(out, exact, geometry) < 0.9
        assert lse_excess(lse, exact_lse) < 0.9
    assert excess(outputs[0][0], outputs[1][0], geometry) < 0.9


@pytest.mark.parametrize("geometry", [BF16, Geometry(16, 2, q_len=4, dtype="f16")], ids=str)
def test_factors_of_the_output_scale_what_is_allowed(geometry: Geometry) -> None:
    lengths = [300, 5, 0, 77]
    arguments = problem(geometry, lengths, 3)
    spread = torch.logspace(-2, 2, 128).roll(40) * torch.linspace(0.1, 10, geometry.heads_q)[:, None]
    exact, _ = attention_f64(**arguments)
    scaled, _ = attention_f64(**{**arguments, "o_mul": spread})
    allowed = bound(exact, geometry)
    assert torch.allclose(bound(scaled, geometry, spread), allowed * spread, rtol=1e-3, atol=2.0**-24)
    assert (bound(scaled, geometry) > 5 * allowed * spread).any(), "without being told, small channels get too much"
    engine = engine_for(geometry, "sm_90a")
    plan = make_plan(lengths, geometry.heads_kv, 9, capacity=arguments["block_table"].shape[1] * 64)
    out, _ = emulate(plan=plan, engine=engine, **{**arguments, "o_mul": spread})
    assert excess(out, scaled, geometry, spread) < 0.9


def test_channels_that_are_multiplied_by_zero_are_zero() -> None:
    reference = torch.randn(5, 4, 128, generator=torch.Generator().manual_seed(0))
    o_mul = torch.ones(4, 128)
    o_mul[1, :7] = 0
    allowed = bound(reference * o_mul, BF16, o_mul)
    assert allowed.isfinite().all()
    assert (allowed[:, 1, :7] < 1e-38).all()
    assert torch.allclose(allowed[:, 1, 7:], bound(reference, BF16)[:, 1, 7:], rtol=0.1)
