"""`register`, with vLLM played by stand-ins: what is registered when, and what is not even imported."""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mjolnir import backend


class Stock:
    """A stock backend's class."""


class Members(dict[str, Any]):
    """vLLM's list of backends; `register` is there from 0.32 on."""

    CUSTOM = "CUSTOM"

    @property
    def __members__(self) -> dict[str, Any]:
        return self


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM 0.31 on a GPU, with FLASH_ATTN and TRITON_ATTN; what is registered is kept in `registered`."""

    def flashinfer() -> type:
        raise ImportError("no flashinfer")

    def stock() -> type:
        return Stock

    members = Members(
        FLASHINFER=SimpleNamespace(get_class=flashinfer), FLASH_ATTN=SimpleNamespace(get_class=stock),
        TRITON_ATTN=SimpleNamespace(get_class=stock), CPU_ATTN=SimpleNamespace(get_class=stock),
    )  # fmt: skip
    registered: dict[str, str] = {}
    world = SimpleNamespace(version="0.31.0", cpu=False, members=members, registered=registered)
    contents: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm.platforms": {"current_platform": SimpleNamespace(is_cpu=lambda: world.cpu)},
        "vllm.v1": {},
        "vllm.v1.attention": {},
        "vllm.v1.attention.backends": {},
        "vllm.v1.attention.backends.registry": {
            "AttentionBackendEnum": members, "register_backend": registered.__setitem__,
        },
    }  # fmt: skip
    for name, values in contents.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("MJOLNIR_ATTN_DISABLE", "THOR_T5_DISABLE", "MJOLNIR_ATTN_FALLBACK", "THOR_T5_FALLBACK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(
        importlib, "import_module", lambda name: SimpleNamespace(register=lambda: registered.update(ours=name))
    )
    return world


def start(world: Any) -> dict[str, str]:
    """Have vLLM of this version call the plugin."""
    sys.modules["vllm"].__version__ = world.version  # type: ignore[attr-defined]
    backend.register()
    found: dict[str, str] = world.registered
    return found


@pytest.mark.parametrize("version", ["0.31.0", "0.31.2.post1", "0.32.1", "0.33.0rc1"])
def test_a_supported_version_gets_mjolnir(vllm: Any, version: str) -> None:
    vllm.version = version
    assert start(vllm) == {"ours": "mjolnir.backend.registration"}


@pytest.mark.parametrize("version", ["0.30.9", "0.34.0", "1.0", "0.310.0"])
def test_another_version_gets_a_stock_class_and_one_line(
    vllm: Any, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    vllm.version = version
    with caplog.at_level(logging.WARNING):
        assert start(vllm) == {"CUSTOM": f"{__name__}.Stock"}
    assert caplog.messages == [
        f"Mjolnir supports vLLM 0.31, 0.32, 0.33 and leaves {version} alone: CUSTOM is FLASH_ATTN"
    ]


@pytest.mark.parametrize("variable", ["MJOLNIR_ATTN_DISABLE", "THOR_T5_DISABLE"])
@pytest.mark.parametrize("text", ["1", "True", "yes", "ON"])
def test_switched_off_it_gets_a_stock_class(
    vllm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variable: str, text: str
) -> None:
    monkeypatch.setenv(variable, text)
    with caplog.at_level(logging.WARNING):
        assert start(vllm) == {"CUSTOM": f"{__name__}.Stock"}
    assert caplog.messages == ["Mjolnir is switched off (MJOLNIR_ATTN_DISABLE): CUSTOM is FLASH_ATTN"]


@pytest.mark.parametrize("text", ["0", "no", "perhaps"])
def test_anything_else_is_left_to_the_settings(vllm: Any, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("MJOLNIR_ATTN_DISABLE", text)
    assert start(vllm) == {"ours": "mjolnir.backend.registration"}


def test_the_users_fallback_stands_in_where_one_is_named(
    vllm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MJOLNIR_ATTN_DISABLE", "1")
    monkeypatch.setenv("MJOLNIR_ATTN_FALLBACK", "triton_attn")
    start(vllm)
    assert "CUSTOM is TRITON_ATTN" in caplog.text
    monkeypatch.setenv("MJOLNIR_ATTN_FALLBACK", "FLASHINFER")
    with pytest.raises(RuntimeError, match="none of FLASHINFER can be imported"):
        start(vllm)


def test_the_own_name_stays_where_vllm_has_it(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MJOLNIR_ATTN_DISABLE", "1")
    monkeypatch.setattr(Members, "register", None, raising=False)
    assert start(vllm) == {"CUSTOM": f"{__name__}.Stock", "MJOLNIR": f"{__name__}.Stock"}


def test_on_the_cpu_vllms_own_backend_stands_in(
    vllm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    vllm.cpu = True
    monkeypatch.setenv("MJOLNIR_ATTN_DISABLE", "1")
    start(vllm)
    assert "CUSTOM is CPU_ATTN" in caplog.text


def test_the_plugins_module_imports_nothing_of_ours() -> None:
    """vLLM imports it in every process, also where Mjolnir is switched off."""
    code = (
        "import sys, mjolnir.backend as b; ours = sorted(m for m in sys.modules if m.startswith('mjolnir.')); "
        "print(ours, [n for n in vars(b) if not n.startswith('__')])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip() == "['mjolnir.backend'] ['register']"
