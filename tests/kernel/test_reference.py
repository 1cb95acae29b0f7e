"""The references: against sums written out, and against each other."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mjolnir.kernel.case import Case
from mjolnir.kernel.case_inputs import make_inputs
from mjolnir.kernel.formats import FORMATS, quantise_query
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.reference import attention_f32, attention_f64
from mjolnir.kernel.tolerance import excess, lse_excess
from tests.kernel.problems import problem

GEOMETRY = Geometry(6, 2, page_size=16)
Attention = Callable[..., tuple[torch.Tensor, torch.Tensor]]
REFERENCES = pytest.mark.parametrize("attention", [attention_f64, attention_f32])


@REFERENCES
def test_one_token_is_its_value(attention: Attention) -> None:
    arguments = problem(GEOMETRY, [1])
    arguments["v_scale"], arguments["k_scale"] = torch.tensor([0.5, 3.0]), torch.tensor(2.0)
    out, lse = attention(**arguments)
    value = FORMATS["fp8"].dequantise(arguments["v"][0, 0], torch.float64)
    key = FORMATS["fp8"].dequantise(arguments["k"][0, 0], torch.float64)
    score = 2 * 128**-0.5 * (arguments["q"][0].double() * key.repeat_interleave(3, 0)).sum(-1)
    assert torch.allclose(out[0].double(), value.repeat_interleave(3, 0) * torch.tensor([0.5] * 3 + [3.0] * 3)[:, None])
    assert torch.allclose(lse[0].double(), score, atol=1e-5)


@REFERENCES
def test_equal_keys_give_the_mean_and_the_logarithm_of_the_count(attention: Attention) -> None:
    arguments = problem(GEOMETRY, [37])
    arguments["q"].zero_()
    out, lse = attention(**arguments)
    values = FORMATS["fp8"].dequantise(arguments["v"].flatten(0, 1)[:37], torch.float64)
    assert torch.allclose(out[0].double(), values.mean(0).repeat_interleave(3, 0), atol=1e-6)
    assert torch.allclose(lse.double(), torch.tensor(math.log(37), dtype=torch.float64))


@REFERENCES
def test_pages_are_taken_in_the_order_of_the_table(attention: Attention) -> None:
    """A permuted pool with a permuted table is the same problem."""
    arguments = problem(GEOMETRY, [100, 35, 1])
    out, lse = attention(**arguments)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(0))
    back = order.argsort()
    table = arguments["block_table"]
    table = torch.where(table >= 0, back[table.long()], 2**31 - 1).to(torch.int32)
    again = {**arguments, "k": arguments["k"][order], "v": arguments["v"][order], "block_table": table}
    assert torch.equal(attention(**again)[0], out)
    assert torch.equal(attention(**again)[1], lse)


@REFERENCES
def test_nothing_seen_is_zero_and_minus_infinity(attention: Attention) -> None:
    arguments = problem(GEOMETRY, [0, 20, 0])
    arguments["seq_lens"][2] = -3
    out, lse = attention(**arguments)
    assert (out[[0, 2]] == 0).all()
    assert (lse[[0, 2]] == -torch.inf).all()
    assert lse[1].isfinite().all()


@REFERENCES
def test_lengths_beyond_the_table_are_clamped(attention: Attention) -> None:
    arguments = problem(GEOMETRY, [48, 48])
    out, lse = attention(**arguments)
    arguments["seq_lens"] += torch.tensor([5, 1_000_000], dtype=torch.int32)
    assert torch.equal(attention(**arguments)[0], out)
    assert torch.equal(attention(**arguments)[1], lse)


@REFERENCES
def test_scales_are_told_apart_by_their_shape(attention: Attention) -> None:
    arguments = problem(GEOMETRY, [20, 33])
    per_head = torch.tensor([0.5, 2.0])
    per_sequence = torch.tensor([[0.5, 2.0], [3.0, 0.25]])
    for name in ("k_scale", "v_scale"):
        by_head = attention(**{**arguments, name: per_head})
        by_sequence = attention(**{**arguments, name: per_sequence})
        one = attention(**{**arguments, name: torch.tensor(0.25)})
        assert torch.equal(by_head[0][0], by_sequence[0][0])
        assert not torch.allclose(by_head[0][1], by_sequence[0][1])
        assert torch.allclose(one[0][1, 3:], by_sequence[0][1, 3:])


BLOCKS = Geometry(6, 2, page_size=16, q_len=4)


def alone(arguments: dict[str, Any], token: int, keys: int) -> dict[str, Any]:
    """The problem of one query token that sees the first `keys` keys."""
    geometry = replace(arguments["geometry"], q_len=1)
    lengths = torch.tensor([keys], dtype=torch.int32)
    return {**arguments, "geometry": geometry, "q": arguments["q"][token : token + 1], "seq_lens": lengths}


@REFERENCES
@pytest.mark.parametrize("length", [1, 3, 4, 5, 40, 64])
def test_a_causal_token_sees_what_came_before_it(attention: Attention, length: int) -> None:
    arguments = problem(BLOCKS, [length])
    out, lse = attention(**arguments)
    for token in range(4):
        one, one_lse = attention(**alone(arguments, token, length - 4 + token + 1))
        assert torch.allclose(out[token], one[0], atol=1e-6)
        assert torch.allclose(lse[token], one_lse[0], atol=1e-5)


@REFERENCES
def test_without_causality_every_token_sees_every_key(attention: Attention) -> None:
    arguments = problem(replace(BLOCKS, causal=False), [3])
    out, lse = attention(**arguments)
    for token in range(4):
        one, one_lse = attention(**alone(arguments, token, 3))
        assert torch.allclose(out[token], one[0], atol=1e-6)
        assert torch.allclose(lse[token], one_lse[0], atol=1e-5)


@REFERENCES
def test_tokens_before_the_first_key_are_zero(attention: Attention) -> None:
    out, lse = attention(**problem(BLOCKS, [2, 0, 30]))
    nothing = torch.tensor([0, 1, 4, 5, 6, 7])
    assert (out[nothing] == 0).all()
    assert (lse[nothing] == -torch.inf).all()
    assert lse[[2, 3, 8, 9, 10, 11]].isfinite().all()


@REFERENCES
def test_an_fp8_query_is_its_codes(attention: Attention) -> None:
    geometry = replace(BLOCKS, q_format="fp8", dtype="f16")
    arguments = problem(geometry, [40, 9], q_mul=True)
    values, scale = quantise_query(arguments["q"].float() * arguments["q_mul"], geometry)
    same = {**arguments, "geometry": replace(geometry, q_format="native"), "q_mul": None}
    out, lse = attention(**arguments)
    for sequence in range(2):
        for head in range(6):
            rows = slice(4 * sequence, 4 * sequence + 4)
            one = attention(**{**same, "q": values, "scale": same["scale"] * scale[4 * sequence, head].item()})
            assert torch.allclose(out[rows, head], one[0][rows, head], atol=1e-6)
            assert torch.allclose(lse[rows, head], one[1][rows, head], atol=1e-5)


@REFERENCES
def test_factors_of_the_output_come_last(attention: Attention) -> None:
    arguments = problem(BLOCKS, [40, 9], o_mul=True)
    plain = attention(**{**arguments, "o_mul": None})
    out, lse = attention(**arguments)
    assert torch.equal(out, plain[0] * arguments["o_mul"])
    assert torch.equal(lse, plain[1])


@pytest.mark.parametrize(
    "geometry",
    [GEOMETRY, BLOCKS, replace(BLOCKS, causal=False), Geometry(16, 1, 256, q_len=16, q_format="fp8", dtype="f16")],
    ids=str,
)
def test_the_f32_reference_agrees_with_f64_whatever_its_budget(geometry: Geometry) -> None:
    arguments = problem(geometry, [700, 1, 0, 64, 333, 16], q_mul=True, o_mul=True)
    exact, exact_lse = attention_f64(**arguments)
    for budget in (1, 300 * 128, 1 << 27):
        out, lse = attention_f32(**arguments, budget=budget)
        assert excess(out, exact, geometry, arguments["o_mul"]) < 0.01
        assert lse_excess(lse, exact_lse) < 0.2


def test_the_f32_reference_refuses_lower_precision() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(RuntimeError, match="highest"):
            attention_f32(**problem(GEOMETRY, [3]))
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("lengths", [(64, 64), (64, 37), (0, 1)], ids=str)
def test_cells_beyond_an_end_may_hold_anything(lengths: tuple[int, ...]) -> None:
    """Both where a group's lengths fill its pages and where they do not."""
    inputs = make_inputs(Case("ends", GEOMETRY, lengths, 1))
    assert inputs.v.view(torch.float8_e4m3fn).float().isnan().any()
    (out, lse), (right, right_lse) = attention_f32(**inputs.arguments()), attention_f64(**inputs.arguments())
    assert excess(out, right, GEOMETRY) <= 1
    assert lse_excess(lse, right_lse) <= 1
