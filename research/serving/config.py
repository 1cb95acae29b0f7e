"""What a model's `config.json` and a server's options say of its attention, before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mjolnir.backend.explain import Model
from mjolnir.research.model_config import DTYPES, NESTED, split

SLIDING, CHUNKED = "sliding_attention", "chunked_attention"
WITH_SINKS = ("gpt_oss",)
"""Types of models whose attention has sinks."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A server's options, as far as attention depends on them.

    Attributes:
        tensor_parallel: GPUs that share the heads.
        kv_cache_dtype, block_size: of the cache; a block size of 0 is the backend's own choice.
        dtype: of query and output, as vLLM names it.
        context_parallel: GPUs that share a sequence.
        speculative_tokens: that a drafter proposes.
        max_num_seqs: requests at most.
    """

    tensor_parallel: int = 1
    kv_cache_dtype: str = "fp8"
    block_size: int = 0
    dtype: str = "auto"
    context_parallel: int = 1
    speculative_tokens: int = 0
    max_num_seqs: int = 256


def kinds(config: Mapping[str, Any], serving: Serving) -> Iterator[tuple[str, Model]]:
    """Each kind of attention layer that the config has, with its name: a KV-cache group of the server.

    Raises:
        ValueError: what is missing, or cannot be served so.
    """
    nested = config.get(NESTED)
    inner: Mapping[str, Any] = nested if isinstance(nested, Mapping) else config
    if config.get("is_encoder_decoder"):
        raise ValueError("is_encoder_decoder is set: a model with an encoder has no decoder-only attention")
    heads_q, heads_kv = _number(inner, "num_attention_heads"), inner.get("num_key_value_heads")
    heads_kv = heads_q if heads_kv is None else _number(inner, "num_key_value_heads")
    local_q, local_kv = split(heads_q, heads_kv, serving.tensor_parallel)
    dim = inner.get("head_dim") or _number(inner, "hidden_size") // heads_q
    common: dict[str, Any] = {
        "heads_q": local_q, "heads_kv": local_kv, "head_dim": dim, "dtype": _dtype(inner, config, serving),
        "kv_cache_dtype": serving.kv_cache_dtype, "block_size": serving.block_size or 64,
        "soft_cap": float(inner.get("attn_logit_softcapping") or 0.0),
        "sinks": inner.get("model_type") in WITH_SINKS, "alibi": bool(inner.get("alibi")),
        "latent": bool(inner.get("kv_lora_rank")), "context_parallel": serving.context_parallel,
    }  # fmt: skip
    for name in _layer_kinds(inner):
        limits: dict[str, Any] = {
            "sliding_window": inner.get("sliding_window") if name == SLIDING else None,
            "chunk": inner.get("attention_chunk_size") if name == CHUNKED else None,
        }
        yield name, Model(**common, **limits)


def _layer_kinds(config: Mapping[str, Any]) -> list[str]:
    """As `layer_types` lists them, else one kind; layers that are no attention are left out."""
    listed = config.get("layer_types")
    if isinstance(listed, list) and listed:
        return [kind for kind in dict.fromkeys(map(str, listed)) if kind.endswith("attention") and "linear" not in kind]
    windowed = bool(config.get("sliding_window")) and config.get("use_sliding_window", True)
    return [SLIDING if windowed else "full_attention"]


def _dtype(inner: Mapping[str, Any], config: Mapping[str, Any], serving: Serving) -> str:
    """Our name of the dtype; one that is not supported stays as it is, and is refused as such."""
    named = [c[name] for c in (inner, config) for name in ("dtype", "torch_dtype") if c.get(name)]
    chosen = serving.dtype if serving.dtype != "auto" or not named else str(named[0])
    return DTYPES.get(chosen.removeprefix("torch."), chosen)


def _number(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}, expected a whole number above zero")
    return value
