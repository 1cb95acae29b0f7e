"""Which KV-cache groups Mjolnir can serve: static rules, known before the first step. Pure facts in, reasons out.

Each rule is a function that gives a reason, a sentence's end that says what is asked for, or None. A group that any
rule refuses runs on the fallback, and the first reason is logged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mjolnir.kernel.geometry import PAGE_SIZES, Geometry

FP8 = ("fp8", "fp8_e4m3")
"""Names of vLLM's KV-cache dtypes that the kernel reads."""

DECODER = "decoder"
FULL_ATTENTION = "FullAttentionSpec"


@dataclass(frozen=True, slots=True)
class Layer:
    """What one attention layer asks for.

    Attributes:
        heads_q, heads_kv, head_dim: heads of this rank, and their size.
        kv_dtype: the layer's KV-cache dtype, as vLLM names it.
        attn_type: as vLLM names it; "decoder" is self-attention over the cache.
        sliding_window: tokens, or None.
        soft_cap: of the scores; 0 = none.
        sinks, alibi: whether it has them.
        chunk_lookback: as vLLM has it; above -1 the attention is chunked.
    """

    heads_q: int
    heads_kv: int
    head_dim: int
    kv_dtype: str = "fp8"
    attn_type: str = DECODER
    sliding_window: int | None = None
    soft_cap: float = 0.0
    sinks: bool = False
    alibi: bool = False
    chunk_lookback: int = -1


@dataclass(frozen=True, slots=True)
class Group:
    """One KV-cache group of a server.

    Attributes:
        layers: its layers.
        dtype: of query and output, "bf16" or "f16", else torch's name.
        block_size: tokens of a kernel block; None where it is not settled yet.
        spec: name of the class that describes the cache.
        quantised: whether the cache holds codes with scales for a whole tensor or head.
        head_dim_v: elements of a head of V.
        sliding_window, chunk: the cache's own limits, in tokens, or None.
        packed: whether cells are laid out in another way than K beside V.
        multimodal_prefix: whether images are attended in both directions.
        prefix_window: whether the model has a window that leaves its prompt visible (R-SWA).
        context_parallel: ranks that share one sequence's cache.
        batch_invariant: whether results must not depend on the batch.
        drafter: whether all layers are a drafter's.
        drafter_allowed: whether a drafter's layers may run on Mjolnir.
    """

    layers: tuple[Layer, ...]
    dtype: str = "bf16"
    block_size: int | None = 64
    spec: str = FULL_ATTENTION
    quantised: bool = True
    head_dim_v: int | None = None
    sliding_window: int | None = None
    chunk: int | None = None
    packed: bool = False
    multimodal_prefix: bool = False
    prefix_window: bool = False
    context_parallel: int = 1
    batch_invariant: bool = False
    drafter: bool = False
    drafter_allowed: bool = True


def has_layers(group: Group) -> str | None:
    return None if group.layers else "no layer of it is of Mjolnir's backend"


def kv_dtype(group: Group) -> str | None:
    other = sorted({layer.kv_dtype for layer in group.layers} - set(FP8))
    if other or not group.quantised:
        name = other[0] if other else "not quantised"
        return f"the KV cache is {name}; Mjolnir reads {', '.join(FP8)} (--kv-cache-dtype fp8)"
    return None


def cache_kind(group: Group) -> str | None:
    if group.spec != FULL_ATTENTION or group.packed:
        return f"its cache is a {group.spec}{' with packed cells' if group.packed else ''}, not plain full attention"
    return None


def attention_type(group: Group) -> str | None:
    other = sorted({layer.attn_type for layer in group.layers} - {DECODER})
    return f"attention of type {other[0]}; Mjolnir serves decoder self-attention" if other else None


def window(group: Group) -> str | None:
    sizes = [size for size in (group.sliding_window, *(layer.sliding_window for layer in group.layers)) if size]
    return f"a sliding window of {sizes[0]} tokens" if sizes else None


def chunks(group: Group) -> str | None:
    if group.chunk is not None or any(layer.chunk_lookback > -1 for layer in group.layers):
        return "chunked local attention"
    return None


def soft_cap(group: Group) -> str | None:
    caps = [layer.soft_cap for layer in group.layers if layer.soft_cap]
    return f"scores are capped at {caps[0]:g}" if caps else None


def sinks(group: Group) -> str | None:
    return "attention sinks" if any(layer.sinks for layer in group.layers) else None


def alibi(group: Group) -> str | None:
    return "ALiBi" if any(layer.alibi for layer in group.layers) else None


def multimodal_prefix(group: Group) -> str | None:
    return "a multimodal prefix that is attended in both directions" if group.multimodal_prefix else None


def prefix_window(group: Group) -> str | None:
    return "a sliding window that leaves the prompt visible (R-SWA)" if group.prefix_window else None


def context_parallel(group: Group) -> str | None:
    return "context parallelism (DCP or PCP)" if group.context_parallel > 1 else None


def batch_invariant(group: Group) -> str | None:
    return "batch-invariant mode (VLLM_BATCH_INVARIANT)" if group.batch_invariant else None


def drafter(group: Group) -> str | None:
    if group.drafter and not group.drafter_allowed:
        return "it is a drafter's, and MJOLNIR_ATTN_DRAFT_T5 is off"
    return None


def same_heads(group: Group) -> str | None:
    heads = sorted({layer.heads_q for layer in group.layers})
    return f"its layers have {' and '.join(map(str, heads))} query heads" if len(heads) > 1 else None


def equal_head_sizes(group: Group) -> str | None:
    dim = group.layers[0].head_dim
    if group.head_dim_v not in (None, dim):
        return f"heads of K have {dim} elements and those of V {group.head_dim_v}"
    return None


def block_size(group: Group) -> str | None:
    if group.block_size in (None, *PAGE_SIZES):
        return None
    return f"a kernel block of {group.block_size} tokens; there are {', '.join(map(str, PAGE_SIZES))} (--block-size)"


def geometry(group: Group) -> str | None:
    """What the kernel itself refuses: head sizes, head counts, dtypes."""
    try:
        geometry_of(group)
    except ValueError as error:
        return str(error)
    return None


Rule = Callable[[Group], str | None]

RULES: tuple[Rule, ...] = (
    has_layers, kv_dtype, cache_kind, attention_type, window, chunks, soft_cap, sinks, alibi, multimodal_prefix,
    prefix_window, context_parallel, batch_invariant, drafter, same_heads, equal_head_sizes, block_size, geometry,
)  # fmt: skip
"""In the order in which they are asked; later ones may take for granted what earlier ones found."""


def refusal(group: Group) -> str | None:
    """Why the group runs on the fallback, or None where Mjolnir serves it."""
    return next((reason for rule in RULES if (reason := rule(group))), None)


def geometry_of(group: Group, q_format: str = "native") -> Geometry:
    """The group's problem with one query token.

    Raises:
        ValueError: what no engine supports.
    """
    first = group.layers[0]
    page = PAGE_SIZES[0] if group.block_size is None else group.block_size
    return Geometry(first.heads_q, first.heads_kv, first.head_dim, page, q_format=q_format, dtype=group.dtype)


def step_of(geometry: Geometry, q_len: int, causal: bool) -> Geometry:
    """The problem with a step's query tokens; with one of them causality says nothing."""
    return replace(geometry, q_len=q_len, causal=causal or q_len == 1)
