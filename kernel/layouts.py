"""The six layouts of a paged KV cache, read as logical (num_pages, page_size, heads_kv, head_dim) views of K and V.

A layout is spelled by its dimensions, outermost first: B pages, N tokens of a page, H KV heads, D elements of a head,
2 for K beside V. In `BHN2D` and `BNH2D` the last dimension holds K's D elements and then V's.
Strides are the tensor's own: a `BHN2D` cache may lie head-major or token-major, with blocks further apart than
their bytes. Nothing here copies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mjolnir.kernel.geometry import Geometry, Placement

LAYOUTS = ("BHN2D", "BNH2D", "B2NHD", "B2HND", "2BNHD", "2BHND")
"""Layout names, in the order in which a shape is tried."""

ALIGNMENT = 16
"""Bytes of which pointers and strides are multiples; TMA takes no others."""

DTYPES = (torch.uint8, torch.float8_e4m3fn)
POISON = 0x7F
"""The e4m3 code of NaN."""


def _dimensions(layout: str) -> tuple[str, ...]:
    """`BHN2D` -> B, H, N, 2D; `B2NHD` -> B, 2, N, H, D."""
    return (*layout[:-2], "2D") if layout.endswith("2D") else tuple(layout)


def _sizes(geometry: Geometry) -> dict[str, int]:
    return {
        "N": geometry.page_size,
        "H": geometry.heads_kv,
        "D": geometry.head_dim,
        "2D": 2 * geometry.head_dim,
        "2": 2,
    }


def _fits(layout: str, shape: Sequence[int], geometry: Geometry) -> bool:
    names, sizes = _dimensions(layout), _sizes(geometry)
    return len(shape) == len(names) and all(
        name == "B" or size == sizes[name] for name, size in zip(names, shape, strict=True)
    )


def layout_of(shape: Sequence[int], geometry: Geometry) -> str:
    """The first layout that `shape` fits; heads equal to the page size, or two pages, fit more than one.

    Raises:
        ValueError: no layout fits; the message names the shape and what each layout would be.
    """
    for layout in LAYOUTS:
        if _fits(layout, shape, geometry):
            return layout
    sizes = _sizes(geometry)
    expected = "; ".join(
        f"{layout} ({', '.join(str(sizes.get(name, name)) for name in _dimensions(layout))})" for layout in LAYOUTS
    )
    raise ValueError(
        f"kv cache of shape {tuple(shape)} fits no layout for {geometry.heads_kv} KV heads, page size "
        f"{geometry.page_size} and head_dim {geometry.head_dim}; the layouts are {expected}"
    )


def views(cache: Tensor, geometry: Geometry, layout: str | None = None) -> tuple[Tensor, Tensor]:
    """K and V of a cache, without a copy.

    Args:
        cache: one tensor of one of the six layouts, uint8 or float8_e4m3fn.
        geometry: heads, page size and head size.
        layout: overrides what the shape says, where it is ambiguous.

    Returns:
        Two views (num_pages, page_size, heads_kv, head_dim).

    Raises:
        ValueError: an unknown layout, a shape that does not fit it, or what `check_views` refuses.
    """
    if layout is None:
        layout = layout_of(cache.shape, geometry)
    if layout not in LAYOUTS:
        raise ValueError(f"layout = {layout!r} is unknown; there are {', '.join(LAYOUTS)}")
    if not _fits(layout, cache.shape, geometry):
        raise ValueError(
            f"kv cache of shape {tuple(cache.shape)} is not {layout} of {geometry}; leave layout out to have it "
            f"told from the shape"
        )
    names = list(_dimensions(layout))
    parts: tuple[Tensor, ...]
    if "2D" in names:
        parts = cache[..., : geometry.head_dim], cache[..., geometry.head_dim :]
    else:
        parts = cache.unbind(names.index("2"))
        names.remove("2")
    order = [names.index(name) for name in ("B", "N", "H")]
    k, v = (part.permute(*order, 3) for part in parts)
    check_views(k, v, geometry)
    return k, v


def check_views(k: Tensor, v: Tensor, geometry: Geometry) -> None:
    """Refuse K or V that the kernel cannot read in place.

    Raises:
        ValueError: wrong dtype, shape, device, pointer or stride; the message names the argument and the remedy.
    """
    page = (geometry.page_size, geometry.heads_kv, geometry.head_dim)
    for name, part in (("k_cache", k), ("v_cache", v)):
        if part.dtype not in DTYPES:
            raise ValueError(f"{name} is {part.dtype}; pass it as torch.uint8 or torch.float8_e4m3fn (view, no copy)")
        if part.dim() != 4 or tuple(part.shape[1:]) != page or part.shape[0] < 1:
            raise ValueError(
                f"{name} has shape {tuple(part.shape)}; expected (num_pages, {', '.join(map(str, page))}): "
                f"take it from layouts.views, or permute it"
            )
        if part.stride(3) != 1:
            raise ValueError(f"{name} has stride {part.stride(3)} along head_dim; a head's elements must be contiguous")
        if part.data_ptr() % ALIGNMENT:
            raise ValueError(f"{name} starts at {part.data_ptr():#x}; allocate it on a multiple of {ALIGNMENT} bytes")
        _check_strides(name, part)
    if k.shape != v.shape or k.dtype != v.dtype or k.device != v.device:
        raise ValueError(
            f"k_cache ({tuple(k.shape)}, {k.dtype}, {k.device}) and v_cache ({tuple(v.shape)}, {v.dtype}, {v.device}) "
            f"differ; both must be alike"
        )


def _check_strides(name: str, part: Tensor) -> None:
    for dimension, size, stride in zip(("page", "token", "head"), part.shape, part.stride(), strict=False):
        if size > 1 and stride % ALIGNMENT:
            raise ValueError(
                f"{name} has a {dimension} stride of {stride} bytes; TMA needs multiples of {ALIGNMENT}: "
                f"allocate the cache with padded strides"
            )


def placement_of(k: Tensor, v: Tensor) -> Placement:
    """How K and V, as `views` gives them, lie in memory.

    One KV head is head-major, as the tokens of a page then follow one another; a single page counts as together when
    K and V share their storage.
    """
    head_major = k.shape[2] == 1 or k.stride(1) < k.stride(2)
    if k.shape[0] > 1:
        together = abs(v.data_ptr() - k.data_ptr()) < k.stride(0)
    else:
        together = k.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()
    return Placement("head-major" if head_major else "token-major", "together" if together else "apart")


def allocate(
    layout: str,
    num_pages: int,
    geometry: Geometry,
    device: torch.device | str = "cpu",
    *,
    token_major: bool | None = None,
    block_gap: int = 0,
    fill: int | None = POISON,
) -> Tensor:
    """A cache for tests and benches.

    Args:
        layout: one of `LAYOUTS`; it decides the shape.
        num_pages: pages.
        geometry: heads, page size and head size.
        device: where.
        token_major: whether all heads of a token lie together in memory; None = as the layout is spelled.
        block_gap: bytes between one block's end and the next block, a multiple of 16.
        fill: code of every byte, the gaps included; None leaves them as they are.

    Returns:
        A uint8 tensor of the layout's shape, with strides as asked for.

    Raises:
        ValueError: an unknown layout or a gap that breaks alignment.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout = {layout!r} is unknown; there are {', '.join(LAYOUTS)}")
    if block_gap < 0 or block_gap % ALIGNMENT:
        raise ValueError(f"block_gap = {block_gap} bytes must be a multiple of {ALIGNMENT}")
    names, sizes = _dimensions(layout), {**_sizes(geometry), "B": num_pages}
    order = list(names)
    if token_major is not None and token_major != (order.index("N") < order.index("H")):
        n, h = order.index("N"), order.index("H")
        order[n], order[h] = "H", "N"
    strides, span = {}, 1
    for name in reversed(order):
        span += block_gap if name == "B" else 0
        strides[name] = span
        span *= sizes[name]
    memory = torch.empty(span, dtype=torch.uint8, device=device)
    if fill is not None:
        memory.fill_(fill)
    return memory.as_strided([sizes[name] for name in names], [strides[name] for name in names])


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Move a tensor and what lies between its elements, so that strides and gaps stay as they are."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if not math.prod(tensor.shape):
        return tensor.to(device)
    flat = tensor.as_strided((span,), (1,), tensor.storage_offset())
    return flat.to(device).as_strided(tensor.shape, tensor.stride())
