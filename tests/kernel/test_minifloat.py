"""Formats of a few bits, against their values written out, and NVFP4."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mjolnir.kernel.formats import FORMATS, dequantise_nvfp4, quantise_nvfp4
from mjolnir.kernel.minifloat import E2M1, E2M3, E3M2, MiniFloat

NAMED = {"e2m3": E2M3, "e3m2": E3M2, "e2m1": E2M1}
MAGNITUDES = {
    "e2m1": [0, 0.5, 1, 1.5, 2, 3, 4, 6],
    "e2m3": [i / 8 for i in range(16)] + [2 + i / 4 for i in range(8)] + [4 + i / 2 for i in range(8)],
    "e3m2": [i / 16 for i in range(8)] + [(4 + i) * 2.0**e for e in range(-3, 3) for i in range(4)],
}
FORMAT = pytest.mark.parametrize("name", NAMED)


@FORMAT
def test_every_code_has_its_value(name: str) -> None:
    mini, values = NAMED[name], MAGNITUDES[name]
    codes = torch.arange(1 << mini.bits, dtype=torch.uint8)
    assert mini.decode(codes).tolist() == [*values, *(-value for value in values)]
    assert mini.largest == values[-1]
    assert FORMATS[name].bits == mini.bits == {"e2m3": 6, "e3m2": 6, "e2m1": 4}[name]


@FORMAT
def test_codes_come_back_but_minus_zero(name: str) -> None:
    mini = NAMED[name]
    codes = torch.arange(1 << mini.bits, dtype=torch.uint8)
    minus_zero = 1 << (mini.bits - 1)
    assert torch.equal(mini.encode(mini.decode(codes).float()), torch.where(codes == minus_zero, 0, codes))
    tiny = torch.tensor([-0.0, -1e-30, -mini.magnitudes()[1].item() / 2.001])
    assert mini.encode(tiny).tolist() == [0, 0, 0]


@FORMAT
@given(value=st.floats(-1e3, 1e3, width=32))
def test_quantising_takes_the_nearest_and_saturates(name: str, value: float) -> None:
    given_back = FORMATS[name].dequantise(FORMATS[name].quantise(torch.tensor([value]))).item()
    distances = [abs(magnitude - abs(value)) for magnitude in MAGNITUDES[name]]
    assert abs(abs(given_back) - abs(value)) == min(distances)
    assert given_back == 0 or (given_back < 0) == (value < 0)
    assert math.copysign(1, given_back) > 0 or given_back < 0


@FORMAT
def test_ties(name: str) -> None:
    """To the smaller magnitude in e2m3, to the even code in the others."""
    for code, (low, high) in enumerate(pairwise(MAGNITUDES[name])):
        wanted = code if name == "e2m3" or code % 2 == 0 else code + 1
        half = torch.tensor([(low + high) / 2])
        sign = 1 << (NAMED[name].bits - 1)
        assert NAMED[name].encode(half).item() == wanted
        assert NAMED[name].encode(-half).item() == (wanted + sign if wanted else 0)


def test_infinity_saturates() -> None:
    for name, mini in NAMED.items():
        codes = FORMATS[name].quantise(torch.tensor([math.inf, -math.inf]))
        assert FORMATS[name].dequantise(codes).tolist() == [mini.largest, -mini.largest]


def test_every_e2m3_value_is_exact_in_e4m3_and_its_byte_is_e2m3_times_2_to_the_minus_6() -> None:
    codes = torch.arange(64, dtype=torch.uint8)
    values = E2M3.decode(codes).float()
    assert torch.equal(FORMATS["fp8"].dequantise(FORMATS["fp8"].quantise(values)), values)
    shaped = (codes & 0x20) << 2 | codes & 0x1F
    assert torch.equal(FORMATS["fp8"].dequantise(shaped) * 64, values)


def test_other_formats_can_be_made() -> None:
    assert MiniFloat(1, 1, bias=0).magnitudes().tolist() == [0, 1, 2, 3]


def test_nvfp4_by_hand() -> None:
    values = torch.zeros(1, 32)
    values[0, :3] = torch.tensor([12.0, -5.1, 0.4])
    codes, scales = quantise_nvfp4(values)
    assert FORMATS["fp8"].dequantise(scales).tolist() == [[2.0, 0.0]]
    assert dequantise_nvfp4(codes, scales)[0, :4].tolist() == [12, -6, 0, 0]
    assert (codes[0, 16:] == 0).all()


@given(st.integers(0, 10_000), st.floats(2.0**-6, 64))
def test_nvfp4_is_off_by_a_step_of_its_block_at_most(seed: int, gain: float) -> None:
    values = gain * torch.randn(3, 64, generator=torch.Generator().manual_seed(seed))
    codes, scales = quantise_nvfp4(values)
    assert (codes.shape, scales.shape) == ((3, 64), (3, 4))
    back = dequantise_nvfp4(codes, scales)
    largest = values.view(3, 4, 16).abs().amax(-1, keepdim=True)
    # half the widest step of e2m1 at the top, and what e4m3 takes off the scale
    assert ((back - values).view(3, 4, 16).abs() <= largest * (1 / 6 + 1 / 16) + 2.0**-9).all()
    assert torch.equal(dequantise_nvfp4(codes, scales, torch.float16).float(), back)
