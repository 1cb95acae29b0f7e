"""The query: as a fallback wants it, back from it, and quantised by PyTorch just as the kernel would do it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mjolnir.backend.emulated import EmulatedLauncher
from mjolnir.backend.query import E4M3, UnfusedQuery, dequantise, native, quantise
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from tests.fakes.launches import arguments
from tests.fakes.serving import Sealed, Watched

FP8 = Geometry(8, 2, page_size=16, q_format="fp8")


def test_a_query_is_divided_by_its_scale_and_saturates() -> None:
    query = torch.tensor([[[1.0, 3.0, -4000.0]]], dtype=torch.bfloat16)
    codes = quantise(query, torch.tensor(0.5), 1)
    assert codes.dtype == E4M3
    assert codes.float().tolist() == [[[2.0, 6.0, -448.0]]]
    assert dequantise(codes, torch.tensor(0.5), 1, torch.bfloat16).tolist() == [[[1.0, 3.0, -224.0]]]


def test_vllms_kernel_does_it_where_there_is_one_scale() -> None:
    asked: list[tuple[int, ...]] = []

    def fused(rows: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(tuple(rows.shape))
        return (rows.float() / scale).to(E4M3), scale

    query = torch.randn(3, 5, 4, dtype=torch.float32)[:, 1:].bfloat16()
    assert torch.equal(
        quantise(query, torch.tensor(2.0), 2, fused).view(torch.uint8),
        quantise(query, torch.tensor(2.0), 2).view(torch.uint8),
    )
    assert asked == [(3, 16)]
    quantise(query, torch.tensor([2.0, 1.0]), 2, fused)
    assert len(asked) == 1


def test_a_scale_for_each_kv_head_serves_its_query_heads() -> None:
    query = torch.ones(1, 4, 1, dtype=torch.float16)
    scale = torch.tensor([0.5, 0.25])
    codes = quantise(query, scale, 2)
    assert codes.float().flatten().tolist() == [2.0, 2.0, 4.0, 4.0]
    assert torch.equal(dequantise(codes, scale, 2, torch.float16), query)


@pytest.mark.parametrize("geometry", [FP8, replace(FP8, q_len=3, dtype="f16"), replace(FP8, heads_q=6, head_dim=256)])
def test_operators_of_pytorch_quantise_as_the_kernel_does(geometry: Geometry) -> None:
    torch.manual_seed(1)
    given = arguments(geometry, 3)
    given["query"] *= torch.rand(len(given["query"]), 1, 1) * 100
    given["seq_lens"] = torch.tensor([200, 0, 77], dtype=torch.int32)
    given["k_scale"] = torch.tensor(0.02)
    fused = EmulatedLauncher(geometry, Setting(), "warp", 4)
    unfused = UnfusedQuery(
        EmulatedLauncher(native(geometry), Setting(), "warp", 4), native(geometry), 4, torch.device("cpu")
    )
    results = []
    for launcher in (fused, unfused):
        given["out"] = torch.full_like(given["out"], 9)
        launcher.plan(given["seq_lens"], capacity=256)
        launcher.run(**given, scale=0.09)
        results.append(given["out"])
    torch.testing.assert_close(results[1], results[0], rtol=1e-2, atol=1e-3)
    assert not torch.equal(results[0], torch.zeros_like(results[0]))


def test_operators_of_pytorch_allocate_nothing() -> None:
    geometry = native(FP8)
    given = arguments(geometry, 3)
    inner = Watched(geometry, Setting(), "warp", 4)
    unfused = UnfusedQuery(inner, geometry, 4, torch.device("cpu"))
    with Sealed():
        unfused.run(**given, scale=0.09)
    seen = inner.runs[0]
    assert seen["k_scale"].shape == (3, 2)
    assert seen["query"].shape == (3, 8, 128)
    assert seen["query"].abs().max() == 448
    assert unfused.workspace_bytes == 100 + 4 * 8 * 128 * (4 + 1 + 2) + 2 * 4 * 2 * 4
