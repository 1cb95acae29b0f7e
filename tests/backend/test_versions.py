"""What the backend takes for granted of vLLM, asked of the vLLM that is installed; needs no engine."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch

from mjolnir import backend
from mjolnir.backend import fallback, server, versions
from mjolnir.backend.cache_view import HEADS_FIRST
from mjolnir.backend.eligibility import FULL_ATTENTION
from mjolnir.backend.impl import MjolnirImpl
from mjolnir.backend.metadata import DecodeMetadata
from mjolnir.backend.promises import LEVELS
from mjolnir.backend.registration import PATH
from mjolnir.backend.settings import Settings
from mjolnir.backend.stock import subclass

pytestmark = pytest.mark.vllm


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """vLLM's list of backends, put back afterwards."""
    from vllm.v1.attention.backends import registry

    for name in ("MJOLNIR_ATTN_DISABLE", "THOR_T5_DISABLE", "MJOLNIR_ATTN_FALLBACK"):
        monkeypatch.delenv(name, raising=False)
    before = dict(registry._ATTN_OVERRIDES)
    parent = logging.getLogger("mjolnir").parent
    yield registry.AttentionBackendEnum
    registry._ATTN_OVERRIDES.clear()
    registry._ATTN_OVERRIDES.update(before)
    logging.getLogger("mjolnir").parent = parent


@pytest.fixture(scope="module")
def ours() -> Any:
    """Mjolnir over vLLM's Triton backend."""
    return subclass(versions.stock_class("TRITON_ATTN"), "TRITON_ATTN", Settings(), cpu=True)


def names(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]


def test_the_class_is_registered_under_each_name_that_vllm_can_have(registry: Any) -> None:
    backend.register()
    backend.register()
    assert registry.CUSTOM.get_path() == PATH
    if hasattr(registry, "register"):
        assert registry["MJOLNIR"].get_path() == PATH


