"""Formats: e4m3 against a table of its own values, and the rounding of queries to f16 and to e4m3."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mjolnir.kernel.formats import FORMATS, contract_query, prepare_query, quantise_query, round_query
from mjolnir.kernel.geometry import Geometry

FP8 = FORMATS["fp8"]


def e4m3_value(code: int) -> float:
    """The value of an e4m3fn code, from its bits."""
    sign, exponent, mantissa = (-1.0 if code >> 7 else 1.0), code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    return sign * (mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10))


FINITE = [code for code in range(256) if not math.isnan(e4m3_value(code))]


def nearest(value: float) -> float:
    """The e4m3 value nearest to `value`, of two equally near the one with the even code."""
    best = min(FINITE, key=lambda code: (abs(e4m3_value(code) - value), code & 1))
    return e4m3_value(best)


def test_every_code_has_its_value() -> None:
    values = FP8.dequantise(torch.arange(256, dtype=torch.uint8))
    expected = torch.tensor([e4m3_value(code) for code in range(256)])
    assert torch.equal(values.nan_to_num(nan=1e9), expected.nan_to_num(nan=1e9))
    assert FP8.largest == max(e4m3_value(code) for code in FINITE)


def test_values_are_exact_in_f16() -> None:
    codes = torch.tensor(FINITE, dtype=torch.uint8)
    assert torch.equal(FP8.dequantise(codes, torch.float16).double(), FP8.dequantise(codes, torch.float64))


def test_codes_come_back() -> None:
    codes = torch.tensor(FINITE, dtype=torch.uint8)
    assert torch.equal(FP8.quantise(FP8.dequantise(codes)), codes)


@given(st.floats(-600, 600, width=32))
def test_quantising_takes_the_nearest(value: float) -> None:
    assert FP8.dequantise(FP8.quantise(torch.tensor([value]))).item() == nearest(value)


def test_halves_go_to_the_even_code() -> None:
    values = sorted({e4m3_value(code) for code in FINITE})
    halves = torch.tensor([(low + high) / 2 for low, high in pairwise(values)])
    assert FP8.dequantise(FP8.quantise(halves)).tolist() == [nearest(half) for half in halves.tolist()]


@pytest.mark.parametrize(("value", "code"), [(449.0, 0x7E), (1e9, 0x7E), (-1e9, 0xFE), (math.inf, 0x7E)])
def test_large_values_saturate(value: float, code: int) -> None:
    assert FP8.quantise(torch.tensor([value])).item() == code


def test_half_precision_is_quantised_as_its_value() -> None:
    assert FP8.dequantise(FP8.quantise(torch.tensor([1.0625, 3.1], dtype=torch.bfloat16))).tolist() == [1.0, 3.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_ordinary_queries_are_exact(dtype: torch.dtype) -> None:
    query = torch.randn(7, 128, generator=torch.Generator().manual_seed(1)).add(0.01).to(dtype)
    rows, factor = round_query(query)
    assert rows.dtype == torch.float16
    assert torch.equal(factor, torch.ones(7))
    large = query.abs() >= 2**-14
    assert torch.equal(rows.float()[large], query.float()[large])


@pytest.mark.parametrize(
    ("largest", "factor"),
    [(0.0, 1.0), (32640.0, 1.0), (32768.0, 2.0), (65280.0, 2.0), (65536.0, 4.0), (2.0**127, 2.0**113)],
)
def test_rows_above_the_limit_are_scaled_by_the_least_power_of_two(largest: float, factor: float) -> None:
    query = torch.tensor([[largest, -largest / 2, 0.0], [1.0, 2.0, 3.0]], dtype=torch.bfloat16)
    rows, factors = round_query(query)
    assert factors.tolist() == [factor, 1.0]
    assert rows.abs().amax() < 2**15
    assert torch.equal(rows.double() * factors[:, None].double(), query.double())


@given(st.lists(st.floats(-(2.0**120), 2.0**120, width=32), min_size=4, max_size=4))
def test_scaled_rows_lose_only_what_f16_cannot_hold(values: list[float]) -> None:
    query = torch.tensor([values], dtype=torch.bfloat16)
    rows, factor = round_query(query)
    error = (rows.double() * factor.double() - query.double()).abs()
    assert (error <= 2.0**-25 * factor.double()).all()


EIGHT = Geometry(4, 2, q_len=3, q_format="fp8")


def queries(seed: int = 0, geometry: Geometry = EIGHT) -> torch.Tensor:
    shape = 2 * geometry.q_len, geometry.heads_q, geometry.head_dim
    return (3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).bfloat16()


def test_an_fp8_query_has_one_scale_for_each_sequence_and_head() -> None:
    q = queries()
    values, scale = quantise_query(q, EIGHT)
    assert values.dtype == torch.float16
    assert scale.shape == (6, 4)
    for sequence in range(2):
        for head in range(2):
            rows = slice(3 * sequence, 3 * sequence + 3), slice(2 * head, 2 * head + 2)
            own = q[rows].float().abs().max() / torch.tensor(448.0)
            assert (scale[rows] == own).all()
            assert values[rows].abs().max() == 448
            wanted = [nearest(float(x)) for x in (q[rows].float() / own).flatten()[:200]]
            assert values[rows].flatten()[:200].tolist() == wanted


@pytest.mark.parametrize("value", [0.36328125, 0.7265625, 1.453125])
def test_codes_come_from_two_divisions(value: float) -> None:
    """With an amax of 1.9375 these lie so close to a tie that a reciprocal in the place of a division shows."""
    q = torch.zeros(1, 1, 128, dtype=torch.float16)
    q[0, 0, :2] = torch.tensor([1.9375, value])
    values, scale = quantise_query(q, Geometry(1, 1, q_format="fp8"))
    divided = np.float32(1.9375) / np.float32(448)
    assert scale.item() == divided
    wanted = nearest(float(np.float32(value) / divided))
    assert values[0, 0, :2].tolist() == [448, wanted]
    assert wanted != nearest(float(np.float32(value) * (np.float32(448) / np.float32(1.9375))))


def test_an_fp8_query_of_zeros_or_next_to_nothing_is_scaled_by_the_floor() -> None:
    q = torch.zeros(6, 4, 128, dtype=torch.bfloat16)
    q[0, 0, 0] = 2.0**-30
    values, scale = quantise_query(q, EIGHT)
    assert (scale == torch.tensor(1e-6) / torch.tensor(448.0)).all()
    assert values[0, 0, 0] == nearest(2.0**-30 / scale[0, 0].item())
    assert (values.flatten()[1:] == 0).all()


def test_factors_of_q_come_before_its_rounding() -> None:
    q, q_mul = queries(), torch.full((4, 128), 0.3)
    for geometry, rule in ((EIGHT, lambda x: quantise_query(x, EIGHT)), (Geometry(4, 2, q_len=3), round_query)):
        for made, wanted in zip(prepare_query(q, q_mul, geometry), rule(q.float() * q_mul), strict=True):
            assert torch.equal(made, wanted)
        exact = contract_query(q, q_mul, geometry, torch.float64)
        values, factor = prepare_query(q, q_mul, geometry)
        assert torch.equal(exact, values.double() * factor.double()[..., None])
        assert not torch.equal(exact, q.double() * q_mul.double())


def test_a_native_query_is_what_it_is() -> None:
    q = torch.full((6, 4, 128), 2.0**-30, dtype=torch.bfloat16)
    assert torch.equal(contract_query(q, None, Geometry(4, 2, q_len=3), torch.float64), q.double())


@given(st.integers(0, 1000), st.floats(2.0**-10, 2.0**60))
def test_an_fp8_query_is_off_by_a_sixteenth_of_its_value_at_most(seed: int, gain: float) -> None:
    q = (queries(seed).float() * gain).bfloat16()
    exact = contract_query(q, None, EIGHT, torch.float64)
    scale = quantise_query(q, EIGHT)[1].double()[..., None]
    assert ((exact - q.double()).abs() <= q.double().abs() * (1 / 16 + 2e-7) + scale * 2.0**-10).all()
