"""What a server would use for a model, told beforehand: eligibility, and the knobs by batch size. Needs no vLLM."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mjolnir.backend.eligibility import FULL_ATTENTION, Group, Layer, geometry_of, refusal, step_of
from mjolnir.backend.key import bucket_of
from mjolnir.backend.lookup import Defaults, Resolution
from mjolnir.backend.service import BEST_QUERY
from mjolnir.backend.settings import Settings
from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import MAX_Q_LEN, Placement
from mjolnir.kernel.sources import kernel_hash

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""What is told of without being asked for: vLLM's default is 256 requests at most."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model's attention on one GPU, as its config.json and the command line have it; see `Layer` and `Group`."""

    heads_q: int
    heads_kv: int
    head_dim: int
    dtype: str = "bf16"
    kv_cache_dtype: str = "fp8"
    block_size: int = 64
    head_dim_v: int | None = None
    sliding_window: int | None = None
    chunk: int | None = None
    soft_cap: float = 0.0
    sinks: bool = False
    alibi: bool = False
    latent: bool = False
    attn_type: str = "decoder"
    context_parallel: int = 1
    multimodal_prefix: bool = False

    @property
    def group(self) -> Group:
        """The facts that the rules are asked about."""
        layer = Layer(
            self.heads_q, self.heads_kv, self.head_dim, self.kv_cache_dtype, self.attn_type, self.sliding_window,
            self.soft_cap, self.sinks, self.alibi,
        )  # fmt: skip
        return Group(
            (layer,), self.dtype, self.block_size, "MLAAttentionSpec" if self.latent else FULL_ATTENTION,
            head_dim_v=self.head_dim_v, chunk=self.chunk, context_parallel=self.context_parallel,
            multimodal_prefix=self.multimodal_prefix,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Served:
    """What serves steps of up to `batch` requests, down to half of it.

    Attributes:
        batch: the bucket.
        q_len, causal: the step's.
        resolution: engine, knobs, where each came from, and every step that led there.
    """

    batch: int
    q_len: int
    causal: bool
    resolution: Resolution


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a server would do.

    Attributes:
        refusal: why the model's attention would run on the fallback, or None.
        rows: what serves, by query length and batch; none where it is refused.
    """

    refusal: str | None
    rows: tuple[Served, ...] = ()


def explain(
    model: Model,
    device: Device,
    *,
    environ: Mapping[str, str] = os.environ,
    defaults: Defaults | None = None,
    placement: Placement | None = None,
    batches: Iterable[int] = BATCHES,
    speculative_tokens: int = 0,
    parallel_drafter: bool = False,
) -> Explanation:
    """What a server would use, by the same rules and the same tables.

    Args:
        model: the model's attention on one GPU.
        device: the GPU.
        environ: settings and overrides.
        defaults: the tables; None reads those in force.
        placement: how the cache lies; None = as the backend asks vLLM to lay it.
        batches: numbers of requests, folded to buckets.
        speculative_tokens: what a drafter proposes.
        parallel_drafter: whether it fills in blocks that are not causal.

    Raises:
        ValueError: a setting that is not allowed, or knobs that do not fit together; the message names the sources.
    """
    settings = Settings.read(environ)
    tables = defaults or Defaults.load(environ, kernel_hash=kernel_hash())
    if reason := refusal(model.group):
        return Explanation(reason)
    most = min(1 + speculative_tokens, settings.max_qlen or MAX_Q_LEN, MAX_Q_LEN)
    geometry = geometry_of(model.group, settings.q_dtype or BEST_QUERY)
    steps = [(q_len, True) for q_len in range(1, most + 1)]
    if parallel_drafter and settings.noncausal and most > 1:
        steps.append((most, False))
    buckets = sorted({bucket_of(batch) for batch in batches})
    lies = placement or Placement()
    rows = [
        Served(batch, q_len, causal, tables.lookup(device, step_of(geometry, q_len, causal), lies, batch))
        for q_len, causal in steps
        for batch in buckets
    ]
    return Explanation(None, tuple(rows))
