"""What the processes of `mjolnir bench vllm` are asked: models, points, contenders, and an engine's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from mjolnir.backend.overrides import variable
from mjolnir.kernel.knobs import KNOBS
from mjolnir.research.bench import vllm_rows as files
from mjolnir.research.serving import model as models
from mjolnir.research.serving.modes import capture_sizes
from mjolnir.research.serving.timing import Question, most_tokens

MODELS: Mapping[str, models.Shape] = {
    "qwen3-8b": models.Shape(32, 8, 128, 4096, 12288, layers=2, vocabulary=151936),
    "head-dim-256": models.Shape(16, 2, 256, 4096, 12288, layers=2, vocabulary=151936),
}
"""Shapes: two of the 36 layers of Qwen3-8B, and the same with the attention of Qwen3-Next."""

LOOPS = 18
"""How often the layers are gone through."""

POINTS = tuple((batch, context) for context in (32768, 4096) for batch in (64, 8, 1))

BLOCK = 64
SPARE_BLOCKS = 1024
"""Blocks for what points answer, so that the prompts of others stay in the cache."""

SHARE = 0.05
"""Of the GPU's memory that has to be free when a process starts; its cache has its size whatever that is."""

OURS = {"VLLM_KV_CACHE_LAYOUT": "HND", "MJOLNIR_ATTN_FALLBACK": "FLASH_ATTN"}
"""The fastest layout, and a fallback that compiles nothing: prefill is not what is timed."""

CONTENDERS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    files.TUNED: ("CUSTOM", OURS),
    files.BUILT_IN: ("CUSTOM", {**OURS, **{variable(knob): str(knob.default) for knob in KNOBS}}),
    **{name: (name, {}) for name in files.STOCK},
}
"""Backend and environment of each; the built-in default is every knob set to it."""


def question(
    name: str,
    folder: Path,
    shape: models.Shape,
    contender: str,
    points: Sequence[tuple[int, int]],
    windows: int,
    steps: int,
    cores: tuple[int, ...] = (),
) -> Question:
    """What a process is for: all points of one model, the longest context first; arguments as `Question` has them."""
    more = most_tokens(windows, steps)
    batch = max(size for size, _ in points)
    blocks = max(size * -(-(context + more) // BLOCK) for size, context in points) + SPARE_BLOCKS
    engine = {
        "load_format": "dummy", "dtype": "bfloat16", "kv_cache_dtype": "fp8", "block_size": BLOCK,
        "max_num_seqs": batch, "max_model_len": max(context for _, context in points) + more,
        "max_num_batched_tokens": 8192, "enable_prefix_caching": True, "gpu_memory_utilization": SHARE,
        "enable_flashinfer_autotune": False, "async_scheduling": True,
        "kv_cache_memory_bytes": blocks * 2 * BLOCK * shape.heads_kv * shape.head_dim * shape.layers,
        "compilation_config": {
            "mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": capture_sizes(batch),
        },
    }  # fmt: skip
    ordered = tuple(sorted(points, key=lambda point: (-point[1], -point[0])))
    asked = f"{contender} {name}", str(folder), CONTENDERS[contender][0], ordered, shape.vocabulary, LOOPS
    return Question(*asked, windows, steps, engine, cores)


def environment(contender: str, runner: str) -> dict[str, str]:
    """The variables of a process."""
    chosen = {"VLLM_USE_V2_MODEL_RUNNER": str(int(runner == "v2"))} if runner else {}
    return {**CONTENDERS[contender][1], **chosen}


def heads(model: str) -> dict[str, int]:
    """What a row says of its model."""
    shape = asdict(MODELS[model])
    found = {name: shape[name] for name in ("heads_q", "heads_kv", "head_dim")}
    return {**found, "layers": LOOPS * shape["layers"]}
