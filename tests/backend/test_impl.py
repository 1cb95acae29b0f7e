"""The implementation over a stock one: what the kernel is given, and what the fallback gets to see."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mjolnir.backend import service
from mjolnir.backend.query import E4M3
from tests.fakes import serving
from tests.fakes.serving import Server, StockBackend, Watched, WatchedMaker, serve, settings, step

CACHE = torch.randint(0, 256, (9, 2, 64, 256), dtype=torch.uint8)


@pytest.fixture(autouse=True)
def maker(monkeypatch: pytest.MonkeyPatch) -> WatchedMaker:
    """Everything is made by this maker."""
    made = WatchedMaker()
    serving.quiet(monkeypatch)
    monkeypatch.setattr(service, "EmulatedMaker", lambda: made)
    return made


def attend(server: Server, metadata: Any, *, query: torch.Tensor | None = None, **more: Any) -> torch.Tensor:
    """Run one layer as vLLM does."""
    layer = server.layer()
    rows = torch.full((4, 8, 128), 600.0, dtype=torch.bfloat16) if query is None else query
    output = torch.zeros(4, 8, 128, dtype=torch.bfloat16)
    layer.impl.forward(layer, rows, rows[:, :2], rows[:, :2], CACHE, metadata, output=output, **more)
    return output


def only(maker: WatchedMaker) -> dict[str, Any]:
    """The one run of all launchers."""
    launchers = [launcher for launcher in maker.made if isinstance(launcher, Watched)]
    (run,) = (run for launcher in launchers for run in launcher.runs)
    return run


def test_a_planned_step_runs_on_the_kernel_with_vllms_own_tensors(maker: WatchedMaker) -> None:
    server = serve()
    facts = step([1, 1, 1])
    metadata = server.builder.build(0, facts)
    server.layer()._k_scale, server.layer()._v_scale = torch.tensor(0.5), torch.tensor(0.25)
    output = attend(server, metadata)
    run = only(maker)
    assert (output == 3).all()
    assert not server.layer().impl.calls
    assert run["out"] is output
    assert run["seq_lens"] is facts.seq_lens
    assert run["block_table"] is facts.block_table_tensor
    assert (run["k_scale"], run["v_scale"], run["scale"]) == (0.5, 0.25, 0.1)
    assert torch.equal(run["k_cache"][5, 60, 1], CACHE[5, 1, 60, :128])
    assert torch.equal(run["v_cache"][5, 60, 1], CACHE[5, 1, 60, 128:])


def test_a_forced_layout_reaches_the_views(maker: WatchedMaker) -> None:
    server = serve(settings(kv_layout="BHN2D"))
    attend(server, server.builder.build(0, step([1])))
    assert only(maker)["k_cache"].shape == (9, 64, 2, 128)
    wrong = serve(settings(kv_layout="2BHND"))
    with pytest.raises(ValueError, match="is not 2BHND of"):
        attend(wrong, wrong.builder.build(0, step([1])))


@pytest.mark.parametrize("name", ["FLASH_ATTN", "TRITON_ATTN"])
def test_a_fallback_that_needs_an_fp8_query_gets_one_and_believes_it(name: str) -> None:
    server = serve(name=name)
    impl = server.layer().impl
    assert impl.supports_quant_query_input is False
    server.layer()._q_scale = torch.tensor(2.0)
    assert (attend(server, server.builder.build(0, step([17]))) == 7).all()
    (call,) = impl.calls
    if name == "FLASH_ATTN":
        assert call["query"].dtype == E4M3
        assert (call["query"].float() == 288).all()
        assert call["believed"]
    else:
        assert call["query"].dtype == torch.bfloat16
        assert not call["believed"]
    assert impl.supports_quant_query_input is False


def test_what_the_layer_quantised_itself_is_left_alone() -> None:
    server = serve(asked={"sliding_window": 64})
    impl = server.layer().impl
    assert impl.supports_quant_query_input is True
    codes = torch.ones(4, 8, 128).to(E4M3)
    attend(server, server.builder.build(0, step([1])), query=codes)
    assert impl.calls[0]["query"] is codes


def test_a_profiling_run_is_the_fallbacks() -> None:
    server = serve()
    attend(server, None)
    assert server.layer().impl.calls[0]["metadata"] is None
    assert server.layer().impl.calls[0]["query"].dtype == torch.bfloat16


def test_a_query_that_a_fusion_quantised_is_put_back(maker: WatchedMaker) -> None:
    server = serve()
    server.layer()._q_scale = torch.tensor(0.5)
    attend(server, server.builder.build(0, step([1])), query=torch.full((4, 8, 128), 3.0).to(E4M3))
    assert only(maker)["query"].dtype == torch.bfloat16
    assert (only(maker)["query"] == 1.5).all()


def test_a_layer_runs_within_a_capture_without_new_memory(monkeypatch: pytest.MonkeyPatch, maker: WatchedMaker) -> None:
    server = serve()
    metadata = server.builder.build_for_cudagraph_capture(step([1, 1]))
    layer, output = server.layer(), torch.zeros(2, 8, 128, dtype=torch.bfloat16)
    rows = torch.zeros_like(output)
    with serving.capture(monkeypatch):
        for _ in range(2):
            layer.impl.forward(layer, rows, None, None, CACHE, metadata, output=output)
    assert (output == 3).all()
    assert sorted((len(launcher.plans), len(launcher.runs)) for launcher in maker.made) == [(0, 0), (1, 2)]


def test_the_kernel_writes_no_quantised_output() -> None:
    server = serve()
    metadata = server.builder.build(0, step([1]))
    assert server.layer().impl.fused_output_quant_supported("any") is False
    with pytest.raises(NotImplementedError, match="no quantised output"):
        attend(server, metadata, output_scale=torch.ones(()))
    assert serve(asked={"sliding_window": 64}).layer().impl.fused_output_quant_supported("any") is True


def test_the_fallback_is_handed_output_scales() -> None:
    server = serve()
    scale = torch.ones(())
    attend(server, server.builder.build(0, step([9])), output_scale=scale)
    assert server.layer().impl.calls[0]["output_scale"] is scale


def test_facts_are_read_from_arguments_by_position_or_name() -> None:
    impl: Any = serve().backend.get_impl_cls()
    given = impl(4, 128, scale=0.1, num_kv_heads=None, logits_soft_cap=30, attn_type=SimpleNamespace(value="encoder"))
    assert given.mjolnir_layer.heads_kv == 4
    assert given.mjolnir_layer.kv_dtype == "auto"
    assert given.mjolnir_layer.soft_cap == 30
    assert given.mjolnir_layer.attn_type == "encoder"
    assert given.mjolnir_layer.sinks is False


def test_the_class_is_a_subclass_that_names_itself() -> None:
    backend = serve().backend
    assert issubclass(backend, StockBackend)
    assert backend.__name__ == "MjolnirOnFLASH_ATTN"
    assert backend.get_name() == "CUSTOM"
    assert backend.supports_device_cpu_query_lens_mismatch() is False


def test_block_sizes_are_those_of_both() -> None:
    def sizes(*blocks: Any) -> list[int]:
        found: list[int] = serve(
            stock=type("B", (StockBackend,), {"blocks": blocks})
        ).backend.get_supported_kernel_block_sizes()
        return found

    assert sizes(SimpleNamespace(base=16)) == [16, 32, 64, 128]
    assert sizes(16, 32, 64) == [16, 32, 64]
    assert sizes(SimpleNamespace(base=64), 256) == [64, 128]
    backend = serve(stock=type("B", (StockBackend,), {"blocks": (16, 32)})).backend
    assert backend.get_preferred_block_size(16) == 16
    assert serve().backend.get_preferred_block_size(16) == 64
    assert serve().backend.get_preferred_block_size(128) == 128


def test_heads_before_tokens_are_asked_for_where_the_fallback_does_not_mind() -> None:
    assert serve().backend.supported_kv_cache_layouts() == ("LBHNC", "others")
    minding = type("B", (StockBackend,), {"layouts": ("LBNHC",)})
    assert serve(stock=minding).backend.supported_kv_cache_layouts() == ("LBNHC",)


def test_the_fallbacks_refusal_of_a_model_says_what_may_help() -> None:
    refusing = type("B", (StockBackend,), {"reasons": ("attention sinks not supported",)})
    assert serve(stock=refusing).backend.validate_configuration()[1].endswith("MJOLNIR_ATTN_FALLBACK names another")
    assert len(serve(settings(fallback="X"), stock=refusing).backend.validate_configuration()) == 1
    assert serve().backend.validate_configuration() == []
