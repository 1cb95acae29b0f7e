"""Attention's time from a trace: by place, by name, and without what overlaps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mjolnir.research.serving.kernels import Kernel, alone, attention, read_trace

GEMM, WRITE = "nvjet_sm90_tst_128x64", "void vllm::reshape_and_cache_flash_kernel<x>"
LAYER = (GEMM, "rms_norm_kernel", "rotary_embedding_kernel", WRITE)


def row(*names: str, each: float = 10.0) -> list[Kernel]:
    """Kernels one after another, with gaps of a microsecond."""
    return [Kernel(i * (each + 1), i * (each + 1) + each, name) for i, name in enumerate(names)]


def test_what_lies_between_cache_write_and_projection_is_attention() -> None:
    found = attention(row(*LAYER, "anything", "else", GEMM, "silu") * 1, layers=1)
    assert (found.steps, found.us) == (1, 20.0)
    assert set(found.kernels) == {"anything", "else"}
    assert set(found.others) == {*LAYER, "silu"}


def test_steps_are_counted_by_their_cache_writes() -> None:
    found = attention(row(*[*LAYER, "decode_x", GEMM] * 6), layers=2)
    assert (found.steps, found.us, found.kernels) == (3, 20.0, {"decode_x": 20.0})


@pytest.mark.parametrize(
    "name",
    [
        "kernel_cutlass_kernel_mjolnirkernelenginesplannerPlanner_object",
        "void vllm::scaled_fp8_quant_kernel_strided<bf16>",
    ],
)
def test_the_plan_and_what_prepares_q_count_by_name(name: str) -> None:
    assert attention(row(name, *LAYER, "decode_x", GEMM), layers=1).us == 20.0


def test_an_attention_kernel_with_a_product_in_its_name_ends_nothing() -> None:
    names = ("flash::FlashAttnFwdSm90<cutlass::gemm::Mainloop>", "flash_fwd_combine")
    found = attention(row(*LAYER, *names, GEMM), layers=1)
    assert (found.us, set(found.kernels)) == (20.0, set(names))


@pytest.mark.parametrize(
    ("names", "layers", "words"),
    [
        ((GEMM, "x"), 1, "0 cache writes"),
        ((*LAYER, "x", GEMM), 2, "no multiple of 2 layers"),
        ((*LAYER, "x", "y"), 1, "after 1 of 1 cache writes no matrix product"),
    ],
)
def test_a_trace_that_does_not_fit_is_refused(names: tuple[str, ...], layers: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        attention(row(*names), layers)


def test_overlap_counts_once_and_not_beside_others() -> None:
    ours = [Kernel(0, 10, "a"), Kernel(8, 20, "b")]
    assert alone(ours, []) == 20
    assert alone(ours, [Kernel(-5, 4, "x"), Kernel(18, 30, "y")]) == 14
    assert alone([Kernel(0, 5, "a"), Kernel(5, 9, "b")], [Kernel(5, 5, "x")]) == 9
    assert alone([], [Kernel(0, 1, "x")]) == 0


def test_a_trace_is_read_in_the_order_of_begins(tmp_path: Path) -> None:
    events = [
        {"cat": "kernel", "name": "late", "ts": 5.5, "dur": 1.5},
        {"cat": "cpu_op", "name": "host", "ts": 0, "dur": 9},
        {"cat": "gpu_memset", "name": "Memset", "ts": 1, "dur": 2},
        {"name": "no category"},
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    assert read_trace(path) == [Kernel(1, 3, "Memset"), Kernel(5.5, 7.0, "late")]
