"""Which stock backend Mjolnir is a subclass of: it allocates, writes the cache, and runs all steps that are not ours.

On the CPU its attention is done in PyTorch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mjolnir.backend import versions

log = logging.getLogger(__name__)

ORDER = ("FLASHINFER", "FLASH_ATTN", "TRITON_ATTN")
"""The stock backends that are tried, the first that accepts the model is taken."""

ON_CPU = "TRITON_ATTN"
"""The parent without a GPU; its kernels are replaced by PyTorch there."""

QUANTISED_QUERY = ("FLASH_ATTN",)
"""Stock backends whose steps over an fp8 cache need an fp8 query."""

Accepts = Callable[[str], str | None]
"""Why a stock backend cannot serve here, or None."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A fallback.

    Attributes:
        name: the stock backend's.
        named: whether the user chose it.
        refused: why those before it in the order were not taken.
    """

    name: str
    named: bool
    refused: tuple[str, ...] = ()

    def __str__(self) -> str:
        why = "MJOLNIR_ATTN_FALLBACK" if self.named else "; ".join(self.refused) or "first in the order"
        return f"{self.name} ({why})"


def choose(named: str | None, accepts: Accepts, known: Sequence[str], *, cpu: bool = False) -> Choice:
    """The fallback: the user's, which is never replaced, or the first of the order that accepts.

    Raises:
        ValueError: a name that is Mjolnir's own or unknown, or that cannot be here.
        RuntimeError: none accepts; the message says why each did not.
    """
    if named is not None:
        name = named.strip().upper()
        if name in (versions.NAME, versions.OWN_NAME):
            raise ValueError(
                f"MJOLNIR_ATTN_FALLBACK = {named!r} is Mjolnir itself: name a stock backend ({', '.join(ORDER)})"
            )
        if name not in known:
            raise ValueError(f"MJOLNIR_ATTN_FALLBACK = {named!r} is not allowed: one of {', '.join(known)}")
        if cpu and name != ON_CPU:
            raise ValueError(f"MJOLNIR_ATTN_FALLBACK = {named!r} is not allowed: on the CPU it is {ON_CPU}")
        return Choice(name, named=True)
    if cpu:
        return Choice(ON_CPU, named=False)
    refused: list[str] = []
    for name in ORDER:
        reason = accepts(name)
        if reason is None:
            return Choice(name, named=False, refused=tuple(refused))
        refused.append(f"{name}: {reason}")
    raise RuntimeError(f"no stock backend can stand behind Mjolnir here: {'; '.join(refused)}")


def refusal(name: str) -> str | None:
    """Why a stock backend cannot serve the model that is being built, or None: the `Accepts` of a server."""
    try:
        backend: Any = versions.stock_class(name)
    except Exception as error:  # a package may fail to import in any way
        return f"{type(error).__name__}: {error}"
    capability, config = versions.capability(), versions.current_config()
    if config is None or config.model_config is None:
        return None if backend.supports_compute_capability(capability) else "not for this device"
    return ", ".join(backend.validate_configuration(**questions(config, capability))) or None


def questions(config: Any, capability: Any) -> dict[str, Any]:
    """What vLLM asks a backend about a model, from its configuration; layers may ask for more."""
    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    return {
        "head_size": model.get_head_size(),
        "dtype": model.dtype,
        "kv_cache_dtype": cache.cache_dtype,
        "block_size": cache.block_size if cache.user_specified_block_size else None,
        "use_mla": model.use_mla,
        "has_sink": False,
        "use_sparse": False,
        "use_mm_prefix": bool(getattr(model, "is_mm_prefix_lm", False)),
        "use_per_head_quant_scales": False,
        "device_capability": capability,
        "attn_type": "decoder",
        "use_non_causal": config.attention_config.use_non_causal,
        "use_batch_invariant": versions.batch_invariant(),
        "use_pcp": parallel.prefill_context_parallel_size > 1,
        "use_dcp": parallel.decode_context_parallel_size > 1,
        "use_rswa": getattr(model, "rswa_window", None) is not None,
    }
