"""The choice of the stock backend: the first that accepts, or the one that the user names and no other."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mjolnir.backend import fallback, versions
from mjolnir.backend.fallback import ORDER, choose, questions, refusal

KNOWN = (*ORDER, "FLEX_ATTENTION")


def refusing(*names: str) -> Callable[[str], str | None]:
    return lambda name: "not here" if name in names else None


@pytest.mark.parametrize(
    ("refused", "chosen"),
    [((), "FLASHINFER"), (("FLASHINFER",), "FLASH_ATTN"), (("FLASHINFER", "FLASH_ATTN"), "TRITON_ATTN")],
)
def test_the_first_that_accepts_is_taken(refused: tuple[str, ...], chosen: str) -> None:
    choice = choose(None, refusing(*refused), KNOWN)
    assert choice.name == chosen
    assert all(f"{name}: not here" in str(choice) for name in refused)


def test_without_any_the_reasons_are_told() -> None:
    with pytest.raises(RuntimeError, match="FLASHINFER: not here; FLASH_ATTN: not here; TRITON_ATTN: not here"):
        choose(None, refusing(*ORDER), KNOWN)


def test_a_named_one_is_never_replaced() -> None:
    choice = choose("flex_attention", refusing(*KNOWN), KNOWN)
    assert choice.name == "FLEX_ATTENTION"
    assert str(choice) == "FLEX_ATTENTION (MJOLNIR_ATTN_FALLBACK)"


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("custom", "MJOLNIR_ATTN_FALLBACK = 'custom' is Mjolnir itself"),
        ("MJOLNIR", "is Mjolnir itself: name a stock backend"),
        ("FASTEST", "'FASTEST' is not allowed: one of FLASHINFER, FLASH_ATTN, TRITON_ATTN, FLEX_ATTENTION"),
    ],
)
def test_what_cannot_stand_behind_mjolnir_is_an_error(named: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose(named, refusing(), KNOWN)


def test_on_the_cpu_it_is_triton() -> None:
    assert choose(None, refusing(*KNOWN), KNOWN, cpu=True).name == "TRITON_ATTN"
    assert choose("TRITON_ATTN", refusing(), KNOWN, cpu=True).named
    with pytest.raises(ValueError, match="on the CPU it is TRITON_ATTN"):
        choose("FLASH_ATTN", refusing(), KNOWN, cpu=True)


def model(**changes: Any) -> Any:
    values = {
        "model_config": SimpleNamespace(
            get_head_size=lambda: 128, dtype="bf16", use_mla=False, is_mm_prefix_lm=False, rswa_window=None
        ),
        "cache_config": SimpleNamespace(cache_dtype="fp8", block_size=32, user_specified_block_size=True),
        "parallel_config": SimpleNamespace(prefill_context_parallel_size=1, decode_context_parallel_size=2),
        "attention_config": SimpleNamespace(use_non_causal=False),
    }
    return SimpleNamespace(**{**values, **changes})


def test_the_model_is_described_as_vllm_describes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "batch_invariant", lambda: False)
    asked = questions(model(), (9, 0))
    assert asked["head_size"] == 128
    assert asked["kv_cache_dtype"] == "fp8"
    assert asked["block_size"] == 32
    assert asked["use_dcp"]
    assert not asked["use_pcp"]
    unset = SimpleNamespace(cache_dtype="fp8", block_size=16, user_specified_block_size=False)
    assert questions(model(cache_config=unset), (9, 0))["block_size"] is None


def test_a_stock_backend_is_asked_about_the_model_that_is_being_built(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stock:
        @staticmethod
        def validate_configuration(*, head_size: int, use_dcp: bool, **rest: Any) -> list[str]:
            return ["DCP not supported"] if use_dcp else []

        @staticmethod
        def supports_compute_capability(capability: Any) -> bool:
            return bool(capability == (9, 0))

    def broken(name: str) -> type:
        raise ImportError("no flashinfer")

    monkeypatch.setattr(versions, "batch_invariant", lambda: False)
    monkeypatch.setattr(versions, "capability", lambda: (9, 0))
    monkeypatch.setattr(versions, "stock_class", lambda name: Stock)
    monkeypatch.setattr(versions, "current_config", lambda: model())
    assert refusal("FLASH_ATTN") == "DCP not supported"
    monkeypatch.setattr(versions, "current_config", lambda: None)
    assert refusal("FLASH_ATTN") is None
    monkeypatch.setattr(versions, "capability", lambda: (7, 5))
    assert refusal("FLASH_ATTN") == "not for this device"
    monkeypatch.setattr(versions, "stock_class", broken)
    assert fallback.refusal("FLASHINFER") == "ImportError: no flashinfer"
