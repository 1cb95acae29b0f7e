"""What a server would use, told beforehand."""

from __future__ import annotations

from typing import Any

import pytest

from mjolnir.backend.explain import Model, explain
from mjolnir.backend.lookup import Defaults
from mjolnir.backend.table import Table
from mjolnir.kernel.device import H200
from mjolnir.kernel.knobs import Setting
from tests.backend.rows import row

MODEL = Model(32, 8, 128)
DEFAULTS = Defaults((Table("table", (row(1, Setting(kv_stages=4)), row(8, Setting(kv_stages=3)))),))


def told(model: Model = MODEL, environ: dict[str, str] | None = None, **options: Any) -> Any:
    return explain(model, H200, environ=environ or {}, defaults=DEFAULTS, **options)


def test_each_bucket_is_told_of_once() -> None:
    found = told(batches=(1, 5, 8, 7, 2))
    assert found.refusal is None
    assert [(item.batch, item.q_len, item.resolution.setting.kv_stages) for item in found.rows] == [
        (1, 1, 4), (2, 1, 4), (8, 1, 3),
    ]  # fmt: skip


def test_speculation_adds_lengths_and_blocks() -> None:
    found = told(batches=(1,), speculative_tokens=2, parallel_drafter=True)
    assert [(item.q_len, item.causal) for item in found.rows] == [(1, True), (2, True), (3, True), (3, False)]
    assert max(item.q_len for item in told(batches=(1,), speculative_tokens=20).rows) == 16
    lowered = {"MJOLNIR_ATTN_MAX_QLEN": "1", "MJOLNIR_ATTN_Q_DTYPE": "fp8"}
    (only,) = told(environ=lowered, batches=(1,), speculative_tokens=2, parallel_drafter=True).rows
    assert only.resolution.key.q_format == "fp8"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head_dim": 80}, "head_dim = 80 is not supported"),
        ({"kv_cache_dtype": "auto"}, "--kv-cache-dtype fp8"),
        ({"sliding_window": 4096}, "a sliding window of 4096 tokens"),
        ({"latent": True}, "MLAAttentionSpec"),
        ({"soft_cap": 50.0}, "capped at 50"),
        ({"sinks": True}, "attention sinks"),
        ({"alibi": True}, "ALiBi"),
        ({"chunk": 8192}, "chunked"),
        ({"block_size": 256}, "a kernel block of 256 tokens"),
        ({"head_dim_v": 64}, "those of V 64"),
        ({"attn_type": "encoder_only"}, "encoder_only"),
        ({"context_parallel": 2}, "DCP"),
        ({"multimodal_prefix": True}, "multimodal"),
    ],
)
def test_a_model_that_is_not_eligible_is_told_so(changes: dict[str, Any], reason: str) -> None:
    values = {"heads_q": 32, "heads_kv": 8, "head_dim": 128, **changes}
    found = told(Model(**values))
    assert reason in found.refusal
    assert found.rows == ()


def test_wrong_settings_are_errors_here_too() -> None:
    with pytest.raises(ValueError, match="MJOLNIR_ATTN_MAX_QLEN = 'x' is not allowed"):
        told(environ={"MJOLNIR_ATTN_MAX_QLEN": "x"})
