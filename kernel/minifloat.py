"""Floating-point formats of a few bits, without infinities and NaN: every code is a number.

A code holds, from its highest bit down, sign, exponent and mantissa; it lies in the low bits of a byte. Values follow
the OCP formats of the same names: an exponent of zero is subnormal.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class MiniFloat:
    """One format.

    Attributes:
        exponent: bits of the exponent.
        mantissa: bits of the mantissa.
        bias: of the exponent.
        ties_down: whether a value between two codes goes to the smaller magnitude, else to the even code.
    """

    exponent: int
    mantissa: int
    bias: int
    ties_down: bool = False

    @property
    def bits(self) -> int:
        """Bits of one code."""
        return 1 + self.exponent + self.mantissa

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return float(self.magnitudes()[-1])

    def magnitudes(self) -> Tensor:
        """Values of the codes without a sign, ascending, f32."""
        code = torch.arange(1 << (self.bits - 1))
        power, fraction = code >> self.mantissa, code & ((1 << self.mantissa) - 1)
        significand = fraction + torch.where(power > 0, 1 << self.mantissa, 0)
        return torch.ldexp(significand.float(), power.clamp(min=1) - self.bias - self.mantissa)

    def encode(self, values: Tensor) -> Tensor:
        """Codes (uint8) of the values nearest to f32 `values`; what is too large saturates, and -0 becomes +0."""
        magnitudes = self.magnitudes().to(values.device)
        halves = (magnitudes[1:] + magnitudes[:-1]) / 2
        size = values.abs().contiguous()
        code = torch.bucketize(size, halves)
        if not self.ties_down:
            tie = size == halves[code.clamp(max=len(halves) - 1)]
            code = code + (tie & (code % 2 == 1))
        sign = (values < 0) & (code > 0)
        return (code + sign * (1 << (self.bits - 1))).to(torch.uint8)

    def decode(self, codes: Tensor) -> Tensor:
        """Values of `codes` in f16, exactly."""
        magnitudes = self.magnitudes().to(codes.device)
        return torch.cat([magnitudes, -magnitudes]).half()[codes.long()]


E2M3 = MiniFloat(2, 3, bias=1, ties_down=True)
E3M2 = MiniFloat(3, 2, bias=3)
E2M1 = MiniFloat(2, 1, bias=1)
