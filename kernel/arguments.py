"""Checks of what a caller hands to the kernel: errors name the argument and come before anything is launched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mjolnir.kernel.binding import ALIGNMENT, View
from mjolnir.kernel.formats import DTYPES

if TYPE_CHECKING:
    import torch

    from mjolnir.kernel.geometry import Geometry


def check_tensor(name: str, value: object, device: torch.device) -> torch.Tensor:
    """The argument, a tensor on `device`.

    Raises:
        TypeError: no tensor.
        ValueError: another device.
    """
    import torch

    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} is {type(value).__name__}; expected a tensor on {device}")
    if value.device != device:
        raise ValueError(f"{name} is on {value.device}; this runner works on {device}")
    return value


def check_query(name: str, tensor: torch.Tensor, geometry: Geometry, tokens: int) -> View:
    """The first `tokens` rows of query or output as (tokens, heads_q, head_dim).

    Raises:
        ValueError: shape, or strides that a head cannot have.
        TypeError: dtype.
    """
    wanted = DTYPES[geometry.dtype]
    if tensor.dtype != wanted:
        raise TypeError(f"{name} is {tensor.dtype}; this variant was built for {wanted}")
    heads, dim = geometry.heads_q, geometry.head_dim
    flat = tuple(tensor.shape[1:]) == (heads * dim,)
    if not (flat or tuple(tensor.shape[1:]) == (heads, dim)) or tensor.shape[0] < tokens:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}; expected {(tokens, heads, dim)}, more rows, or heads flattened"
        )
    if tensor.stride(-1) != 1:
        raise ValueError(
            f"{name} has stride {tensor.stride(-1)} in head_dim; the elements of a head must be contiguous"
        )
    row = heads * dim if tokens == 1 else tensor.stride(0)
    head = dim if flat or heads == 1 else tensor.stride(1)
    return View(wanted, (tokens, heads, dim), (row, head, 1))


def check_written(name: str, view: View) -> None:
    """Rows and heads that are written lie apart.

    Raises:
        ValueError: an expanded tensor, or one whose rows or heads overlap.
    """
    span = 1
    for step, size in sorted(zip(view.stride, view.shape, strict=True)):
        if size > 1 and step < span:
            raise ValueError(f"{name} has strides {view.stride}: rows that are written must not share memory")
        span += (size - 1) * step


def aligned(tensor: torch.Tensor, view: View) -> bool:
    """Whether pointer and strides are multiples of 16 bytes, so that the kernel works on the tensor itself."""
    unit = ALIGNMENT // tensor.element_size()
    return tensor.data_ptr() % ALIGNMENT == 0 and all(step % unit == 0 for step in view.stride[:2])


def as_bytes(cache: torch.Tensor) -> View:
    """A checked cache view as bytes; a dimension of size one, which may carry any stride, gets one that TMA takes."""
    import torch

    strides = [ALIGNMENT if size == 1 else step for size, step in zip(cache.shape[:3], cache.stride()[:3], strict=True)]
    return View(torch.uint8, tuple(cache.shape), (*strides, 1))


def check_int32(name: str, tensor: torch.Tensor, shape: tuple[int | None, ...]) -> None:
    """An int32 tensor of the shape; None stands for any size.

    Raises:
        ValueError: shape, or rows that are not contiguous.
        TypeError: dtype.
    """
    import torch

    if tensor.dtype != torch.int32:
        raise TypeError(f"{name} is {tensor.dtype}; expected torch.int32")
    _check_shape(name, tensor, shape)
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(f"{name} has stride {tensor.stride(-1)} in its last dimension; it must be contiguous there")


def as_rows(tensor: torch.Tensor) -> View:
    """A checked int32 tensor with stride one in its last dimension also where that has size one."""
    return View(tensor.dtype, tuple(tensor.shape), (*tensor.stride()[:-1], 1))


def check_float32(name: str, tensor: torch.Tensor, rows: int, columns: int, *, more_rows: bool = False) -> View:
    """The first `rows` rows of a contiguous f32 tensor (rows, columns).

    Raises:
        ValueError: shape, or gaps.
        TypeError: dtype.
    """
    import torch

    if tensor.dtype != torch.float32:
        raise TypeError(f"{name} is {tensor.dtype}; expected torch.float32")
    if not (more_rows and tensor.dim() == 2 and tensor.shape[0] > rows and tensor.shape[1] == columns):
        _check_shape(name, tensor, (rows, columns))
    if not tensor.is_contiguous():
        raise ValueError(f"{name} has strides {tensor.stride()}; it must be contiguous")
    return View(torch.float32, (rows, columns), (columns, 1))


def check_aligned(name: str, tensor: torch.Tensor) -> None:
    """A tensor that is read 16 bytes at a time.

    Raises:
        ValueError: it begins elsewhere.
    """
    if tensor.data_ptr() % ALIGNMENT:
        raise ValueError(f"{name} starts at {tensor.data_ptr():#x}; it must start at a multiple of {ALIGNMENT} bytes")


def _check_shape(name: str, tensor: torch.Tensor, shape: tuple[int | None, ...]) -> None:
    if tensor.dim() != len(shape) or any(s is not None and s != t for s, t in zip(shape, tensor.shape, strict=True)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected ({wanted})")


def spread_scale(name: str, scale: torch.Tensor, batch: int, heads_kv: int) -> View:
    """A scale of one value, (heads_kv,) or (batch, heads_kv) as (batch, heads_kv).

    Raises:
        ValueError: another shape.
        TypeError: not f32.
    """
    import torch

    if scale.dtype != torch.float32:
        raise TypeError(f"{name} is {scale.dtype}; expected torch.float32")
    if scale.numel() == 1 and scale.dim() <= 1:
        strides = 0, 0
    elif tuple(scale.shape) == (heads_kv,):
        strides = 0, scale.stride(0)
    elif tuple(scale.shape) == (batch, heads_kv):
        strides = scale.stride(0), scale.stride(1)
    else:
        raise ValueError(
            f"{name} has shape {tuple(scale.shape)}; expected one value, ({heads_kv},) or ({batch}, {heads_kv})"
        )
    return View(torch.float32, (batch, heads_kv), strides)
