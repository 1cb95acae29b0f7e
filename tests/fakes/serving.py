"""vLLM's side of the backend, as far as the backend looks at it: configuration, layers, steps, and a stock backend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mjolnir.backend import agreement, logs, versions
from mjolnir.backend.lookup import Defaults
from mjolnir.backend.overrides import PREFIX
from mjolnir.backend.settings import Settings
from mjolnir.backend.stock import subclass
from mjolnir.kernel.cache import CompileError
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting


class FullAttentionSpec(SimpleNamespace):
    """Named as vLLM's, since the rules read the name."""


def settings(**texts: str) -> Settings:
    """Settings as a user writes them, by the end of their names: `settings(max_qlen="2")`."""
    return Settings.read({PREFIX + name.upper(): text for name, text in texts.items()})


def spec(heads_kv: int = 2, head_dim: int = 128, block_size: int = 64, **changes: Any) -> Any:
    """The description of an fp8 cache."""
    values = {
        "num_kv_heads": heads_kv, "head_size": head_dim, "head_size_v": head_dim, "block_size": block_size,
        "kv_quant_mode": SimpleNamespace(name="FP8_PER_TENSOR"), "sliding_window": None, "attention_chunk_size": None,
        "state_content_bytes": None, "num_head_slots": None, "tokens_per_state": 1,
    }  # fmt: skip
    return FullAttentionSpec(**{**values, **changes})


def config(speculative: int = 0, **changes: Any) -> Any:
    """vLLM's configuration of a small server."""
    drafter = SimpleNamespace(num_speculative_tokens=speculative, parallel_drafting=False) if speculative else None
    values: dict[str, Any] = {
        "model_config": SimpleNamespace(dtype=torch.bfloat16, is_mm_prefix_lm=False, rswa_window=None),
        "parallel_config": SimpleNamespace(decode_context_parallel_size=1, prefill_context_parallel_size=1),
        "scheduler_config": SimpleNamespace(max_num_seqs=8),
        "compilation_config": SimpleNamespace(static_forward_context={}, max_cudagraph_capture_size=4),
        "attention_config": SimpleNamespace(use_non_causal=False),
        "device_config": SimpleNamespace(device_type="cpu"),
        "cache_config": SimpleNamespace(get_resolved_kv_cache_layout=lambda: SimpleNamespace(name="LBHNC")),
        "speculative_config": drafter,
    }
    return SimpleNamespace(**{**values, **changes})


