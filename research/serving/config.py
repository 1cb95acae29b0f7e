"""What a model's `config.json` and a server's options say of its attention, before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mjolnir.backend.explain import Model
from mjolnir.kernel.geometry import PAGE_SIZES
from mjolnir.research.model_config import DTYPES, NESTED, split

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
WITH_SINKS = ("gpt_oss",)
"""Types of models whose attention has sinks."""

WITH_ALIBI = ("bloom", "mpt", "jais")
"""Types of models whose attention has ALiBi whatever their config says."""

FULL_EVERY = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}
"""Types of models whose layers have a window but for every nth, where the config does not list them."""

KV_HEADS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num")
"""Names of the number of KV heads, in the order in which vLLM asks for them."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A server's options, as far as attention depends on them.

    Attributes:
        tensor_parallel: GPUs that share the heads.
        kv_cache_dtype, block_size: of the cache; a block size of 0 is the backend's own choice. A block that no kernel
            has is cut into blocks that one has.
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
    heads_q = _number(inner, "num_attention_heads")
    named = next((name for name in KV_HEADS if inner.get(name) is not None), "num_attention_heads")
    heads_kv = _number(inner, named)
    local_q, local_kv = split(heads_q, heads_kv, serving.tensor_parallel)
    dim = inner.get("head_dim") or _number(inner, "hidden_size") // heads_q
    common: dict[str, Any] = {
        "heads_q": local_q, "heads_kv": local_kv, "head_dim": dim, "dtype": _dtype(inner, config, serving),
        "kv_cache_dtype": serving.kv_cache_dtype, "block_size": kernel_block(serving.block_size or 64),
        "soft_cap": float(inner.get("attn_logit_softcapping") or 0.0),
        "sinks": inner.get("model_type") in WITH_SINKS, "alibi": _has_alibi(inner),
        "latent": bool(inner.get("kv_lora_rank")), "context_parallel": serving.context_parallel,
    }  # fmt: skip
    for name in _layer_kinds(inner):
        limits: dict[str, Any] = {
            "sliding_window": inner.get("sliding_window") if name == SLIDING else None,
            "chunk": inner.get("attention_chunk_size") if name == CHUNKED else None,
        }
        yield name, Model(**common, **limits)


def kernel_block(block: int) -> int:
    """Tokens of the kernel's blocks where the cache's have `block`: as many, or the most of which these are a multiple.

    Raises:
        ValueError: there are none, and vLLM would not start.
    """
    fitting = [page for page in PAGE_SIZES if block % page == 0]
    if not fitting:
        raise ValueError(f"--block-size {block} is no multiple of {min(PAGE_SIZES)}: vLLM would find no kernel for it")
    return max(fitting)


def _has_alibi(config: Mapping[str, Any]) -> bool:
    kind, attention = config.get("model_type"), config.get("attn_config")
    if kind == "baichuan":  # of its two sizes the smaller one has rotary embeddings
        return bool(config.get("hidden_size") != 4096)
    if kind == "mpt" and isinstance(attention, Mapping):
        return bool(attention.get("alibi"))
    return bool(config.get("alibi")) or kind in WITH_ALIBI


def _layer_kinds(config: Mapping[str, Any]) -> list[str]:
    """As `layer_types` lists them, else by what the type of the model has; layers that are no attention are left out.

    Raises:
        ValueError: no layer is attention.
    """
    listed = config.get("layer_types")
    if isinstance(listed, list) and listed:
        kinds = [
            name for name in dict.fromkeys(map(str, listed)) if name.endswith("attention") and "linear" not in name
        ]
        if not kinds:
            raise ValueError(f"layer_types lists {', '.join(dict.fromkeys(map(str, listed)))}: none has a KV cache")
        return kinds
    if config.get("attention_chunk_size"):
        return [CHUNKED, FULL]
    if not config.get("sliding_window") or not config.get("use_sliding_window", True):
        return [FULL]
    every = config.get("sliding_window_pattern") or FULL_EVERY.get(str(config.get("model_type")), 0)
    layers = config.get("num_hidden_layers")
    some_full = isinstance(every, int) and every > 0 and (not isinstance(layers, int) or layers >= every)
    return [SLIDING, FULL] if some_full else [SLIDING]


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
