"""Eligibility: every rule refuses what it is about, says why, and lets the rest pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mjolnir.backend.eligibility import RULES, Group, Layer, geometry_of, refusal, step_of
from mjolnir.kernel.geometry import Geometry

LAYER = Layer(32, 8, 128)
GROUP = Group((LAYER, LAYER))

REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no layers": ({"layers": ()}, {}, "no layer of it is of Mjolnir's backend"),
    "bf16 cache": ({}, {"kv_dtype": "auto"}, "the KV cache is auto; Mjolnir reads fp8, fp8_e4m3"),
    "e5m2 cache": ({}, {"kv_dtype": "fp8_e5m2"}, "the KV cache is fp8_e5m2"),
    "spec not quantised": ({"quantised": False}, {}, "the KV cache is not quantised"),
    "latent attention": ({"spec": "MLAAttentionSpec"}, {}, "its cache is a MLAAttentionSpec"),
    "packed cells": ({"packed": True}, {}, "with packed cells"),
    "encoder": ({}, {"attn_type": "encoder_only"}, "attention of type encoder_only"),
    "window of a layer": ({}, {"sliding_window": 512}, "a sliding window of 512 tokens"),
    "window of the cache": ({"sliding_window": 256}, {}, "a sliding window of 256 tokens"),
    "chunks": ({"chunk": 8192}, {}, "chunked local attention"),
    "lookback": ({}, {"chunk_lookback": 1}, "chunked local attention"),
    "soft cap": ({}, {"soft_cap": 50.0}, "scores are capped at 50"),
    "sinks": ({}, {"sinks": True}, "attention sinks"),
    "alibi": ({}, {"alibi": True}, "ALiBi"),
    "images": ({"multimodal_prefix": True}, {}, "a multimodal prefix"),
    "prefix window": ({"prefix_window": True}, {}, "R-SWA"),
    "context parallel": ({"context_parallel": 2}, {}, "context parallelism"),
    "batch-invariant": ({"batch_invariant": True}, {}, "VLLM_BATCH_INVARIANT"),
    "drafter": ({"drafter": True, "drafter_allowed": False}, {}, "MJOLNIR_ATTN_DRAFT_T5 is off"),
    "heads that differ": ({"layers": (LAYER, replace(LAYER, heads_q=16))}, {}, "16 and 32 query heads"),
    "V of another size": ({"head_dim_v": 64}, {}, "heads of K have 128 elements and those of V 64"),
    "block of 48": ({"block_size": 48}, {}, "a kernel block of 48 tokens; there are 16, 32, 64, 128"),
    "head size 192": ({}, {"head_dim": 192}, "head_dim = 192 is not supported"),
    "heads that do not divide": ({}, {"heads_kv": 5}, "query heads must be a multiple of KV heads"),
    "float32": ({"dtype": "float32"}, {}, "dtype = 'float32' is not supported"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_mjolnir_cannot_serve_is_refused_with_its_reason(case: str) -> None:
    group, layer, reason = REFUSED[case]
    changed = replace(LAYER, **layer)
    found = refusal(replace(GROUP, **{"layers": (changed, changed), **group}))
    assert found is not None
    assert reason in found


@pytest.mark.parametrize(
    "group",
    [
        GROUP,
        replace(GROUP, dtype="f16", block_size=16, head_dim_v=128),
        replace(GROUP, block_size=None),
        replace(GROUP, drafter=True),
        Group((Layer(4, 4, 256, "fp8_e4m3"),), block_size=128),
    ],
)
def test_plain_fp8_attention_passes_every_rule(group: Group) -> None:
    assert refusal(group) is None


def test_each_rule_is_the_first_to_refuse_something() -> None:
    first = set()
    for group, layer, _ in REFUSED.values():
        changed = replace(LAYER, **layer)
        asked = replace(GROUP, **{"layers": (changed, changed), **group})
        first.add(next(rule for rule in RULES if rule(asked)))
    assert first == set(RULES)


def test_the_geometry_is_that_of_the_group() -> None:
    assert geometry_of(replace(GROUP, block_size=32, dtype="f16"), "fp8") == Geometry(
        32, 8, page_size=32, q_format="fp8", dtype="f16"
    )
    assert step_of(Geometry(32, 8), 4, causal=False) == Geometry(32, 8, q_len=4, causal=False)
    assert step_of(Geometry(32, 8), 1, causal=False).causal
