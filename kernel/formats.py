"""Number formats: how KV values become codes and codes become values, and how Q is rounded.

A format is a fact and two functions, registered in `FORMATS` under the name that `Geometry.kv_format` carries.
Quantising rounds to nearest and saturates, whatever the format. A code takes a byte here; how those of fewer bits lie
in memory is in `mjolnir.kernel.packing`. Formats that no geometry takes are for the emulator, until an engine reads
them; so is NVFP4, whose values are not those of its codes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.minifloat import E2M1, E2M3, E3M2, MiniFloat

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
"""Dtypes of query and output by the names that `Geometry.dtype` carries."""

QUERY_LIMIT_EXPONENT = 15
"""Query rows are brought below 2^15: half of what f16 holds, so that no rounding reaches its infinity."""

QUERY_AMAX_FLOOR = 1e-6
"""The least largest magnitude that an fp8 Q is scaled by, so that zeros are not divided by zero."""


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
        """Codes (uint8) of floating-point `values` of any shape: to nearest, saturating.

        Ties go to the even code, in e2m3 to the smaller magnitude, where -0 is also stored as +0.
        """
        return self.encode(values.float().clamp(-self.largest, self.largest))

    def dequantise(self, codes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Values of `codes`, exact in `dtype` (f16, f32 or f64)."""
        return self.decode(codes).to(dtype)


def _encode_e4m3(values: Tensor) -> Tensor:
    return values.to(torch.float8_e4m3fn).view(torch.uint8)


def _decode_e4m3(codes: Tensor) -> Tensor:
    return codes.view(torch.float8_e4m3fn).to(torch.float16)


def _mini(name: str, mini: MiniFloat) -> Format:
    return Format(name, mini.bits, mini.largest, mini.encode, mini.decode)


FORMATS: Mapping[str, Format] = {
    "fp8": Format("fp8", 8, 448.0, _encode_e4m3, _decode_e4m3),
    "e2m3": _mini("e2m3", E2M3),
    "e3m2": _mini("e3m2", E3M2),
    "e2m1": _mini("e2m1", E2M1),
}
"""Every format whose codes are values, by name."""

NVFP4_BLOCK = 16
"""Neighbours in a head that share a scale."""


def quantise_nvfp4(values: Tensor) -> tuple[Tensor, Tensor]:
    """NVFP4: e2m1 with an e4m3 scale for each 16 neighbours, the nearest to their largest magnitude over 6.

    Args:
        values: (..., n), n a multiple of 16.

    Returns:
        e2m1 codes (..., n) and e4m3 codes of the scales (..., n / 16), uint8.
    """
    e4m3, e2m1 = FORMATS["fp8"], FORMATS["e2m1"]
    blocks = values.float().reshape(*values.shape[:-1], -1, NVFP4_BLOCK)
    scales = e4m3.quantise(blocks.abs().amax(-1) / e2m1.largest)
    scale = e4m3.dequantise(scales)[..., None]
    codes = e2m1.quantise(torch.where(scale > 0, blocks / scale, 0.0))
    return codes.view(values.shape), scales


def dequantise_nvfp4(codes: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values of NVFP4 codes and scales, exact in `dtype` (f16, f32 or f64)."""
    scale = FORMATS["fp8"].dequantise(scales).repeat_interleave(NVFP4_BLOCK, -1)
    return (FORMATS["e2m1"].dequantise(codes) * scale).to(dtype)


def round_query(query: Tensor) -> tuple[Tensor, Tensor]:
    """Round Q to f16, row by row, without overflow.

    A row whose largest magnitude is 2^15 or more is divided by the smallest power of two that brings it below; the
    f32 scores of that row are to be multiplied by the same power. Other rows have the factor one. bf16 values that
    are not subnormal in f16 (2^-14 and above) are exact.

    Args:
        query: (..., head_dim), bf16, f16 or f32.

    Returns:
        f16 values of the same shape, and f32 factors (...,).
    """
    rows = query.float()
    # frexp: the magnitude lies in [2^(exponent - 1), 2^exponent), so no logarithm has to be trusted.
    exponent = torch.frexp(rows.abs().amax(dim=-1)).exponent
    surplus = (exponent - QUERY_LIMIT_EXPONENT).clamp(min=0)
    factor = torch.ldexp(torch.ones_like(surplus, dtype=torch.float32), surplus)
    return (rows / factor[..., None]).half(), factor


def quantise_query(query: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """Round Q to e4m3 with one scale for each sequence and KV head, over all of its query rows.

    The scale is amax / 448, with an amax of at least 1e-6; codes are those of q / scale. Both are IEEE divisions in
    f32, so that every device makes the same codes.

    Args:
        query: (tokens, heads_q, head_dim), bf16, f16 or f32.
        geometry: heads and query length.

    Returns:
        f16 values of the codes in the same shape, and f32 scales (tokens, heads_q).
    """
    e4m3 = FORMATS["fp8"]
    heads = query.float().reshape(-1, geometry.q_len, geometry.heads_kv, geometry.gqa, geometry.head_dim)
    largest = heads.abs().amax(dim=(1, 3, 4), keepdim=True).clamp(min=QUERY_AMAX_FLOOR)
    # By a tensor: a GPU divides by a constant by multiplying with its reciprocal, which is not the same number.
    scale = largest / torch.full_like(largest, e4m3.largest)
    values = e4m3.dequantise(e4m3.quantise(heads / scale), torch.float16)
    return values.view(query.shape), scale[..., 0].expand(heads.shape[:-1]).reshape(query.shape[:-1])


def prepare_query(q: Tensor, q_mul: Tensor | None, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """Q as the engines multiply it with K, by the rule of `geometry.q_format`; bitwise what the kernel uses.

    Args:
        q: (tokens, heads_q, head_dim), bf16 or f16.
        q_mul: f32 (heads_q, head_dim), a factor of Q in f32 before it is rounded; None = 1.
        geometry: the problem.

    Returns:
        f16 values of the same shape, and what the f32 scores of each row are multiplied by, f32 (tokens, heads_q).
    """
    scaled = q.float() if q_mul is None else q.float() * q_mul
    return quantise_query(scaled, geometry) if geometry.q_format == "fp8" else round_query(scaled)


def contract_query(q: Tensor, q_mul: Tensor | None, geometry: Geometry, dtype: torch.dtype) -> Tensor:
    """Q as the contract has it, for references: the format's rounding is part of what is asked for.

    A native Q is what it is; only with `q_mul` is there a rounding, the one to f16.

    Returns:
        (tokens, heads_q, head_dim) in `dtype` (f32 or f64; exact in f64).
    """
    if q_mul is None and geometry.q_format == "native":
        return q.to(dtype)
    values, factor = prepare_query(q, q_mul, geometry)
    return values.to(dtype) * factor.to(dtype)[..., None]
