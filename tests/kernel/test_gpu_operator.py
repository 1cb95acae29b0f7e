"""`decode`, the runner's streams and devices, and the harness on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mjolnir.kernel import decode, operator
from mjolnir.kernel.__main__ import main
from mjolnir.kernel.cache import VARIABLE
from mjolnir.kernel.device import current_device
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.layouts import LAYOUTS, allocate, views
from mjolnir.kernel.reference import attention_f64
from mjolnir.kernel.runner import Runner
from mjolnir.kernel.tolerance import excess, lse_excess
from tests.kernel.problems import problem

pytestmark = pytest.mark.gpu
LENGTHS = (3000, 37, 0, 1024, 5)


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One compile cache for all."""
    with pytest.MonkeyPatch.context() as patch:
        place = tmp_path_factory.mktemp("kernels")
        patch.setenv(VARIABLE, str(place))
        yield place


def on_gpu(geometry: Geometry, layout: str = "BHN2D", device: str = "cuda", **options: Any) -> dict[str, Any]:
    """Arguments of `decode`, and under "wanted" those of the reference."""
    wanted = problem(geometry, LENGTHS, **options)
    wanted |= {"k_scale": torch.tensor(0.5), "v_scale": torch.rand(len(LENGTHS), geometry.heads_kv) + 0.5}
    cache = allocate(layout, wanted["k"].shape[0], geometry)
    for part, values in zip(views(cache, geometry, layout), (wanted["k"], wanted["v"]), strict=True):
        part.copy_(values)
    names = ("block_table", "seq_lens", "k_scale", "v_scale", "q_mul", "o_mul")
    moved = {name: None if wanted[name] is None else wanted[name].to(device) for name in names}
    return {
        "query": wanted["q"].to(device), "kv_cache": cache.to(device), **moved, "q_len": geometry.q_len,
        "causal": geometry.causal, "q_format": geometry.q_format, "wanted": wanted,
    }  # fmt: skip


def check(out: torch.Tensor, lse: torch.Tensor, wanted: dict[str, Any]) -> None:
    expected, expected_lse = attention_f64(**wanted)
    assert excess(out.cpu(), expected, wanted["geometry"], wanted["o_mul"]) <= 1
    assert lse_excess(lse.cpu(), expected_lse) <= 1


@pytest.mark.parametrize(
    "geometry",
    [
        Geometry(32, 8),
        Geometry(8, 2, page_size=16, q_len=3),
        Geometry(8, 2, page_size=32, q_len=4, causal=False, dtype="f16"),
        Geometry(16, 2, 256),
        Geometry(64, 8, q_len=8),
        Geometry(32, 8, q_format="fp8"),
        Geometry(16, 2, 256, q_format="fp8"),
        Geometry(40, 8, 256, page_size=16, q_format="fp8"),
    ],
    ids=str,
)
def test_the_operator_agrees_with_f64(geometry: Geometry) -> None:
    given = on_gpu(geometry, q_mul=True, o_mul=True)
    wanted = given.pop("wanted")
    check(*decode(**given, return_lse=True), wanted)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(layout: str) -> None:
    given = on_gpu(Geometry(32, 8, page_size=16), layout)
    wanted = given.pop("wanted")
    check(*decode(**given, return_lse=True), wanted)


def test_it_compiles_without_a_graph_break() -> None:
    given = on_gpu(Geometry(32, 8))
    wanted, query = given.pop("wanted"), given.pop("query")

    @torch.compile(fullgraph=True)
    def model(halved: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = decode(halved * 2, **given, return_lse=True)
        return out * 4, lse

    out, lse = model(query / 2)
    check(out / 4, lse, wanted)


def test_a_graph_replays_with_other_lengths_and_queries() -> None:
    given = on_gpu(Geometry(32, 8, q_len=2))
    wanted = given.pop("wanted")
    out = torch.empty_like(given["query"])
    decode(**given, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decode(**given, out=out)
    captured = [entry for entry in operator.RUNNERS._kept.values() if entry.captured]
    assert len(captured) == 1
    for divisor in (1, 3, 64):
        lengths = torch.tensor([length // divisor for length in LENGTHS], dtype=torch.int32)
        query = torch.randn(wanted["q"].shape).to(torch.bfloat16)
        given["seq_lens"].copy_(lengths)
        given["query"].copy_(query)
        out.fill_(torch.nan)
        graph.replay()
        expected, _ = attention_f64(**{**wanted, "q": query, "seq_lens": lengths})
        assert excess(out.cpu(), expected, wanted["geometry"]) <= 1


def test_two_streams_at_once_give_what_one_gives() -> None:
    given = [on_gpu(Geometry(32, 8), seed=seed) for seed in (0, 1)]
    alone = []
    for item in given:
        item.pop("wanted")
        alone.append(decode(**item))
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in given]
    found: list[list[torch.Tensor]] = [[], []]
    for _ in range(50):
        for stream, item, outs in zip(streams, given, found, strict=True):
            with torch.cuda.stream(stream):
                outs.append(decode(**item))
    torch.cuda.synchronize()
    for outs, right in zip(found, alone, strict=True):
        assert all(torch.equal(out, right) for out in outs)


def test_a_runner_that_is_warm_allocates_nothing() -> None:
    geometry = Geometry(32, 8)
    given = on_gpu(geometry)
    k, v = views(given["kv_cache"], geometry)
    fused = torch.randn(len(LENGTHS), 3 * 4096 + 3, dtype=torch.bfloat16, device="cuda")
    odd, plain = fused[:, 3 : 3 + 4096], given["query"]
    runner = Runner(Setting(), geometry, current_device(), max_batch=8, capacity=3008)

    def step() -> None:
        runner.plan(given["seq_lens"])
        for query in (plain, odd):
            out = plain if query is odd else odd
            runner.run(query, k, v, given["block_table"], given["seq_lens"], out, given["k_scale"], given["v_scale"])

    step()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(10):
        step()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_on_another_device_than_the_current_one() -> None:
    given = on_gpu(Geometry(32, 8), device="cuda:1")
    wanted = given.pop("wanted")
    assert torch.cuda.current_device() == 0
    check(*decode(**given, return_lse=True), wanted)
    assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("geometry", ["32/8xd128,q=4,causal=no", "16/2xd256,query=fp8", "64/8xd128,page=16,q=8"])
def test_the_harness_finds_the_kernel_right(geometry: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--geometry", geometry, "--batch", "3", "--context", "2000", "--repeats", "3"]) == 0
    assert "of its bound" in capsys.readouterr().out
