"""Number formats: how KV values become codes and codes become values, and how the `warp` engine rounds Q.

A format is a fact and two functions, registered in `FORMATS` under the name that `Geometry.kv_format` carries.
Quantising rounds to nearest and saturates, whatever the format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

QUERY_LIMIT_EXPONENT = 15
"""Query rows are brought below 2^15: half of what f16 holds, so that no rounding reaches its infinity."""


@dataclass(frozen=True, slots=True)
class Format:
    """A KV format.

    Attributes:
        name: as in `Geometry.kv_format`.
        bits: bits of one code.
        largest: the largest magnitude; larger values saturate to it.
        encode: f32 values of at most that magnitude to codes.
        decode: codes to f16, exactly.
    """

    name: str
    bits: int
    largest: float
    encode: Callable[[Tensor], Tensor]
    decode: Callable[[Tensor], Tensor]

    def quantise(self, values: Tensor) -> Tensor:
        """Codes (uint8) of floating-point `values` of any shape: to nearest, ties to even, saturating."""
        return self.encode(values.float().clamp(-self.largest, self.largest))

    def dequantise(self, codes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Values of `codes`, exact in `dtype` (f16, f32 or f64)."""
        return self.decode(codes).to(dtype)


def _encode_e4m3(values: Tensor) -> Tensor:
    return values.to(torch.float8_e4m3fn).view(torch.uint8)


def _decode_e4m3(codes: Tensor) -> Tensor:
    return codes.view(torch.float8_e4m3fn).to(torch.float16)


FORMATS: Mapping[str, Format] = {"fp8": Format("fp8", 8, 448.0, _encode_e4m3, _decode_e4m3)}
"""Every format that a cache may hold, by name."""


def round_query(query: Tensor) -> tuple[Tensor, Tensor]:
    """Round Q to f16, row by row, without overflow.

    A row whose largest magnitude is 2^15 or more is divided by the smallest power of two that brings it below; the
    f32 scores of that row are to be multiplied by the same power. Other rows have the factor one. bf16 values that
    are not subnormal in f16 (2^-14 and above) are exact.

    Args:
        query: (..., head_dim), bf16 or f16.

    Returns:
        f16 values of the same shape, and f32 factors (...,).
    """
    rows = query.float()
    # frexp: the magnitude lies in [2^(exponent - 1), 2^exponent), so no logarithm has to be trusted.
    exponent = torch.frexp(rows.abs().amax(dim=-1)).exponent
    surplus = (exponent - QUERY_LIMIT_EXPONENT).clamp(min=0)
    factor = torch.ldexp(torch.ones_like(surplus, dtype=torch.float32), surplus)
    return (rows / factor[..., None]).half(), factor
