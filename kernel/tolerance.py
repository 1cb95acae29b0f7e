"""How far two right outputs may lie apart: what follows from the formats, and no more.

Three roundings separate a kernel from exact attention r = sum w v (w the softmax weights):

1. **Output.** Rounding to bf16 or f16 moves an element by at most u |r|, with u = 2^-8 or 2^-11 (half a unit in the
   last place); two outputs that are both rounded may lie 2 u |r| apart: one flip of the last bit and nothing else.
2. **P.** Each p is rounded to f16, w becoming w (1 + d) with |d| <= 2^-11, while the sum l takes p as it was. The
   errors are independent of V, so by Hoeffding's inequality sum w d v exceeds t 2^-11 sqrt(sum w^2 v^2) with a
   probability of 2 exp(-t^2 / 2) at most; t = 8. sqrt(sum w^2 v^2) is the standard deviation of r itself when V has
   random signs, so the RMS of the row's own elements estimates it (and lies above it when V has a mean). Where some
   channels of V are larger than others, that is the product of a row's magnitude and a channel's, the latter taken
   over the rows of a KV head; the larger of the two estimates counts.
   A p below 2^-14 is subnormal in f16 and has an absolute error of 2^-25 instead, which a million of them take to
   2^-16 of the row's RMS at most, since the largest p of each softmax state is at least one. Where an engine lets p
   grow to 256 before it raises its maximum, the relative error is the same, and subnormal p weigh less.
3. **Accumulation** in f32: about 2^-24 of the sum for each tile, 2^-10 after a million tokens in one chunk. It lies
   inside what t = 8 leaves, as the errors of P are seldom above t = 3.

The rounding of Q is no part of this: it is bitwise that of the contract, and the references make it too. Where the
output is multiplied by o_mul, the errors of P and of accumulation are, so they are taken from the output before it.

The RMS is that of the reference, never of what is judged. A row that is all zero must be met exactly.
The log-sum-exp takes unrounded p: f32 rounding of the sum, and of the scores, whose magnitude its own RMS stands for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mjolnir.kernel.geometry import Geometry

UNIT_ROUNDOFF = {"bf16": 2.0**-8, "f16": 2.0**-11}
"""Largest relative error of rounding to the output's dtype."""

TINY = {"bf16": 2.0**-134, "f16": 2.0**-25}
"""Largest absolute error of rounding to it where it is subnormal."""

P_ROUNDOFF = 2.0**-11
"""Largest relative error of P in f16."""

P_DEVIATIONS = 8.0
"""t: by how many times P's scale an element may be off."""

MAGNITUDE_ROUNDS = 4
"""Alternations after which the magnitudes of rows and channels have settled."""

LSE_ABSOLUTE, LSE_RELATIVE = 2.0**-16, 2.0**-18


def bound(reference: Tensor, geometry: Geometry, o_mul: Tensor | None = None) -> Tensor:
    """The most by which each element of an output may differ from `reference`.

    Args:
        reference: (tokens, heads_q, head_dim). In f32 or f64 it is taken as unrounded, in bf16 or f16 as an output that
            was rounded like the one to be judged.
        geometry: the problem.
        o_mul: what the output was multiplied by, f32 (heads_q, head_dim), or None.

    Returns:
        f32, of the same shape; zero in rows that are all zero.
    """
    value = reference.double()
    factor = torch.ones_like(value[0]) if o_mul is None else o_mul.to(value.device).double().abs()
    roundings = 1 if reference.dtype in (torch.float32, torch.float64) else 2
    roundoff = roundings * (UNIT_ROUNDOFF[geometry.dtype] * value.abs() + TINY[geometry.dtype])
    weights = P_DEVIATIONS * P_ROUNDOFF * factor * _magnitude(value / factor, geometry)
    seen = (value != 0).any(-1, keepdim=True)
    return torch.where(seen, roundoff + weights, 0.0).float()


def _magnitude(value: Tensor, geometry: Geometry) -> Tensor:
    """The scale of each element, from its row and from its channel."""
    rows = value.reshape(len(value), geometry.heads_kv, geometry.gqa, -1)
    plain = row = _rms(rows, -1)
    for _ in range(MAGNITUDE_ROUNDS):
        channel = _rms(rows / row, 0, 2)
        row = _rms(rows / channel, -1)
    return torch.maximum(plain, row * channel).reshape(value.shape)


def _rms(value: Tensor, *dimensions: int) -> Tensor:
    """RMS along `dimensions`, leaving out what a division by zero made no number."""
    number = value.isfinite()
    total = torch.where(number, value, 0.0).square().sum(dimensions, keepdim=True)
    return (total / number.sum(dimensions, keepdim=True).clamp(min=1)).sqrt()


def lse_bound(reference: Tensor) -> Tensor:
    """The most by which each log-sum-exp (f32, natural) may differ from `reference`; f32, of the same shape."""
    value = reference.double()
    number = value.isfinite()
    magnitude = torch.where(number, value.abs(), 0.0)
    rms = (magnitude.square().sum() / number.sum().clamp(min=1)).sqrt()
    return (LSE_ABSOLUTE + LSE_RELATIVE * magnitude.clamp(min=rms)).float()


def excess(out: Tensor, reference: Tensor, geometry: Geometry, o_mul: Tensor | None = None) -> float:
    """The largest |out - reference| over its bound: right when at most 1; inf where `out` has a NaN or an infinity.

    It is computed where `out` lies.
    """
    reference = reference.to(out.device)
    return _largest_ratio(out, reference, bound(reference, geometry, o_mul))


def lse_excess(lse: Tensor, reference: Tensor) -> float:
    """As `excess`, for the log-sum-exp: -inf must meet -inf."""
    reference = reference.to(lse.device)
    return _largest_ratio(lse, reference, lse_bound(reference))


def _largest_ratio(value: Tensor, reference: Tensor, allowed: Tensor) -> float:
    value, reference = value.double(), reference.double()
    error = torch.where(value == reference, 0.0, (value - reference).abs())
    ratio = torch.where(error == 0, 0.0, error / allowed)
    return float(ratio.nan_to_num(nan=torch.inf, posinf=torch.inf).amax())
