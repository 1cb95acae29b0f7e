"""Loading the class: settings are read there, the fallback is chosen there, and what is wrong is raised there."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from mjolnir.backend import logs, selected, versions
from tests.fakes.serving import StockBackend


@pytest.fixture(autouse=True)
def stock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """vLLM without FLASHINFER, where every other stock backend is the same."""

    def find(name: str) -> type:
        if name == "FLASHINFER":
            raise ImportError("flashinfer is not installed")
        return type(name, (StockBackend,), {"supports_compute_capability": classmethod(lambda cls, found: True)})

    monkeypatch.setattr(versions, "stock_names", lambda: ("FLASHINFER", "FLASH_ATTN", "TRITON_ATTN"))
    monkeypatch.setattr(versions, "stock_class", find)
    monkeypatch.setattr(versions, "on_cpu", lambda: False)
    monkeypatch.setattr(versions, "first_rank", lambda: True)
    monkeypatch.setattr(versions, "capability", lambda: (9, 0))
    monkeypatch.setattr(versions, "current_config", lambda: None)
    for variable in ("FALLBACK", "DISABLE", "BANNER", "CTAS", "VERBOSE"):
        monkeypatch.delenv(f"MJOLNIR_ATTN_{variable}", raising=False)
    levels = {name: logging.getLogger(name).level for name in ("mjolnir.kernel", "mjolnir.backend.lookup")}
    selected._classes.clear()
    logs.forget()
    yield
    selected._classes.clear()
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def chosen() -> Any:
    return getattr(selected, "MjolnirBackend")  # noqa: B009


def test_the_fallback_is_chosen_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mjolnir.backend.selected"):
        assert chosen().__name__ == "MjolnirOnFLASH_ATTN"
        assert chosen() is chosen()
    assert caplog.messages == [
        "Mjolnir's fallback is FLASH_ATTN (FLASHINFER: ImportError: flashinfer is not installed)"
    ]


def test_vllm_finds_the_class_again_by_its_own_path() -> None:
    backend = chosen()
    assert f"{backend.__module__}.{backend.__qualname__}" == "mjolnir.backend.selected.MjolnirOnFLASH_ATTN"
    assert getattr(selected, backend.__qualname__) is backend
    with pytest.raises(AttributeError, match="Nothing"):
        getattr(selected, "Nothing")  # noqa: B009


def test_a_named_fallback_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MJOLNIR_ATTN_FALLBACK", "triton_attn")
    assert chosen().__name__ == "MjolnirOnTRITON_ATTN"
    monkeypatch.setenv("MJOLNIR_ATTN_FALLBACK", "FLASHINFER")
    with pytest.raises(ImportError, match="flashinfer is not installed"):
        chosen()
    monkeypatch.setenv("MJOLNIR_ATTN_FALLBACK", "CUSTOM")
    with pytest.raises(ValueError, match="is Mjolnir itself"):
        chosen()


@pytest.mark.parametrize(("variable", "text"), [("MJOLNIR_ATTN_BANNER", "maybe"), ("MJOLNIR_ATTN_CTAS", "9")])
def test_wrong_settings_and_knobs_are_raised_when_the_class_is_loaded(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(ValueError, match=f"{variable} = '{text}' is not allowed"):
        chosen()


def test_a_misspelt_variable_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("MJOLNIR_ATTN_BANER", "0")
    with caplog.at_level(logging.INFO, "mjolnir.backend.selected"):
        chosen()
    assert "not a setting of this version of Mjolnir, and left alone: MJOLNIR_ATTN_BANER" in caplog.text


def test_notes_on_kernels_are_for_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen()
    assert not logging.getLogger("mjolnir.kernel.runner").isEnabledFor(logging.INFO)
    assert not logging.getLogger("mjolnir.backend.lookup").isEnabledFor(logging.INFO)
    monkeypatch.setenv("MJOLNIR_ATTN_VERBOSE", "1")
    chosen()
    assert logging.getLogger("mjolnir.kernel.runner").isEnabledFor(logging.DEBUG)
    assert logging.getLogger("mjolnir.backend.lookup").isEnabledFor(logging.INFO)


def test_the_hammer_is_shown_once_and_can_be_hidden(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("mjolnir.backend.test")
    with caplog.at_level(logging.INFO):
        logs.banner(log, wanted=False)
        assert not caplog.messages
        logs.banner(log, wanted=True)
        logs.banner(log, wanted=True)
    assert caplog.messages == [logs.HAMMER]
