"""Inputs for timing: of the right shape, and normal numbers to the eye."""

import pytest
import torch

from mjolnir.kernel.formats import FORMATS
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.layouts import placement_of
from mjolnir.kernel.reference import attention_f64
from mjolnir.kernel.timing import random_inputs


def test_inputs_have_the_shape_that_was_asked_for() -> None:
    inputs = random_inputs(Geometry(6, 2, page_size=16, q_len=3, dtype="f16"), 2, 100, "BHN2D", 0, device="cpu")
    assert inputs.q.shape == (6, 6, 128)
    assert inputs.q.dtype == torch.float16
    assert inputs.k.shape == (14, 16, 2, 128)
    assert sorted(inputs.block_table.flatten().tolist()) == list(range(14))
    assert inputs.seq_lens.tolist() == [100, 100]
    out, lse = attention_f64(**inputs.arguments())
    assert out.isfinite().all()
    assert lse.isfinite().all()


@pytest.mark.parametrize("layout", ["BHN2D", "2BNHD"])
def test_codes_are_those_of_normal_numbers(layout: str) -> None:
    inputs = random_inputs(Geometry(4, 4), 2, 1000, layout, 1, device="cpu")
    for part in (inputs.k, inputs.v):
        values = FORMATS["fp8"].dequantise(part, torch.float64)
        assert abs(values.mean().item()) < 0.01
        assert abs(values.std().item() - 1) < 0.02
        assert 2 < values.abs().max().item() < 4
        assert abs((values.abs() < 0.6745).double().mean().item() - 0.5) < 0.03
    assert not torch.equal(inputs.k, inputs.v)
    channels = FORMATS["fp8"].dequantise(inputs.k).flatten(0, 2)
    assert torch.corrcoef(channels.T).fill_diagonal_(0).abs().max() < 0.1


def test_a_seed_gives_the_same_inputs_and_another_others() -> None:
    one, two, other = (random_inputs(Geometry(2, 1), 1, 128, "BHN2D", seed, device="cpu") for seed in (3, 3, 4))
    for name in ("q", "cache", "block_table"):
        assert torch.equal(getattr(one, name), getattr(two, name))
    assert not torch.equal(one.cache, other.cache)


@pytest.mark.parametrize("token_major", [False, True])
def test_the_memory_order_can_be_chosen(token_major: bool) -> None:
    inputs = random_inputs(Geometry(4, 2), 1, 200, "BHN2D", 0, token_major=token_major, device="cpu")
    assert placement_of(inputs.k, inputs.v).layout == ("token-major" if token_major else "head-major")
