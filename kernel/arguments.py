"""Checks of what a caller hands to the kernel: errors name the argument and come before anything is launched."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from mjolnir.kernel.geometry import Geometry

ALIGNMENT = 16
"""Bytes that TMA asks of base pointers and strides."""


def check_query(name: str, tensor: torch.Tensor, geometry: Geometry, batch: int) -> torch.Tensor:
    """Query or output as (batch, heads_q, head_dim), a view.

    Raises:
        ValueError: shape, or strides that a view cannot have.
        TypeError: dtype.
    """
    import torch

    wanted = {"bf16": torch.bfloat16, "f16": torch.float16}[geometry.dtype]
    if tensor.dtype != wanted:
        raise TypeError(f"{name} is {tensor.dtype}; this variant was built for {wanted}")
    shape = (batch, geometry.heads_q, geometry.head_dim)
    if tensor.dim() == 2 and tuple(tensor.shape) == (batch, geometry.heads_q * geometry.head_dim):
        tensor = tensor.view(shape)
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected {shape}")
    if tensor.stride(2) != 1:
        raise ValueError(f"{name} has stride {tensor.stride(2)} in head_dim; the elements of a head must be contiguous")
    return tensor


def as_bytes(cache: torch.Tensor) -> torch.Tensor:
    """A checked cache view as bytes; a dimension of size one, which may carry any stride, gets one that TMA takes."""
    import torch

    strides = [ALIGNMENT if size == 1 else step for size, step in zip(cache.shape[:3], cache.stride()[:3], strict=True)]
    return cache.view(torch.uint8).as_strided(cache.shape, (*strides, 1))


def check_int32(name: str, tensor: torch.Tensor, shape: tuple[int | None, ...]) -> None:
    """An int32 tensor of the shape; None stands for any size.

    Raises:
        ValueError: shape, or rows that are not contiguous.
        TypeError: dtype.
    """
    import torch

    if tensor.dtype != torch.int32:
        raise TypeError(f"{name} is {tensor.dtype}; expected torch.int32")
    if tensor.dim() != len(shape) or any(s is not None and s != t for s, t in zip(shape, tensor.shape, strict=True)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected ({wanted})")
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(f"{name} has stride {tensor.stride(-1)} in its last dimension; it must be contiguous there")


def spread_scale(name: str, scale: torch.Tensor, batch: int, heads_kv: int) -> torch.Tensor:
    """A scale of one value, (heads_kv,) or (batch, heads_kv) as a (batch, heads_kv) view.

    Raises:
        ValueError: another shape.
        TypeError: not f32.
    """
    import torch

    if scale.dtype != torch.float32:
        raise TypeError(f"{name} is {scale.dtype}; expected torch.float32")
    if scale.numel() == 1 and scale.dim() <= 1:
        return scale.reshape(()).expand(batch, heads_kv)
    if scale.dim() in (1, 2) and scale.shape[-1] == heads_kv and (scale.dim() == 1 or scale.shape[0] == batch):
        return scale.expand(batch, heads_kv)
    raise ValueError(
        f"{name} has shape {tuple(scale.shape)}; expected one value, ({heads_kv},) or ({batch}, {heads_kv})"
    )
