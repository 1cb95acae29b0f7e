"""How codes of less than eight bits lie in memory.

- `dense`: four 6-bit codes in three bytes, a little-endian bit string; the format that Blackwell reads.
- `planar`: sixteen 6-bit codes in three 32-bit words. Code c of group 0, 1 or 2 (four codes each) lies in byte c of
  that group's word as an e4m3-shaped byte, sign in bit 7, exponent and mantissa in bits 4 to 0; bits 6 and 5, which
  such bytes leave free, carry group 3. So three masks give twelve codes that Hopper can widen as e4m3 (their value is
  that of e2m3 times 2^-6), and four shifts the rest.
- `nibbles`: two 4-bit codes in a byte, the first in its low half.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

SIGN, SIGN_BYTE = 0x20, 0x80
FIELD = 0x1F
"""Exponent and mantissa of a 6-bit code, and of an e4m3-shaped byte that holds one."""


@dataclass(frozen=True, slots=True)
class Packing:
    """One packing; both functions work on the last dimension, whose size is a multiple of the group's.

    Attributes:
        bits: bits of one code.
        group: codes that are packed together.
        pack: codes (..., n) uint8 to bytes (..., n * bits / 8).
        unpack: the inverse.
    """

    bits: int
    group: int
    pack: Callable[[Tensor], Tensor]
    unpack: Callable[[Tensor], Tensor]

    def bytes_of(self, codes: int) -> int:
        """Bytes of so many codes.

        Raises:
            ValueError: they are no whole number of groups.
        """
        if codes % self.group:
            raise ValueError(f"{codes} codes of {self.bits} bits are no multiple of the {self.group} packed together")
        return codes * self.bits // 8


def _groups(x: Tensor, size: int) -> Tensor:
    """(..., n) as (..., n / size, size).

    Raises:
        ValueError: n is no multiple of `size`.
    """
    if x.shape[-1] % size:
        raise ValueError(f"the last dimension is {x.shape[-1]}; it must be a multiple of {size}")
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def _pack_dense(codes: Tensor) -> Tensor:
    a, b, c, d = _groups(codes, 4).unbind(-1)
    return torch.stack([a | b << 6, b >> 2 | c << 4, c >> 4 | d << 2], -1).flatten(-2)


def _unpack_dense(data: Tensor) -> Tensor:
    x, y, z = _groups(data, 3).unbind(-1)
    return torch.stack([x & 63, (x >> 6 | y << 2) & 63, (y >> 4 | z << 4) & 63, z >> 2], -1).flatten(-2)


def _pack_planar(codes: Tensor) -> Tensor:
    shaped = _groups((codes & SIGN) << 2 | codes & FIELD, 16)
    first, second, third, last = (shaped[..., begin : begin + 4] for begin in (0, 4, 8, 12))
    first = first | (last & 0x80) >> 1 | (last & 0x01) << 5
    second, third = second | (last & 0x18) << 2, third | (last & 0x06) << 4
    return torch.cat([first, second, third], -1).flatten(-2)


def _unpack_planar(data: Tensor) -> Tensor:
    words = _groups(data, 12)
    first, second, third = (words[..., begin : begin + 4] for begin in (0, 4, 8))
    last = first << 1 & 0x80 | first >> 5 & 0x01 | second >> 2 & 0x18 | third >> 4 & 0x06
    shaped = torch.cat([words & (SIGN_BYTE | FIELD), last], -1).flatten(-2)
    return (shaped & SIGN_BYTE) >> 2 | shaped & FIELD


def _pack_nibbles(codes: Tensor) -> Tensor:
    low, high = _groups(codes, 2).unbind(-1)
    return low | high << 4


def _unpack_nibbles(data: Tensor) -> Tensor:
    return torch.stack([data & 15, data >> 4], -1).flatten(-2)


PACKINGS: Mapping[str, Packing] = {
    "dense": Packing(6, 4, _pack_dense, _unpack_dense),
    "planar": Packing(6, 16, _pack_planar, _unpack_planar),
    "nibbles": Packing(4, 2, _pack_nibbles, _unpack_nibbles),
}
"""Every packing, by name."""
