"""Cache views: bytes of K and V found in place, in all of vLLM's memory layouts and the kernel's six."""

from __future__ import annotations

import pytest
import torch

from mjolnir.backend.cache_view import CacheViews, placement_of
from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.layouts import LAYOUTS, allocate

GEOMETRY = Geometry(8, 2, page_size=16)
LAYERS, BLOCKS, HEADS, TOKENS, CELL = 3, 4, 2, 16, 256
MEMORY = {
    "LBHNC": (0, 1, 2, 3, 4),
    "LBNHC": (0, 1, 3, 2, 4),
    "LHBNC": (0, 2, 1, 3, 4),
    "BLHNC": (1, 0, 2, 3, 4),
    "BLNHC": (1, 0, 3, 2, 4),
    "BHLNC": (1, 2, 0, 3, 4),
}
"""vLLM's layouts: which of layers, blocks, heads, tokens and cells comes first in memory."""


def vllm_cache(layout: str, layer: int) -> torch.Tensor:
    """One layer's cache as vLLM hands it over: logical (blocks, heads, tokens, cells), with the layout's strides."""
    order, sizes = MEMORY[layout], (LAYERS, BLOCKS, HEADS, TOKENS, CELL)
    strides, span = [0] * 5, 1
    for dimension in reversed(order):
        strides[dimension] = span
        span *= sizes[dimension]
    memory = torch.randint(0, 256, (span,), dtype=torch.uint8)
    return memory.as_strided(sizes, strides)[layer]


@pytest.mark.parametrize("layout", MEMORY)
@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e4m3fn])
def test_every_memory_layout_is_read_in_place(layout: str, layer: int, dtype: torch.dtype) -> None:
    cache = vllm_cache(layout, layer)
    k, v = CacheViews(GEOMETRY).get(cache.view(dtype))
    assert k.dtype == v.dtype == torch.uint8
    assert k.shape == v.shape == (BLOCKS, TOKENS, HEADS, 128)
    for block, head, token in ((0, 0, 0), (3, 1, 15), (2, 0, 7)):
        assert torch.equal(k[block, token, head], cache[block, head, token, :128])
        assert torch.equal(v[block, token, head], cache[block, head, token, 128:])
    assert k.untyped_storage().data_ptr() == cache.untyped_storage().data_ptr()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_the_kernel_is_told_from_the_shape_or_forced(layout: str) -> None:
    cache = allocate(layout, 3, GEOMETRY, fill=None)
    cache.copy_(torch.randint(0, 256, cache.shape, dtype=torch.uint8))
    told, forced = CacheViews(GEOMETRY).get(cache), CacheViews(GEOMETRY, layout).get(cache)
    for one, other in zip(told, forced, strict=True):
        assert one.shape == (3, 16, 2, 128)
        assert torch.equal(one, other)


def test_a_forced_layout_decides_where_the_shape_says_too_little() -> None:
    square = Geometry(16, 16, page_size=16)
    cache = torch.randint(0, 256, (2, 16, 16, 256), dtype=torch.uint8)
    told, _ = CacheViews(square).get(cache)
    forced, _ = CacheViews(square, "BNH2D").get(cache)
    assert torch.equal(told[1, 3, 5], cache[1, 5, 3, :128])
    assert torch.equal(forced[1, 3, 5], cache[1, 3, 5, :128])


def test_views_are_made_once_for_a_cache() -> None:
    views, cache, other = CacheViews(GEOMETRY), vllm_cache("LBHNC", 0), vllm_cache("LBNHC", 0)
    first = views.get(cache)
    assert views.get(cache)[0] is first[0]
    assert views.get(other)[0] is not first[0]
    assert torch.equal(views.get(other)[0][1, 2, 1], other[1, 1, 2, :128])


def test_what_cannot_be_read_in_place_is_refused() -> None:
    with pytest.raises(ValueError, match=r"bfloat16; Mjolnir reads e4m3 codes"):
        CacheViews(GEOMETRY).get(torch.zeros(4, 2, 16, 256, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match=r"kv cache of shape \(4, 2, 16, 192\) fits no layout"):
        CacheViews(GEOMETRY).get(torch.zeros(4, 2, 16, 192, dtype=torch.uint8))
    odd = torch.zeros(40000, dtype=torch.uint8).as_strided((4, 2, 16, 256), (8200, 4100, 256, 1))
    with pytest.raises(ValueError, match="TMA needs multiples of 16"):
        CacheViews(GEOMETRY).get(odd)


@pytest.mark.parametrize("layout", MEMORY)
def test_the_table_is_asked_for_the_layout_that_there_is(layout: str) -> None:
    head_major = MEMORY[layout].index(2) < MEMORY[layout].index(3)
    assert placement_of(layout, 8) == Placement("head-major" if head_major else "token-major")
    assert placement_of(layout, 1) == Placement("head-major")
