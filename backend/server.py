"""What is read of vLLM's configuration and layers, as facts for the rules. Only attributes are read, so that any object
with them will do; what a version of vLLM does not have is what it cannot do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mjolnir.backend.eligibility import DECODER, Group, Layer
from mjolnir.backend.routing import Limits
from mjolnir.kernel.geometry import MAX_Q_LEN
from mjolnir.kernel.runner import MAX_BATCH

ARGUMENTS = (
    "num_heads", "head_size", "scale", "num_kv_heads", "alibi_slopes", "sliding_window", "kv_cache_dtype",
    "logits_soft_cap", "attn_type", "kv_sharing_target_layer_name", "sinks",
)  # fmt: skip
"""What vLLM calls an attention implementation with, in its order."""

MODEL_DTYPES = {"bfloat16": "bf16", "float16": "f16"}
PER_TENSOR = "FP8_PER_TENSOR"


def layer_of(given: tuple[Any, ...], named: Mapping[str, Any]) -> Layer:
    """The facts of a layer from the arguments of its implementation."""
    values = {**dict(zip(ARGUMENTS, given, strict=False)), **named}
    heads_q = values["num_heads"]
    return Layer(
        heads_q=heads_q,
        heads_kv=values.get("num_kv_heads") or heads_q,
        head_dim=values["head_size"],
        kv_dtype=values.get("kv_cache_dtype") or "auto",
        attn_type=str(getattr(values.get("attn_type"), "value", values.get("attn_type") or DECODER)),
        sliding_window=values.get("sliding_window"),
        soft_cap=float(values.get("logits_soft_cap") or 0.0),
        sinks=values.get("sinks") is not None,
        alibi=values.get("alibi_slopes") is not None or bool(values.get("use_alibi_sqrt")),
        chunk_lookback=values.get("chunk_lookback", -1),
    )


def layers_of(config: Any, names: Iterable[str]) -> list[Any]:
    """vLLM's layers of these names, as far as they are known."""
    known = config.compilation_config.static_forward_context
    return [known[name] for name in names if name in known]


def group_of(
    config: Any,
    spec: Any,
    layers: Iterable[Any],
    *,
    drafter_allowed: bool = True,
    batch_invariant: bool = False,
    block_size: int | None = None,
) -> Group:
    """The facts of a KV group.

    Args:
        config: vLLM's `VllmConfig`.
        spec: the cache's description; of several layers', the first.
        layers: its layers; those whose implementation is not ours have no facts, and the group is then not ours.
        drafter_allowed, batch_invariant: see `Group`.
        block_size: tokens of a kernel block.
    """
    spec = first_spec(spec)
    implementations = [getattr(layer, "impl", None) for layer in layers]
    facts = [getattr(item, "mjolnir_layer", None) for item in implementations]
    model, parallel = config.model_config, config.parallel_config
    dtype = str(model.dtype).removeprefix("torch.")
    return Group(
        layers=tuple(fact for fact in facts if fact is not None) if None not in facts else (),
        dtype=MODEL_DTYPES.get(dtype, dtype),
        block_size=block_size,
        spec=type(spec).__name__,
        quantised=getattr(getattr(spec, "kv_quant_mode", None), "name", None) == PER_TENSOR,
        head_dim_v=getattr(spec, "head_size_v", None),
        sliding_window=getattr(spec, "sliding_window", None),
        chunk=getattr(spec, "attention_chunk_size", None),
        packed=_packed(spec),
        multimodal_prefix=bool(getattr(model, "is_mm_prefix_lm", False)),
        prefix_window=getattr(model, "rswa_window", None) is not None,
        context_parallel=max(
            getattr(parallel, "decode_context_parallel_size", 1), getattr(parallel, "prefill_context_parallel_size", 1)
        ),
        batch_invariant=batch_invariant,
        drafter=bool(implementations) and all(getattr(item, "mjolnir_drafter", False) for item in implementations),
        drafter_allowed=drafter_allowed,
    )


def _packed(spec: Any) -> bool:
    apart = (getattr(spec, name, None) is not None for name in ("state_content_bytes", "num_head_slots"))
    return any(apart) or getattr(spec, "tokens_per_state", 1) != 1


def first_spec(spec: Any) -> Any:
    """A spec, or the first of a collection that vLLM keeps by layer."""
    inner = getattr(spec, "kv_cache_specs", None)
    return next(iter(inner.values())) if inner else spec


def speculative_tokens(config: Any) -> int:
    """Tokens that a drafter proposes for a request and step."""
    return getattr(config.speculative_config, "num_speculative_tokens", None) or 0


def parallel_drafter(config: Any) -> bool:
    """Whether a drafter fills in a whole block at once, which need not be causal."""
    return bool(getattr(config.speculative_config, "parallel_drafting", False)) or bool(
        getattr(getattr(config, "attention_config", None), "use_non_causal", False)
    )


def limits_of(config: Any, max_qlen: int | None, *, non_causal: bool = True) -> Limits:
    """What a group can run; `max_qlen` can only lower the query length, of which the kernel has a limit too."""
    q_len = 1 + speculative_tokens(config)
    return Limits(min(q_len, max_qlen or q_len, MAX_Q_LEN), max_requests(config), non_causal)


def max_requests(config: Any) -> int:
    """The most requests of a step: what the scheduler allows, or what a CUDA graph is padded to."""
    captured = getattr(config.compilation_config, "max_cudagraph_capture_size", None) or 0
    return int(min(max(config.scheduler_config.max_num_seqs, captured), MAX_BATCH))
