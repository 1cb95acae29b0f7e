"""Arguments that were checked once, recognised when they come again, so that a call costs the host little.

What is checked of a call is its form alone: shapes, strides, dtypes, devices, and where pointers lie between multiples
of 16 bytes. A form that was found right is right for ever, whatever tensors have it.
What the kernel is given may be another view of the caller's tensor: fewer rows, a scale spread over heads, codes as
bytes. Such a view begins where the tensor begins. It is kept as long as the tensor itself lives, and no longer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar
from weakref import ref

if TYPE_CHECKING:
    import torch

Value = TypeVar("Value")

ALIGNMENT = 16
"""Bytes that TMA and vector accesses ask of base pointers and strides."""

Form = tuple[tuple[int, ...], tuple[int, ...], "torch.dtype", "torch.device", int]


def form_of(tensor: torch.Tensor) -> Form:
    """Shape, strides, dtype, device, and bytes beyond the last multiple of 16."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.data_ptr() % ALIGNMENT


class View(NamedTuple):
    """What an argument is given to the kernel as; it begins where the argument begins.

    Attributes:
        dtype: of as many bytes as the argument's.
        shape: in elements.
        stride: in elements.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def needed(self, tensor: torch.Tensor) -> View | None:
        """This view, or None where it is `tensor` as it stands."""
        same = self.dtype == tensor.dtype and self.shape == tuple(tensor.shape) and self.stride == tensor.stride()
        return None if same else self

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The view of `tensor`, which it does not keep alive as an object (autograd would)."""
        alias = tensor.detach()
        if alias.dtype != self.dtype:
            alias = alias.view(self.dtype)
        return alias.as_strided(self.shape, self.stride)


class Kept(Generic[Value]):
    """Values that were made of tensors, each kept as long as its tensor lives."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[ref[torch.Tensor], int, object, Value]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, tensor: torch.Tensor, key: object, make: Callable[[torch.Tensor], Value]) -> Value:
        """`make(tensor)`; made anew when the tensor was pointed elsewhere, or the key is not that of last time.

        Args:
            tensor: what the value is made of; the value must not keep it alive as an object (autograd keeps the base
                of a view alive, but not what `detach` was called on).
            key: what else the value depends on.
            make: makes it.
        """
        name, place = id(tensor), tensor.data_ptr()
        kept = self._kept.get(name)
        if kept is not None and kept[0]() is tensor and kept[1] == place and kept[2] == key:
            return kept[3]
        made, everything = make(tensor), self._kept
        everything[name] = ref(tensor, lambda _: everything.pop(name, None)), place, key, made
        return made


class Views(Kept["torch.Tensor"]):
    """The views that were made."""

    def view(self, tensor: torch.Tensor, view: View | None) -> torch.Tensor:
        """`view` of `tensor`, with None the tensor itself."""
        return tensor if view is None else self.get(tensor, view, view.of)