def step(q_lens: list[int], lengths: list[int] | None = None, *, tokens: int | None = None, **changes: Any) -> Any:
    """One step's facts as vLLM has them; `tokens` where a CUDA graph is padded to more than there are."""
    starts = torch.tensor([0, *q_lens]).cumsum(0).int()
    seq_lens = torch.tensor(lengths or [10 + q for q in q_lens], dtype=torch.int32)
    count = sum(q_lens) if tokens is None else tokens
    width = -(-int(seq_lens.max()) // 64) + 1
    values = {
        "num_reqs": len(q_lens), "num_actual_tokens": count, "max_query_len": max(q_lens),
        "max_seq_len": int(seq_lens.max()), "query_start_loc": starts, "query_start_loc_cpu": starts,
        "seq_lens": seq_lens, "block_table_tensor": torch.arange(len(q_lens) * width).int().view(-1, width),
        "slot_mapping": torch.arange(count), "causal": True, "is_prefilling": None,
    }  # fmt: skip
    return SimpleNamespace(**{**values, **changes})


class StockBuilder:
    """A stock metadata builder that grants everything."""

    support = "ALWAYS"
    supports_update_block_table = True
    supports_draft_decode_metadata_update = True

    def __init__(self, spec: Any, names: list[str], config: Any, device: torch.device) -> None:
        self.updated: list[Any] = []

    @classmethod
    def get_cudagraph_support(cls, config: Any, spec: Any) -> Any:
        return SimpleNamespace(name=cls.support)

    @classmethod
    def get_varlen_cudagraph_max_query_len(cls, config: Any, spec: Any) -> int:
        return 9

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        return SimpleNamespace(stock=True, step=common_attn_metadata, prefix=common_prefix_len, fast=fast_build)

    def build_for_cudagraph_capture(self, common_attn_metadata: Any) -> Any:
        return SimpleNamespace(captured=self.build(0, common_attn_metadata))

    def update_draft_decode_metadata(self, metadata: Any) -> None:
        self.updated.append(metadata)


class StockImpl:
    """A stock implementation that writes sevens and keeps what it was called with."""

    takes_fp8 = True

    def __init__(self, *given: Any, **named: Any) -> None:
        self.scale = named["scale"]
        self.supports_quant_query_input = self.takes_fp8
        self.calls: list[dict[str, Any]] = []

    def fused_output_quant_supported(self, quant_key: Any) -> bool:
        return True

    def forward(
        self, layer: Any, query: Any, key: Any, value: Any, kv_cache: Any, attn_metadata: Any, output: Any, **more: Any
    ) -> Any:
        believed = self.supports_quant_query_input
        self.calls.append({"query": query, "metadata": attn_metadata, "believed": believed, **more})
        return output.fill_(7)


class StockBackend:
    """A stock backend that can do everything."""

    blocks: tuple[Any, ...] = (SimpleNamespace(base=16),)
    layouts: tuple[str, ...] | None = None
    reasons: tuple[str, ...] = ()

    @staticmethod
    def get_name() -> str:
        return "STOCK"

    @staticmethod
    def get_impl_cls() -> type:
        return StockImpl

    @staticmethod
    def get_builder_cls() -> type:
        return StockBuilder

    @classmethod
    def get_supported_kernel_block_sizes(cls, spec: Any = None) -> list[Any]:
        return list(cls.blocks)

    @classmethod
    def get_preferred_block_size(cls, default: int) -> int:
        return default

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[str, ...] | None:
        return cls.layouts

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        return True

    @classmethod
    def validate_configuration(cls, **named: Any) -> list[str]:
        return list(cls.reasons)


@dataclass
class Watched:
    """A launcher that keeps what it was asked for."""

    geometry: Geometry
    setting: Setting
    engine: str
    max_batch: int
    workspace_bytes: int = 100
    plans: list[dict[str, Any]] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)

    def plan(self, seq_lens: torch.Tensor, margin: int = 0, *, capacity: int | None = None) -> None:
        self.plans.append({"seq_lens": seq_lens, "margin": margin, "capacity": capacity})

    def run(self, *given: Any) -> None:
        names = "query", "k_cache", "v_cache", "block_table", "seq_lens", "out", "k_scale", "v_scale", "scale"
        self.runs.append(dict(zip(names, given, strict=True)))
        given[5].fill_(3)


@dataclass
class WatchedMaker:
    """Makes watched launchers; settings of which `fails` is true do not compile."""

    compiled: list[tuple[Geometry, Setting, str]] = field(default_factory=list)
    made: list[Watched] = field(default_factory=list)
    fails: Any = None

    def compile(self, geometry: Geometry, setting: Setting, engine: str) -> None:
        self.compiled.append((geometry, setting, engine))
        if self.fails and self.fails(setting):
            raise CompileError("it spills")

    def make(self, geometry: Geometry, setting: Setting, engine: str, max_batch: int) -> Watched:
        self.made.append(Watched(geometry, setting, engine, max_batch))
        return self.made[-1]


@dataclass
class Server:
    """A stock backend with Mjolnir over it, and one KV group of layers.

    Attributes:
        backend: the class that vLLM would load.
        config, spec: vLLM's.
        layers: the group's, by name.
        builder: its metadata builder.
    """

    backend: Any
    config: Any
    spec: Any
    layers: dict[str, Any]
    builder: Any

    def layer(self) -> Any:
        return next(iter(self.layers.values()))


