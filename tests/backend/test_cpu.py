"""Attention in PyTorch for the CPU platform, against the reference; the emulator behind the same launcher."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mjolnir.backend.cache_view import CacheViews
from mjolnir.backend.cpu import TorchAttention
from mjolnir.backend.emulated import EmulatedLauncher, EmulatedMaker
from mjolnir.backend.launcher import warm
from mjolnir.kernel.formats import FORMATS
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting

HEADS, HEADS_KV, DIM, BLOCK = 4, 2, 128, 16
LENGTHS, Q_LENS = [40, 17, 1], [5, 17, 1]
LAYER = SimpleNamespace(_k_scale=torch.tensor(0.5), _v_scale=torch.tensor([0.25, 2.0]))


def attention(**changes: Any) -> Any:
    values = {
        "num_heads": HEADS, "num_kv_heads": HEADS_KV, "head_size": DIM, "scale": DIM**-0.5, "kv_cache_dtype": "fp8",
        "logits_soft_cap": 0, "sliding_window": (-1, -1), "alibi_slopes": None, "sinks": None,
    }  # fmt: skip
    made = TorchAttention()
    for name, value in {**values, **changes}.items():
        setattr(made, name, value)
    return made


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, i: int, length: int, **rule: Any) -> torch.Tensor:
    """One query token over one KV head's keys, spelled out; `i` is the token's position."""
    weights = []
    for j in range(length):
        score = float(q @ k[j]) * DIM**-0.5
        if cap := rule.get("cap"):
            score = cap * float(torch.tanh(torch.tensor(score / cap)))
        score -= rule.get("slope", 0.0) * (i - j)
        seen = (j <= i or not rule.get("causal", True)) and abs(i - j) <= rule.get("window", 10**9)
        weights.append(score if seen else -float("inf"))
    scores = torch.tensor([*weights, *rule.get("sink", [])])
    return scores.softmax(0)[:length] @ v[:length]


def filled(
    made: Any, dtype: torch.dtype = torch.uint8
) -> tuple[torch.Tensor, Any, list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]]:
    """A cache that was written by it, a step's metadata, and each request's Q, K and V."""
    torch.manual_seed(3)
    cache = torch.zeros(12, HEADS_KV, BLOCK, 2 * DIM, dtype=dtype)
    table, taken, requests, starts = torch.zeros(3, 4, dtype=torch.int32), 11, [], [0]
    for row, (length, count) in enumerate(zip(LENGTHS, Q_LENS, strict=True)):
        for page in range(-(-length // BLOCK)):
            table[row, page], taken = taken, taken - 1
        k, v = (torch.randn(length, HEADS_KV, DIM).bfloat16() for _ in range(2))
        where = torch.arange(length)
        slots = table[row][where // BLOCK].long() * BLOCK + where % BLOCK
        padded = torch.cat([slots, torch.tensor([-1, -1])])
        made.do_kv_cache_update(
            LAYER, *(torch.cat([x, x.new_full((2, HEADS_KV, DIM), 99)]) for x in (k, v)), cache, padded
        )
        requests.append((torch.randn(count, HEADS, DIM).bfloat16(), k.float(), v.float()))
        starts.append(starts[-1] + count)
    metadata = SimpleNamespace(
        query_start_loc=torch.tensor(starts), seq_lens=torch.tensor(LENGTHS), block_table=table, causal=True
    )
    return cache, metadata, requests


RULES: dict[str, tuple[dict[str, Any], dict[str, Any], Any]] = {
    "causal": ({}, {}, True),
    "not causal": ({}, {"causal": False}, False),
    "by request": ({}, {}, torch.tensor([True, True, True])),
    "window": ({"sliding_window": (7, 0)}, {"window": 7}, True),
    "window both ways": ({"sliding_window": (7, 7)}, {"window": 7, "causal": False}, False),
    "soft cap": ({"logits_soft_cap": 0.5}, {"cap": 0.5}, True),
    "alibi": ({"alibi_slopes": torch.tensor([0.1, 0.1, 0.1, 0.1])}, {"slope": 0.1}, True),
    "sinks": ({"sinks": torch.tensor([1.0, 1.0, 1.0, 1.0])}, {"sink": [1.0]}, True),
}


@pytest.mark.parametrize("kind", ["auto", "fp8"])
@pytest.mark.parametrize("case", RULES)
def test_every_kind_of_attention_is_what_it_is_spelled_out(case: str, kind: str) -> None:
    changes, rule, causal = RULES[case]
    made = attention(kv_cache_dtype=kind, **changes)
    cache, metadata, requests = filled(made, torch.uint8 if kind == "fp8" else torch.bfloat16)
    metadata.causal = causal
    query = torch.cat([q for q, _, _ in requests])
    output = torch.full((sum(Q_LENS) + 2, HEADS, DIM), 9.0, dtype=torch.bfloat16)
    made.forward(LAYER, query, None, None, cache, metadata, output)
    assert (output[sum(Q_LENS) :] == 9).all()
    row = 0
    for (q, k, v), length, count in zip(requests, LENGTHS, Q_LENS, strict=True):
        if kind == "fp8":
            e4m3 = FORMATS["fp8"]
            k = e4m3.dequantise(e4m3.quantise(k / 0.5)) * 0.5
            scale = torch.tensor([0.25, 2.0])[:, None]
            v = e4m3.dequantise(e4m3.quantise(v / scale)) * scale
        for i in (0, count - 1):
            for head in (0, 3):
                wanted = plain(q[i, head].float(), k[:, head // 2], v[:, head // 2], length - count + i, length, **rule)
                torch.testing.assert_close(output[row + i, head].float(), wanted, rtol=2e-2, atol=2e-2)
        row += count


def test_profiling_gives_zeros_and_quantised_output_is_refused() -> None:
    output = torch.ones(2, HEADS, DIM)
    assert (attention().forward(LAYER, output, None, None, output, None, output) == 0).all()
    with pytest.raises(NotImplementedError, match="no quantised output"):
        attention().forward(LAYER, output, None, None, output, SimpleNamespace(), output, torch.ones(()))


@pytest.mark.parametrize("q_len", [1, 3])
def test_the_emulator_reads_the_same_cache_and_gives_the_same(q_len: int) -> None:
    made = attention()
    cache, metadata, _ = filled(made)
    metadata.query_start_loc = torch.arange(4) * q_len
    metadata.seq_lens = torch.tensor([40, 17, 0], dtype=torch.int32)
    geometry = Geometry(HEADS, HEADS_KV, page_size=BLOCK, q_len=q_len)
    query = torch.randn(3 * q_len + 1, HEADS, DIM).bfloat16()
    expected, found = (torch.zeros_like(query) for _ in range(2))
    made.forward(LAYER, query, None, None, cache, metadata, expected)
    launcher = EmulatedMaker().make(geometry, Setting(), "warp", 4)
    launcher.plan(metadata.seq_lens, capacity=64)
    k, v = CacheViews(geometry).get(cache)
    launcher.run(query, k, v, metadata.block_table, metadata.seq_lens, found, LAYER._k_scale, LAYER._v_scale)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    assert (found[2 * q_len :] == 0).all()


def test_an_emulated_plan_holds_while_lengths_grow_by_its_margin() -> None:
    made = attention()
    cache, metadata, _ = filled(made)
    geometry = Geometry(HEADS, HEADS_KV, page_size=BLOCK)
    k, v = CacheViews(geometry).get(cache)
    query, lengths = torch.randn(1, HEADS, DIM).bfloat16(), torch.tensor([1], dtype=torch.int32)
    launcher = EmulatedLauncher(geometry, Setting(), "warp", 1)
    launcher.plan(lengths, 39, capacity=64)
    lengths += 39
    grown, fresh = (torch.zeros_like(query) for _ in range(2))
    launcher.run(query, k, v, metadata.block_table[:1], lengths, grown, LAYER._k_scale, LAYER._v_scale)
    launcher.plan(lengths, capacity=64)
    launcher.run(query, k, v, metadata.block_table[:1], lengths, fresh, LAYER._k_scale, LAYER._v_scale)
    torch.testing.assert_close(grown, fresh)


def test_an_emulated_launcher_wants_a_plan_that_it_can_have() -> None:
    launcher, one = EmulatedLauncher(Geometry(HEADS, HEADS_KV), Setting(), "warp", 2), torch.zeros(1)
    with pytest.raises(ValueError, match="seq_lens holds 3 sequences; this launcher plans for 1 to 2"):
        launcher.plan(torch.ones(3, dtype=torch.int32))
    with pytest.raises(RuntimeError, match="planned before"):
        launcher.run(one, one, one, one, one, one, one, one)
    warm(launcher, Geometry(HEADS, HEADS_KV), torch.device("cpu"))
    assert launcher.workspace_bytes == 0
