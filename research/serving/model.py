"""Models that are written on the spot: a Qwen3 of any shape with random weights, for engines that need one.

The weights are so large that attention matters: a model whose attention adds nothing to its hidden states gives the
same tokens whatever a kernel does, and vLLM's own dummy weights are such a model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjolnir.research import model_config
from mjolnir.research.answer import UsageFailure
from mjolnir.research.model_config import CONFIG

if TYPE_CHECKING:
    import torch

ATTENTION_GAIN = 2.0
"""How much larger than usual the weights of the attention are."""

HEAD_GAIN = 2.0
"""The same of the head: log-probabilities are spread as those of a trained model, so that a nat is little."""

WEIGHTS = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Shape:
    """A Qwen3 model.

    Attributes:
        heads_q, heads_kv, head_dim: of its attention.
        hidden, intermediate: elements of a token between layers, and inside an MLP.
        layers, vocabulary: how many.
        context: the longest sequence, in tokens.

    Raises:
        ValueError: query heads that are no multiple of the KV heads.
    """

    heads_q: int = 8
    heads_kv: int = 2
    head_dim: int = 128
    hidden: int = 512
    intermediate: int = 1024
    layers: int = 2
    vocabulary: int = 2048
    context: int = 65536

    def __post_init__(self) -> None:
        if min(asdict(self).values()) < 1:
            raise ValueError(f"{self}: every number is at least 1")
        if self.heads_q % self.heads_kv:
            raise ValueError(f"{self.heads_q} query heads are no multiple of {self.heads_kv} KV heads")

    def config(self) -> dict[str, Any]:
        """The model's `config.json`."""
        return {
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "bfloat16",
            "hidden_size": self.hidden, "intermediate_size": self.intermediate, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads_q, "num_key_value_heads": self.heads_kv, "head_dim": self.head_dim,
            "vocab_size": self.vocabulary, "max_position_embeddings": self.context, "rms_norm_eps": 1e-6,
            "rope_theta": 1e6, "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False,
            "use_sliding_window": False, "bos_token_id": 1, "eos_token_id": 2,
        }  # fmt: skip


def write(folder: Path, shape: Shape, seed: int = 0) -> Path:
    """Write config and random weights, and return `folder`."""
    from safetensors.torch import save_file

    write_config(folder, shape)
    save_file(weights(shape, seed), folder / WEIGHTS, metadata={"format": "pt"})
    return folder


def write_config(folder: Path, shape: Shape) -> Path:
    """Write the config alone, for an engine that makes its own weights, and return `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(shape.config(), indent=1) + "\n", "utf-8")
    return folder


def weights(shape: Shape, seed: int) -> dict[str, torch.Tensor]:
    """Every tensor by its name in a checkpoint, bf16."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    dim, hidden = shape.head_dim, shape.hidden

    def matrix(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator).mul(gain * columns**-0.5).bfloat16()

    def ones(size: int) -> torch.Tensor:
        return torch.ones(size, dtype=torch.bfloat16)

    made = {
        "model.embed_tokens.weight": matrix(shape.vocabulary, hidden, hidden**0.5),
        "lm_head.weight": matrix(shape.vocabulary, hidden, HEAD_GAIN),
        "model.norm.weight": ones(hidden),
    }
    query, key = shape.heads_q * dim, shape.heads_kv * dim
    for number in range(shape.layers):
        layer = {
            "self_attn.q_proj": matrix(query, hidden, ATTENTION_GAIN),
            "self_attn.k_proj": matrix(key, hidden, ATTENTION_GAIN),
            "self_attn.v_proj": matrix(key, hidden, ATTENTION_GAIN),
            "self_attn.o_proj": matrix(hidden, query, ATTENTION_GAIN),
            "self_attn.q_norm": ones(dim), "self_attn.k_norm": ones(dim),
            "mlp.gate_proj": matrix(shape.intermediate, hidden), "mlp.up_proj": matrix(shape.intermediate, hidden),
            "mlp.down_proj": matrix(hidden, shape.intermediate),
            "input_layernorm": ones(hidden), "post_attention_layernorm": ones(hidden),
        }  # fmt: skip
        made |= {f"model.layers.{number}.{name}.weight": tensor for name, tensor in layer.items()}
    return made


def read_config(place: Path) -> Mapping[str, Any]:
    """The config of a local model: the file itself, or `config.json` of a folder.

    Raises:
        UsageFailure: there is none, or it is no JSON object.
    """
    path = place if place.is_file() else place / CONFIG
    try:
        return model_config.read(path)
    except OSError as error:
        raise UsageFailure(
            f"{path}: cannot be read ({error.strerror}); name the folder of a local model, or its {CONFIG}"
        ) from error
    except ValueError as error:
        raise UsageFailure(str(error)) from error


def vocabulary_of(config: Mapping[str, Any]) -> int:
    """How many tokens a model knows.

    Raises:
        UsageFailure: the config does not say.
    """
    inner = config.get("text_config", config)
    size = inner.get("vocab_size") if isinstance(inner, Mapping) else None
    if not isinstance(size, int) or size < 1:
        raise UsageFailure(f"the model's config has vocab_size = {size!r}, expected a whole number above zero")
    return size
