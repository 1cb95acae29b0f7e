"""The backend's class: made as a subclass of the stock backend that was chosen, with mixins before its parts."""

from __future__ import annotations

from typing import Any, ClassVar

from mjolnir.backend import versions
from mjolnir.backend.builder import MjolnirBuilder
from mjolnir.backend.fallback import QUANTISED_QUERY
from mjolnir.backend.impl import MjolnirImpl
from mjolnir.backend.settings import Settings
from mjolnir.kernel.geometry import PAGE_SIZES

PREFERRED_BLOCK = 64
"""Tokens of a block where the user names none: one tile of the kernel."""

PREFERRED_LAYOUT = "LBHNC"
"""vLLM's name for the memory layout that the kernel reads fastest: heads before tokens, "HND"."""


class MjolnirBackendMixin:
    """Put before a stock backend; it inherits allocation, validation and all that is not here.

    Attributes:
        mjolnir_parts: implementation and builder.
        mjolnir_named: whether the user named the fallback.
    """

    mjolnir_parts: ClassVar[tuple[type, type]]
    mjolnir_named: ClassVar[bool] = False

    @staticmethod
    def get_name() -> str:
        """A name that vLLM's list of backends has in every version."""
        return versions.NAME

    @classmethod
    def get_impl_cls(cls) -> type:
        """The implementation."""
        return cls.mjolnir_parts[0]

    @classmethod
    def get_builder_cls(cls) -> type:
        """The metadata builder."""
        return cls.mjolnir_parts[1]

    @classmethod
    def get_supported_kernel_block_sizes(cls, *spec: Any, **named: Any) -> list[int]:
        """The kernel's page sizes that the fallback runs on as well."""
        listed = super().get_supported_kernel_block_sizes(*spec, **named)  # type: ignore[misc]
        return versions.block_sizes(listed, PAGE_SIZES)

    @classmethod
    def get_preferred_block_size(cls, default_block_size: int) -> int:
        """One tile of the kernel, or more where the fallback wants that."""
        wanted = int(super().get_preferred_block_size(default_block_size))  # type: ignore[misc]
        return max(wanted, PREFERRED_BLOCK) if PREFERRED_BLOCK in cls.get_supported_kernel_block_sizes() else wanted

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[Any, ...]:
        """What the fallback can read, else every layout; heads before tokens is preferred."""
        stock = super().supported_kv_cache_layouts()  # type: ignore[misc]
        return versions.all_layouts(PREFERRED_LAYOUT) if stock is None else tuple(stock)

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        """No: whether a step decodes only is decided by the host's query lengths."""
        return False

    @classmethod
    def validate_configuration(cls, *given: Any, **named: Any) -> list[str]:
        """The fallback's reasons against a layer; where it was not named, what may help."""
        reasons: list[str] = super().validate_configuration(*given, **named)  # type: ignore[misc]
        if reasons and not cls.mjolnir_named:
            reasons = [*reasons, f"asked of Mjolnir's fallback {cls.__name__}; MJOLNIR_ATTN_FALLBACK names another"]
        return reasons


def subclass(base: Any, name: str, settings: Settings, *, cpu: bool, shown: str = "", module: str = __name__) -> type:
    """The backend over a stock one.

    Args:
        base: the stock backend.
        name: its name.
        settings: the user's.
        cpu: whether attention of the stock backend is to be done in PyTorch.
        shown: the fallback as the log names it.
        module: where vLLM finds the class again, under its own name.
    """
    below: tuple[type, ...] = (base.get_impl_cls(),)
    if cpu:
        from mjolnir.backend.cpu import TorchAttention

        below = (TorchAttention, *below)

    def part(kind: str, bases: tuple[type, ...], **members: Any) -> type:
        return type(f"MjolnirOn{name}{kind}", bases, {"__module__": module, **members})

    impl = part("Impl", (MjolnirImpl, *below), mjolnir_fallback_takes_fp8=name in QUANTISED_QUERY)
    stock_builder = base.get_builder_cls()
    builder = part(
        "Builder", (MjolnirBuilder, stock_builder), mjolnir_settings=settings, mjolnir_fallback=shown or name
    )
    return part("", (MjolnirBackendMixin, base), mjolnir_parts=(impl, builder), mjolnir_named=bool(settings.fallback))
