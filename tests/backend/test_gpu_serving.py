"""Builder, implementation and kernel on a GPU, as vLLM drives them: captured, and replayed with other lengths."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mjolnir.backend import service
from mjolnir.backend.cpu import TorchAttention
from mjolnir.backend.metadata import DecodeMetadata
from tests.fakes import serving
from tests.fakes.serving import Server, serve, settings, step

pytestmark = pytest.mark.gpu
LAYERS, BLOCKS, WIDTH = 2, 64, 8
MEMORY = {"HND": (0, 1, 2, 3), "NHD": (0, 2, 1, 3)}
"""Orders of blocks, heads and tokens in memory."""


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One compile cache for all."""
    place = tmp_path_factory.mktemp("kernels")
    place.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "kernel_folder", lambda *_: place)
        yield place


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    serving.quiet(monkeypatch)


def caches(order: str, dim: int) -> list[torch.Tensor]:
    """A cache a layer, logical (blocks, heads, tokens, 2 head_dim), whose codes are finite."""
    sizes, places = (BLOCKS, 2, 64, 2 * dim), MEMORY[order]
    made = []
    for seed in range(LAYERS):
        torch.manual_seed(seed)
        values = torch.randn([sizes[place] for place in places], device="cuda").to(torch.float8_e4m3fn)
        made.append(values.view(torch.uint8).permute(places))
    return made


def lengths_of(facts: Any, lengths: list[int]) -> None:
    """Change a step's lengths in place, as vLLM does between replays."""
    facts.seq_lens.copy_(torch.tensor(lengths, dtype=torch.int32))


def on_gpu(q_lens: list[int], lengths: list[int], **changes: Any) -> Any:
    """A step whose device tensors are on the GPU, with pages in no order."""
    facts = step(q_lens, lengths, **changes)
    torch.manual_seed(7)
    facts.block_table_tensor = torch.randint(1, BLOCKS, (len(q_lens), WIDTH), dtype=torch.int32)
    for name in ("query_start_loc", "seq_lens", "block_table_tensor", "slot_mapping"):
        setattr(facts, name, getattr(facts, name).cuda())
    return facts


def expected(server: Server, query: torch.Tensor, cache: torch.Tensor, facts: Any) -> torch.Tensor:
    """The same by PyTorch on the CPU."""
    plain: Any = TorchAttention()
    layer = server.layer().impl.mjolnir_layer
    values = {
        "num_heads": layer.heads_q, "num_kv_heads": layer.heads_kv, "head_size": layer.head_dim, "scale": 0.1,
        "kv_cache_dtype": "fp8", "logits_soft_cap": 0, "sliding_window": (-1, -1), "alibi_slopes": None, "sinks": None,
    }  # fmt: skip
    for name, value in values.items():
        setattr(plain, name, value)
    scales = SimpleNamespace(_k_scale=torch.ones(()), _v_scale=torch.ones(()))
    metadata = SimpleNamespace(
        query_start_loc=facts.query_start_loc_cpu, seq_lens=facts.seq_lens.cpu(),
        block_table=facts.block_table_tensor.cpu(), causal=facts.causal,
    )  # fmt: skip
    out = torch.zeros_like(query, device="cpu")
    result: torch.Tensor = plain.forward(scales, query.cpu(), None, None, cache.cpu(), metadata, out)
    return result


def attend(server: Server, metadata: Any, query: torch.Tensor, kv: list[torch.Tensor], out: torch.Tensor) -> None:
    """All layers, each into its part of `out`."""
    for layer, cache, target in zip(server.layers.values(), kv, out, strict=True):
        layer.impl.forward(layer, query, None, None, cache, metadata, output=target)


@pytest.mark.parametrize("order", MEMORY)
@pytest.mark.parametrize(
    ("q_len", "dim", "texts"),
    [
        (1, 128, {}),
        (4, 128, {}),
        (1, 256, {}),
        (4, 128, {"q_dtype": "fp8"}),
        (4, 128, {"q_dtype": "fp8", "fused_qpack": "off"}),
    ],
)
def test_a_captured_step_replays_with_other_lengths(order: str, q_len: int, dim: int, texts: dict[str, str]) -> None:
    """Capture with one length each, replay with others: the graph makes its plan anew, and `build` launches nothing."""
    server = serve(
        settings(**texts), speculative=q_len - 1, described={"head_dim": dim}, asked={"head_size": dim}, device="cuda"
    )
    kv, batch = caches(order, dim), 3
    facts = on_gpu([q_len] * batch, [q_len] * batch)
    query = torch.randn(batch * q_len, 8, dim, device="cuda").bfloat16()
    out = torch.zeros(LAYERS, *query.shape, device="cuda", dtype=query.dtype)
    metadata = server.builder.build_for_cudagraph_capture(facts)
    assert isinstance(metadata, DecodeMetadata)
    attend(server, metadata, query, kv, out)  # warms up, and the graph has to plan all the same
    torch.cuda.synchronize()
    graph, counts = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        counts.append(torch.cuda.memory_stats()["allocation.all.allocated"])
        attend(server, metadata, query, kv, out)
        counts.append(torch.cuda.memory_stats()["allocation.all.allocated"])
    assert counts[0] == counts[1]
    for lengths in ([400, 65, 64], [q_len, 500, 0], [512, 512, 512]):
        lengths_of(facts, lengths)
        torch.cuda.set_sync_debug_mode("error")
        try:
            replayed = server.builder.build(0, facts)
            graph.replay()
            assert replayed.planned is None
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert replayed.launcher is metadata.launcher
        for cache, found in zip(kv, out, strict=True):
            wanted = expected(server, query, cache, facts)
            bound = 0.1 if texts else 0.02
            torch.testing.assert_close(found.cpu().float(), wanted.float(), rtol=bound, atol=bound)


def test_padding_requests_and_more_rows_than_tokens() -> None:
    server = serve(device="cuda")
    kv = caches("HND", 128)
    facts = on_gpu([1, 1, 0, 0], [100, 300, 0, 0], tokens=4)
    query = torch.randn(4, 8, 128, device="cuda").bfloat16()
    out = torch.full((LAYERS, *query.shape), 9.0, device="cuda", dtype=query.dtype)
    attend(server, server.builder.build(0, facts), query, kv, out)
    assert (out[:, 2:] == 0).all()
    torch.testing.assert_close(out[0].cpu(), expected(server, query, kv[0], facts), rtol=0.02, atol=0.02)


def test_a_non_causal_block_and_lengths_that_advance_within_the_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    from mjolnir.backend import versions

    monkeypatch.setattr(versions, "building_drafter", lambda: True)
    parallel = {"speculative_config": SimpleNamespace(num_speculative_tokens=3, parallel_drafting=True)}
    server = serve(changes=parallel, device="cuda")
    kv = caches("HND", 128)
    block = on_gpu([4, 4], [100, 300], causal=False)
    query = torch.randn(8, 8, 128, device="cuda").bfloat16()
    out = torch.zeros(LAYERS, *query.shape, device="cuda", dtype=query.dtype)
    attend(server, server.builder.build(0, block), query, kv, out)
    torch.testing.assert_close(out[1].cpu(), expected(server, query, kv[1], block), rtol=0.02, atol=0.02)
    facts = on_gpu([1, 1], [63, 128])
    metadata = server.builder.build(0, facts)
    for _ in range(3):
        facts.seq_lens += 1
        server.builder.update_draft_decode_metadata(metadata)
        attend(server, metadata, query[:2], kv, out[:, :2])
        torch.testing.assert_close(out[0, :2].cpu(), expected(server, query[:2], kv[0], facts), rtol=0.02, atol=0.02)
