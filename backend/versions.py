"""What is asked of vLLM by import, and where 0.31, 0.32 and 0.33 differ. No other module names a version.

- Since 0.32 a backend can have a name of its own; before, CUSTOM is the only one.
- `set_kernel_block_size` and `use_cascade_attention` of a builder are gone in 0.33: neither is called or overridden;
  the kernel's block size is that of the spec which a builder is given.
- `MultipleOf` is another class in 0.33: of it `base` alone is read.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any

NAME, OWN_NAME = "CUSTOM", "MJOLNIR"
NO_DRAFTER = ("backbone", "self_decoder", "cross_decoder")
"""Tags under which vLLM builds parts of the target model."""


def register(path: str) -> None:
    """Register a class, by its path, on CUSTOM, and on MJOLNIR where vLLM can have that name."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum[NAME], path)
    if hasattr(AttentionBackendEnum, "register"):
        known = OWN_NAME in AttentionBackendEnum.__members__  # plugins may be called more than once
        register_backend(AttentionBackendEnum[OWN_NAME] if known else OWN_NAME, path)


def stock_names() -> tuple[str, ...]:
    """Names of vLLM's own attention backends."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    return tuple(name for name in AttentionBackendEnum.__members__ if name not in (NAME, OWN_NAME))


def stock_class(name: str) -> type:
    """A stock backend by name.

    Raises:
        ImportError, OSError: what it needs is not installed.
    """
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    if name == "FLASHINFER":
        from vllm.utils.flashinfer import has_flashinfer

        if not has_flashinfer():
            raise ImportError("flashinfer, or a compiler for it, is not installed")
    found: type = AttentionBackendEnum[name].get_class()
    return found


def on_cpu() -> bool:
    """Whether vLLM runs on its CPU platform."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def current_config() -> Any:
    """vLLM's configuration while a model is built, else None."""
    from vllm.config import get_current_vllm_config_or_none

    return get_current_vllm_config_or_none()


def building_drafter() -> bool:
    """Whether the layer that is being made is a drafter's, by the tag under which vLLM builds it."""
    config = current_config()
    if config is None or config.speculative_config is None:
        return False
    # Whoever sets a tag has imported this; it is no small import for everybody else.
    backends = sys.modules.get("vllm.compilation.backends")
    return getattr(backends, "model_tag", NO_DRAFTER[0]) not in NO_DRAFTER


def batch_invariant() -> bool:
    """Whether results must not depend on the batch."""
    import vllm.envs

    return bool(vllm.envs.VLLM_BATCH_INVARIANT)


def capability() -> Any:
    """The compute capability of the device."""
    from vllm.platforms import current_platform

    return current_platform.get_device_capability()


def block_sizes(listed: Sequence[Any], sizes: Sequence[int]) -> list[int]:
    """Those of `sizes` that a backend's list of kernel block sizes allows: whole numbers, or multiples of a base."""
    return [size for size in sizes if any(_allows(item, size) for item in listed)]


def _allows(item: Any, size: int) -> bool:
    return size == item if isinstance(item, int) else size % int(item.base) == 0


def quantiser() -> Any:
    """vLLM's kernel that rounds rows to e4m3 by one scale."""
    from vllm._custom_ops import scaled_fp8_quant

    return scaled_fp8_quant


def memory_layout(config: Any) -> str:
    """The name of the memory layout of all KV caches, such as "LBNHC"."""
    return str(config.cache_config.get_resolved_kv_cache_layout().name)


def all_layouts(first: str) -> tuple[Any, ...]:
    """Every memory layout that vLLM knows, the preferred one first."""
    from vllm.v1.kv_cache_interface import KVCacheLayout

    preferred = KVCacheLayout[first]
    return preferred, *(layout for layout in KVCacheLayout if layout is not preferred)


def support(name: str) -> Any:
    """A CUDA-graph promise by name."""
    from vllm.v1.attention.backend import AttentionCGSupport

    return AttentionCGSupport[name]


def gather(value: str) -> list[str]:
    """The values of all ranks of this tensor-parallel group."""
    import torch.distributed
    from vllm.distributed import parallel_state

    try:
        group = parallel_state.get_tp_group()
    except AssertionError:  # not set up, as in tests
        return [value]
    if group.world_size == 1:
        return [value]
    values: list[Any] = [None] * group.world_size
    torch.distributed.all_gather_object(values, value, group=group.cpu_group)
    return values


def first_rank() -> bool:
    """Whether this rank speaks for all of its host."""
    from vllm.distributed.parallel_state import is_local_first_rank

    return bool(is_local_first_rank())


def share_log() -> None:
    """Let what Mjolnir logs go where vLLM's own lines go, at its level: vLLM sets up no other handlers, and does so
    only after its plugins were called.
    """
    logging.getLogger("mjolnir").parent = logging.getLogger("vllm")


def accept_on_cpu(path: str) -> None:
    """Let vLLM's CPU platform, which knows one backend only, take CUSTOM for decoder attention."""
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    stock = CpuPlatform.get_attn_backend_cls.__func__
    if hasattr(stock, "mjolnir"):
        return

    def get_attn_backend_cls(
        cls: Any, selected_backend: Any, attn_selector_config: Any, *rest: Any, **more: Any
    ) -> str:
        plain = not (attn_selector_config.use_mla or attn_selector_config.use_sparse)
        ours = selected_backend is not None and selected_backend.name in (NAME, OWN_NAME)
        if ours and plain and attn_selector_config.attn_type == "decoder":
            found: str = AttentionBackendEnum[NAME].get_path()
            return found
        chosen: str = stock(cls, selected_backend, attn_selector_config, *rest, **more)
        return chosen

    get_attn_backend_cls.mjolnir = path  # type: ignore[attr-defined]
    CpuPlatform.get_attn_backend_cls = classmethod(get_attn_backend_cls)
