"""A kernel that is not there: what a runner would launch is kept, so that runners can be watched on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from mjolnir.kernel import cache
from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.runner import Runner

DEVICE = Device("sm_90a", "Fake", 4)
NAMES = (
    "query", "k_cache", "v_cache", "table", "lengths", "out", "lse", "k_scale", "v_scale", "q_mul", "o_mul", "cuts",
    "tiles", "partial", "partial_lse", "counters", "scale",
)  # fmt: skip
"""The launch function's arguments, in its order."""

PLAN_NAMES = ("lengths", "cuts", "tiles", "counters", "items_per_sequence", "max_splits", "capacity", "margin")


@dataclass
class Launches:
    """What was launched, newest last.

    Attributes:
        layers: arguments of each launch of a layer, by name.
        plans: the same of each plan.
        body: what the kernel does.
    """

    layers: list[dict[str, Any]] = field(default_factory=list)
    plans: list[dict[str, Any]] = field(default_factory=list)
    body: Callable[[dict[str, Any]], None] = lambda given: None

    def layer(self, *given: Any) -> None:
        self.layers.append(dict(zip(NAMES, given, strict=True)))
        self.body(self.layers[-1])

    def plan(self, *given: Any) -> None:
        self.plans.append(dict(zip(PLAN_NAMES, given, strict=True)))


def install(monkeypatch: pytest.MonkeyPatch) -> Launches:
    """Put `Launches` in the place of the compiled functions of all runners made from here on."""
    launches = Launches()
    layer = cache.Built("layer", Path("layer.o"), "0" * 64, 100, 0, 1024, 0.0)
    plan = cache.Built("plan", Path("plan.o"), "0" * 64, 32, 0, 0, 0.0)
    monkeypatch.setattr(cache, "build", lambda *_: layer)
    monkeypatch.setattr(cache, "build_plan", lambda *_: plan)
    monkeypatch.setattr(cache, "load", lambda built: launches.layer if built is layer else launches.plan)
    return launches


def runner(geometry: Geometry, max_batch: int = 8, capacity: int = 256, **options: Any) -> Runner:
    """A runner on the CPU."""
    return Runner(Setting(), geometry, DEVICE, max_batch=max_batch, capacity=capacity, cuda_device="cpu", **options)


def arguments(geometry: Geometry, batch: int, capacity: int = 256) -> dict[str, Any]:
    """Plain arguments of `run`, by name."""
    width = capacity // geometry.page_size
    tokens = batch * geometry.q_len
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[geometry.dtype]
    pool = (batch * width, geometry.page_size, geometry.heads_kv, geometry.head_dim)
    return {
        "query": torch.randn(tokens, geometry.heads_q, geometry.head_dim).to(dtype),
        "k_cache": torch.randint(0, 0x7F, pool, dtype=torch.uint8),
        "v_cache": torch.randint(0, 0x7F, pool, dtype=torch.uint8),
        "block_table": torch.arange(batch * width, dtype=torch.int32).view(batch, width),
        "seq_lens": torch.full((batch,), capacity, dtype=torch.int32),
        "out": torch.zeros(tokens, geometry.heads_q, geometry.head_dim, dtype=dtype),
        "k_scale": torch.ones(()),
        "v_scale": torch.ones(()),
    }