def test_switched_off_a_class_of_vllms_own_is_registered(registry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MJOLNIR_ATTN_DISABLE", "1")
    backend.register()
    assert registry.CUSTOM.get_path().startswith("vllm.")
    assert registry.CUSTOM.get_class().get_name() != "CUSTOM"
    if hasattr(registry, "register"):
        assert registry["MJOLNIR"].get_path() == registry.CUSTOM.get_path()


def test_fallbacks_are_vllms(registry: Any) -> None:
    known = versions.stock_names()
    assert set(fallback.ORDER) <= set(known)
    assert not {"CUSTOM", "MJOLNIR"} & set(known)
    assert versions.stock_class("TRITON_ATTN").__name__ == "TritonAttentionBackend"


def test_methods_are_called_as_vllm_calls_them(ours: Any) -> None:
    from vllm.v1.attention.backend import AttentionImpl, AttentionMetadataBuilder

    base = AttentionMetadataBuilder
    assert names(base.build) == names(ours.get_builder_cls().build)[:3]
    assert names(base.__init__) == names(ours.get_builder_cls().__init__)[:4]
    for name in ("get_cudagraph_support", "get_varlen_cudagraph_max_query_len", "build_for_cudagraph_capture"):
        assert names(getattr(base, name)) == names(getattr(ours.get_builder_cls(), name))
    assert len(names(base.update_draft_decode_metadata)) == 1
    assert names(AttentionImpl.forward) == names(MjolnirImpl.forward)
    assert names(versions.stock_class("TRITON_ATTN").get_impl_cls().do_kv_cache_update) == names(  # type: ignore[attr-defined]
        ours.get_impl_cls().do_kv_cache_update
    )
    given = names(AttentionImpl.__init__)
    assert list(server.ARGUMENTS[: len(given)]) == given


def test_the_facts_that_are_read_are_there() -> None:
    from vllm.v1.attention.backend import CommonAttentionMetadata
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVQuantMode

    read = {
        "num_reqs", "num_actual_tokens", "max_query_len", "max_seq_len", "query_start_loc", "query_start_loc_cpu",
        "seq_lens", "block_table_tensor", "slot_mapping", "causal", "is_prefilling",
    }  # fmt: skip
    assert read <= set(CommonAttentionMetadata.__dataclass_fields__)
    assert FullAttentionSpec.__name__ == FULL_ATTENTION
    spec = FullAttentionSpec(
        block_size=64, num_kv_heads=2, head_size=128, dtype=torch.uint8, kv_quant_mode=KVQuantMode.FP8_PER_TENSOR
    )
    config = SimpleNamespace(
        model_config=SimpleNamespace(dtype=torch.bfloat16), parallel_config=SimpleNamespace(), speculative_config=None
    )
    group = server.group_of(config, spec, [])
    assert group.quantised
    assert not group.packed
    assert (group.head_dim_v, group.sliding_window, group.chunk) == (128, None, None)
    for name in ("num_actual_tokens", "max_query_len", "slot_mapping", "block_table", "seq_lens", "causal"):
        assert name in DecodeMetadata.__dataclass_fields__


def test_layouts_and_promises_have_the_names_that_are_used() -> None:
    from vllm.v1.attention.backend import AttentionCGSupport
    from vllm.v1.kv_cache_interface import KVCacheLayout

    assert [level.name for level in sorted(AttentionCGSupport, key=lambda level: level.value)] == list(LEVELS)
    heads_first = {layout.name for layout in KVCacheLayout if layout.value.index(2) < layout.value.index(3)}
    assert heads_first == set(HEADS_FIRST)
    layouts = versions.all_layouts("LBHNC")
    assert layouts[0].name == "LBHNC"
    assert set(layouts) == set(KVCacheLayout)
    assert versions.support("UNIFORM_BATCH") is AttentionCGSupport.UNIFORM_BATCH


def test_the_class_promises_no_more_than_it_keeps(ours: Any) -> None:
    assert ours.get_name() == "CUSTOM"
    assert ours.get_supported_kernel_block_sizes() == [16, 32, 64, 128]
    assert ours.get_preferred_block_size(16) == 64
    assert ours.supported_kv_cache_layouts()[0].name == "LBHNC"
    assert not ours.supports_device_cpu_query_lens_mismatch()
    assert ours.supports_kv_cache_dtype("fp8")
    assert ours.get_builder_cls().supports_update_block_table is False
    assert ours.forward_includes_kv_cache_update is False


def test_a_drafter_is_known_by_the_tag_under_which_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    drafting = SimpleNamespace(speculative_config=SimpleNamespace(num_speculative_tokens=3))
    monkeypatch.setattr(versions, "current_config", lambda: drafting)
    for tag, drafter in (("backbone", False), ("eagle_head", True), ("draft_model", True), ("self_decoder", False)):
        monkeypatch.setitem(sys.modules, "vllm.compilation.backends", SimpleNamespace(model_tag=tag))
        assert versions.building_drafter() is drafter
    monkeypatch.setattr(versions, "current_config", lambda: SimpleNamespace(speculative_config=None))
    assert not versions.building_drafter()
    source = inspect.getsource(__import__("vllm.config", fromlist=["get_current_vllm_config_or_none"]))
    assert "get_current_vllm_config_or_none" in source


def test_without_ranks_a_value_is_this_ranks_alone() -> None:
    assert versions.gather("mine") == ["mine"]
    assert versions.first_rank() is True
    assert versions.current_config() is None
    assert versions.batch_invariant() is False
    assert names(versions.quantiser())[:2] == ["input", "scale"]


def test_what_we_log_goes_where_vllm_logs(registry: Any) -> None:
    versions.share_log()
    assert logging.getLogger("mjolnir").parent is logging.getLogger("vllm")


def test_the_cpu_platform_takes_decoder_attention_alone(registry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.platforms.cpu import CpuPlatform

    monkeypatch.setattr(CpuPlatform, "get_attn_backend_cls", CpuPlatform.__dict__["get_attn_backend_cls"])
    versions.register(PATH)
    versions.accept_on_cpu(PATH)
    versions.accept_on_cpu(PATH)

    def chosen(backend: Any, **changes: Any) -> str:
        asked = {"use_mla": False, "use_sparse": False, "attn_type": "decoder", "kv_cache_dtype": "fp8", **changes}
        found: str = CpuPlatform.get_attn_backend_cls(backend, SimpleNamespace(**asked))
        return found

    assert chosen(registry.CUSTOM) == PATH
    assert chosen(registry.CUSTOM, attn_type="encoder_only") == registry.CPU_ATTN.get_path()
    assert chosen(None) == registry.CPU_ATTN.get_path()
    assert chosen(registry.CPU_ATTN) == registry.CPU_ATTN.get_path()
