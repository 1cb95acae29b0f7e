"""The query's way in: as the fallback wants it, as the kernel wants it, and quantised by operators of PyTorch's.

vLLM's layer hands over bf16 or f16. Scales are vLLM's: a value is its code times the scale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mjolnir.kernel.formats import DTYPES, FORMATS, QUERY_AMAX_FLOOR

if TYPE_CHECKING:
    from mjolnir.backend.launcher import Launcher
    from mjolnir.kernel.geometry import Geometry

E4M3 = torch.float8_e4m3fn
LARGEST = FORMATS["fp8"].largest


Fused = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""vLLM's kernel: rows and their one scale give codes."""


def quantise(query: Tensor, scale: Tensor, heads_kv: int, fused: Fused | None = None) -> Tensor:
    """Q as vLLM's layer would quantise it for a fallback that takes e4m3: Q / scale, to nearest, saturating.

    Args:
        query: (tokens, heads_q, head_dim), bf16 or f16.
        scale: f32, one value, or one for each KV head's query heads.
        heads_kv: KV heads.
        fused: does the same in one kernel, where there is one scale.

    Returns:
        Codes of the same shape, float8_e4m3fn.
    """
    if fused is not None and scale.numel() == 1:
        codes, _ = fused(query.reshape(len(query), -1), scale)
        return codes.view(query.shape)
    return (query.float() / _spread(scale, query.shape[1], heads_kv)).clamp_(-LARGEST, LARGEST).to(E4M3)


def dequantise(codes: Tensor, scale: Tensor, heads_kv: int, dtype: torch.dtype) -> Tensor:
    """The inverse of `quantise`, for a query that a fusion quantised before the kernel could have it."""
    return (codes.float() * _spread(scale, codes.shape[1], heads_kv)).to(dtype)


def _spread(scale: Tensor, heads_q: int, heads_kv: int) -> Tensor:
    """A scale that divides (tokens, heads_q, head_dim)."""
    flat = scale.reshape(-1)
    return flat if flat.numel() == 1 else flat.repeat_interleave(heads_q // heads_kv)[:, None]


class UnfusedQuery:
    """A launcher that quantises the query with PyTorch's operators and runs a kernel on the codes.

    What the kernel computes with is bit for bit what it would make itself: codes of e4m3 are exact in bf16 and f16, and
    the query's scales go into those of K. Its buffers are its own, so that it can be captured.

    Args:
        launcher: of the same problem with a native query.
        geometry: that problem.
        max_batch: the most sequences.
        device: where buffers lie.
    """

    def __init__(self, launcher: Launcher, geometry: Geometry, max_batch: int, device: torch.device) -> None:
        self._launcher, self._heads = launcher, (geometry.heads_q, geometry.head_dim)
        shape = max_batch, geometry.q_len, geometry.heads_kv, geometry.gqa, geometry.head_dim

        def buffer(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._values = buffer(torch.float32, *shape)
        self._codes = buffer(E4M3, *shape)
        self._query = buffer(DTYPES[geometry.dtype], *shape)
        self._scales, self._k_scales = (buffer(torch.float32, max_batch, geometry.heads_kv) for _ in range(2))
        # A GPU divides by a constant by multiplying with its reciprocal, which is not the same number.
        self._largest = torch.full((), LARGEST, device=device)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of all buffers, the kernel's included."""
        own = (self._values, self._codes, self._query, self._scales, self._k_scales)
        return self._launcher.workspace_bytes + sum(item.numel() * item.element_size() for item in own)

    def plan(self, seq_lens: Tensor, margin: int = 0, *, capacity: int | None = None) -> None:
        """See `Launcher`."""
        self._launcher.plan(seq_lens, margin, capacity=capacity)

    def run(
        self,
        query: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_table: Tensor,
        seq_lens: Tensor,
        out: Tensor,
        k_scale: Tensor,
        v_scale: Tensor,
        scale: float | None = None,
    ) -> None:
        """See `Launcher`."""
        batch = seq_lens.shape[0]
        values, codes, packed = (part[:batch] for part in (self._values, self._codes, self._query))
        given = query[: batch * values.shape[1]].view(values.shape)
        scales = self._scales[:batch]
        values.copy_(given).abs_()
        torch.amax(values, dim=(1, 3, 4), out=scales)
        scales.clamp_(min=QUERY_AMAX_FLOOR).div_(self._largest)
        values.copy_(given).div_(scales[:, None, :, None, None]).clamp_(-LARGEST, LARGEST)
        packed.copy_(codes.copy_(values))
        k_scales = torch.mul(scales, k_scale, out=self._k_scales[:batch])
        self._launcher.run(
            packed.view(-1, *self._heads), k_cache, v_cache, block_table, seq_lens, out, k_scales, v_scale, scale
        )


def native(geometry: Geometry) -> Geometry:
    """The problem with a query that the kernel does not round."""
    return replace(geometry, q_format="native")
