"""vLLM's KV cache as the kernel reads it: views of K and V as bytes, made once for each cache tensor.

From vLLM 0.29 on a layer's cache is one tensor (blocks, heads, tokens, 2 head_dim) whose strides tell how it lies, in
any of six memory layouts; cross-layer ones have gaps between blocks. Whatever the shape or the strides, nothing is
copied: what cannot be read in place is refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from mjolnir.kernel.binding import Kept, form_of
from mjolnir.kernel.geometry import Placement
from mjolnir.kernel.layouts import views

if TYPE_CHECKING:
    from torch import Tensor

    from mjolnir.kernel.geometry import Geometry

SHAPE = "BHN2D"
"""The layout whose shape vLLM's caches have, in whatever order they lie in memory."""

HEADS_FIRST = ("LBHNC", "LHBNC", "BLHNC", "BHLNC")
"""vLLM's memory layouts in which the tokens of a block and head follow one another."""


class CacheViews:
    """The views of the caches that one layer was given.

    Args:
        geometry: heads, page size and head size.
        layout: one of the kernel's layouts, or None to tell it from the shape.
    """

    def __init__(self, geometry: Geometry, layout: str | None = None) -> None:
        self._geometry, self._layout = replace(geometry, q_len=1), layout
        self._kept: Kept[tuple[Tensor, Tensor]] = Kept()

    def get(self, cache: Tensor) -> tuple[Tensor, Tensor]:
        """K and V, each (blocks, page_size, heads_kv, head_dim), uint8.

        Raises:
            ValueError: a shape that fits no layout, or strides that TMA cannot take; the message says which.
        """
        return self._kept.get(cache, form_of(cache), self._views)

    def _views(self, cache: Tensor) -> tuple[Tensor, Tensor]:
        return views(as_codes(cache.detach()), self._geometry, self._layout)


def as_codes(cache: Tensor) -> Tensor:
    """A cache of one-byte elements, whatever their dtype, as uint8.

    Raises:
        ValueError: wider elements.
    """
    if cache.element_size() != 1:
        raise ValueError(f"the KV cache is {cache.dtype}; Mjolnir reads e4m3 codes, one byte each")
    return cache.view(torch.uint8)


def placement_of(layout: str, heads_kv: int) -> Placement:
    """How a cache of vLLM's memory layout (such as "LBNHC") lies, as far as a table row depends on it."""
    return Placement("head-major" if layout in HEADS_FIRST or heads_kv == 1 else "token-major", "together")
