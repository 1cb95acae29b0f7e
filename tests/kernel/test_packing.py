"""Packings: bit by bit against integers, there and back, and of the size that they claim."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mjolnir.kernel.formats import FORMATS
from mjolnir.kernel.packing import PACKINGS

SIX = st.lists(st.integers(0, 63), min_size=16, max_size=16)
FOUR = st.lists(st.integers(0, 15), min_size=2, max_size=2)


def as_bytes(codes: list[int], name: str) -> bytes:
    return bytes(PACKINGS[name].pack(torch.tensor(codes, dtype=torch.uint8)).tolist())


@given(SIX)
def test_dense_is_a_little_endian_bit_string(codes: list[int]) -> None:
    whole = sum(code << 6 * i for i, code in enumerate(codes))
    assert as_bytes(codes, "dense") == whole.to_bytes(12, "little")


@given(FOUR)
def test_nibbles_have_the_first_code_low(codes: list[int]) -> None:
    assert as_bytes(codes, "nibbles") == bytes([codes[0] + 16 * codes[1]])


@given(SIX)
def test_planar_words_are_e4m3_bytes_with_the_last_group_in_what_they_leave_free(codes: list[int]) -> None:
    words = [int.from_bytes(as_bytes(codes, "planar")[4 * i : 4 * i + 4], "little") for i in range(3)]
    groups = [
        sum(((code & 0x20) << 2 | code & 0x1F) << 8 * i for i, code in enumerate(codes[4 * g : 4 * g + 4]))
        for g in range(4)
    ]
    assert [word & 0x9F9F9F9F for word in words] == groups[:3]
    rest = (
        words[0] << 1 & 0x80808080
        | words[0] >> 5 & 0x01010101
        | words[1] >> 2 & 0x18181818
        | words[2] >> 4 & 0x06060606
    )
    assert rest == groups[3]


@pytest.mark.parametrize("name", PACKINGS)
def test_codes_come_back_in_any_shape(name: str) -> None:
    packing = PACKINGS[name]
    shape = (3, 5, 2, 128)
    codes = torch.randint(1 << packing.bits, shape, generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    data = packing.pack(codes)
    assert data.dtype == torch.uint8
    assert data.shape == (*shape[:-1], packing.bytes_of(128))
    assert torch.equal(packing.unpack(data), codes)
    strided = torch.stack([data, torch.zeros_like(data)], -1)[..., 0]
    assert torch.equal(packing.unpack(strided), codes)


def test_sizes_of_heads_are_what_tma_takes() -> None:
    assert [PACKINGS[name].bytes_of(128) for name in ("dense", "planar", "nibbles")] == [96, 96, 64]
    assert PACKINGS["planar"].bytes_of(256) % 32 == 0


@pytest.mark.parametrize("name", PACKINGS)
def test_other_numbers_of_codes_are_refused(name: str) -> None:
    packing = PACKINGS[name]
    with pytest.raises(ValueError, match="multiple of"):
        packing.bytes_of(packing.group + 1)
    with pytest.raises(ValueError, match=f"must be a multiple of {packing.group}"):
        packing.pack(torch.zeros(2, packing.group + 1, dtype=torch.uint8))


@pytest.mark.parametrize(("name", "size"), [("dense", 3), ("planar", 12)])
def test_other_numbers_of_bytes_are_refused(name: str, size: int) -> None:
    with pytest.raises(ValueError, match=f"last dimension is {size + 1}; it must be a multiple of {size}"):
        PACKINGS[name].unpack(torch.zeros(2, size + 1, dtype=torch.uint8))


def test_a_row_survives_quantising_and_packing() -> None:
    values = torch.randn(4, 128, generator=torch.Generator().manual_seed(1))
    for name, packings in (("e2m3", ("dense", "planar")), ("e3m2", ("dense",)), ("e2m1", ("nibbles",))):
        codes = FORMATS[name].quantise(values)
        for packing in packings:
            assert torch.equal(PACKINGS[packing].unpack(PACKINGS[packing].pack(codes)), codes)
