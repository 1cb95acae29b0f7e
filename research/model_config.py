"""From a model's Hugging Face `config.json` to the geometry of its decode attention on one GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mjolnir.kernel.geometry import Geometry
from mjolnir.research.answer import UsageFailure

DTYPES = {"bfloat16": "bf16", "float16": "f16", "half": "f16", "auto": "bf16"}
"""Names of torch's dtypes, and ours."""

CONFIG = "config.json"

NESTED = "text_config"
"""Where a model of several modalities keeps its language model."""

OTHER_ATTENTION = {
    "kv_lora_rank": "latent attention (MLA)",
    "is_encoder_decoder": "an encoder and a decoder",
    "multi_query": "the old multi-query switch",
}
"""Members that say, when set, that the heads are not those of grouped-query attention."""


def load(path: Path, tensor_parallel: int = 1) -> Geometry:
    """The geometry of the model whose config is at `path`, split over `tensor_parallel` GPUs.

    Args:
        path: the `config.json`, or the folder that holds it.
        tensor_parallel: number of GPUs that share the heads; with more GPUs than KV heads, each has one of them.

    Raises:
        UsageFailure: no such file, no such config, or a model that is not supported; says what is missing.
    """
    file = path / CONFIG if path.is_dir() else path
    try:
        config = read(file)
    except OSError as error:
        raise UsageFailure(f"--model {path}: cannot be read ({error.strerror}); give a local config.json") from error
    except ValueError as error:
        raise UsageFailure(f"--model {error}") from error
    try:
        return geometry(config, tensor_parallel)
    except ValueError as error:
        raise UsageFailure(f"--model {file}: {error}; --geometry takes the numbers themselves") from error


def read(file: Path) -> dict[str, Any]:
    """What a model's config file holds, whoever wrote it.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no JSON object; the message begins with its path.
    """
    try:
        config = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON that can be read: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{file} is a JSON {type(config).__name__}, expected an object")
    return config


def geometry(config: Mapping[str, Any], tensor_parallel: int = 1) -> Geometry:
    """The geometry that a config means.

    Raises:
        ValueError: what is missing or not supported.
    """
    text = config.get(NESTED)
    inner: Mapping[str, Any] = text if isinstance(text, Mapping) else config
    for name, what in OTHER_ATTENTION.items():
        if inner.get(name) or config.get(name):
            raise ValueError(f"{name} is set: {what} is not supported")
    heads_q = _number(inner, "num_attention_heads")
    heads_kv = _number(inner, "num_key_value_heads")
    if heads_q % heads_kv:
        raise ValueError(f"num_attention_heads ({heads_q}) is no multiple of num_key_value_heads ({heads_kv})")
    dim = _head_dim(inner, heads_q)
    local_q, local_kv = split(heads_q, heads_kv, tensor_parallel)
    return Geometry(local_q, local_kv, dim, dtype=_dtype(inner, config))


def split(heads_q: int, heads_kv: int, parts: int) -> tuple[int, int]:
    """Query and KV heads of one of `parts` GPUs; KV heads are copied where there are fewer than GPUs.

    Raises:
        ValueError: the heads cannot be divided so.
    """
    if parts < 1 or heads_q % parts:
        raise ValueError(f"{heads_q} query heads cannot be divided by --tensor-parallel {parts}")
    if heads_kv % parts and parts % heads_kv:
        raise ValueError(f"{heads_kv} KV heads can be neither divided by nor copied to --tensor-parallel {parts}")
    return heads_q // parts, max(1, heads_kv // parts)


def _head_dim(inner: Mapping[str, Any], heads_q: int) -> int:
    """`head_dim`, else the hidden size over the heads, as the models' code has it."""
    if inner.get("head_dim") is not None:
        return _number(inner, "head_dim")
    if inner.get("hidden_size") is None:
        raise ValueError("head_dim is missing, and so is hidden_size, from which it would follow")
    hidden = _number(inner, "hidden_size")
    if hidden % heads_q:
        raise ValueError(f"head_dim is missing, and hidden_size ({hidden}) is no multiple of {heads_q} heads")
    return hidden // heads_q


def _dtype(inner: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The dtype of query and output; a config without one counts as bf16, since rows serve both."""
    named = next((c[name] for c in (inner, config) for name in ("dtype", "torch_dtype") if c.get(name)), "auto")
    name = str(named).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"dtype {name} is not supported; there are bfloat16 and float16")
    return DTYPES[name]


def _number(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if value is None:
        raise ValueError(f"{name} is missing")
    if isinstance(value, list):
        raise ValueError(f"{name} is a list: layers that differ in their heads are not supported")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}, expected a whole number above zero")
    return value