def quiet(monkeypatch: pytest.MonkeyPatch, *, defaults: Defaults | None = None, invariant: bool = False) -> None:
    """Stand in for what `versions` asks of vLLM, in a process that has logged nothing."""
    logs.forget()
    monkeypatch.setattr(versions, "batch_invariant", lambda: invariant)
    monkeypatch.setattr(versions, "building_drafter", lambda: False)
    monkeypatch.setattr(versions, "gather", lambda value: [value])
    monkeypatch.setattr(versions, "first_rank", lambda: True)
    monkeypatch.setattr(versions, "support", lambda name: name)
    monkeypatch.setattr(versions, "all_layouts", lambda first: (first, "others"))
    monkeypatch.setattr(agreement, "defaults", lambda gather: defaults or Defaults(()))


def serve(
    settings: Settings | None = None,
    *,
    stock: Any = StockBackend,
    name: str = "FLASH_ATTN",
    speculative: int = 0,
    layers: int = 2,
    heads_q: int = 8,
    changes: dict[str, Any] | None = None,
    described: dict[str, Any] | None = None,
    asked: dict[str, Any] | None = None,
    device: str = "cpu",
) -> Server:
    """A server's group, built as vLLM builds it: layers first, then the metadata builder.

    Args:
        settings: the user's.
        stock, name: the fallback.
        speculative: tokens that a drafter proposes.
        layers: how many there are.
        heads_q: query heads of each.
        changes, described, asked: of the configuration, the cache's description, and what layers ask for.
        device: where it runs.
    """
    backend: Any = subclass(stock, name, settings or Settings(), cpu=False)
    cache, server = spec(**(described or {})), config(speculative, **(changes or {}))
    server.device_config.device_type = torch.device(device).type
    given = {"kv_cache_dtype": "fp8", "scale": 0.1, "num_kv_heads": 2, "head_size": 128, "num_heads": heads_q}
    for number in range(layers):
        impl = backend.get_impl_cls()(**{**given, **(asked or {})})
        scale = torch.ones((), device=device)
        server.compilation_config.static_forward_context[f"layer.{number}"] = SimpleNamespace(
            impl=impl, _q_scale=scale, _k_scale=scale, _v_scale=scale
        )
    known = server.compilation_config.static_forward_context
    builder = backend.get_builder_cls()(cache, list(known), server, torch.device(device))
    return Server(backend, server, cache, dict(known), builder)


class Sealed(TorchDispatchMode):
    """Fails on whatever a CUDA graph's capture may not see: new memory, and values that the host waits for."""

    WAITS = ("aten._local_scalar_dense", "aten.item", "aten.nonzero", "aten.is_nonzero")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func).startswith(self.WAITS):
            raise AssertionError(f"{func} waits for the device")
        result = func(*args, **(kwargs or {}))
        known = {storage(item) for item in _tensors((args, kwargs))}
        if new := [item for item in _tensors(result) if storage(item) not in known]:
            raise AssertionError(f"{func} allocates {[tuple(item.shape) for item in new]}")
        return result


class Operators(TorchDispatchMode):
    """The names of torch's operators that run meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def storage(tensor: torch.Tensor) -> int:
    """What tells one tensor's memory from another's."""
    return int(tensor.untyped_storage()._cdata)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


@contextmanager
def capture(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A CUDA graph's capture, in which nothing may be compiled, allocated or waited for."""
    from mjolnir.backend import resolve
    from mjolnir.kernel import cache

    with monkeypatch.context() as patch, Sealed():
        patch.setattr(resolve, "is_capturing", lambda: True)
        patch.setattr(cache, "build", lambda *_: pytest.fail("compiles within a capture"))
        patch.setattr(cache, "load", lambda *_: pytest.fail("loads within a capture"))
        yield
