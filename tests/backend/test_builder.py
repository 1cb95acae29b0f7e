"""The builder over a stock one: what is planned, what is left, what is promised and what is counted."""

from __future__ import annotations

import logging
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mjolnir.backend import logs, service, versions
from mjolnir.backend.counters import STEPS
from mjolnir.backend.metadata import DecodeMetadata
from mjolnir.backend.settings import Settings
from mjolnir.kernel.geometry import Placement
from tests.fakes import serving
from tests.fakes.serving import Server, WatchedMaker, serve, settings, step


@pytest.fixture(autouse=True)
def maker(monkeypatch: pytest.MonkeyPatch) -> WatchedMaker:
    """Everything is made by this maker."""
    made = WatchedMaker()
    serving.quiet(monkeypatch)
    monkeypatch.setattr(service, "EmulatedMaker", lambda: made)
    STEPS.reset()
    return made


def drafted(monkeypatch: pytest.MonkeyPatch, wanted: Settings | None = None, **options: Any) -> Server:
    """The group of a drafter that proposes three tokens."""
    monkeypatch.setattr(versions, "building_drafter", lambda: True)
    return serve(wanted, speculative=3, **options)


def test_a_decode_step_is_planned_once_for_all_layers(maker: WatchedMaker) -> None:
    builder = serve().builder
    facts = step([1, 1, 1], [100, 64, 7])
    metadata = builder.build(0, facts)
    assert isinstance(metadata, DecodeMetadata)
    launcher = metadata.launcher
    assert launcher in maker.made
    assert not launcher.plans
    for _ in range(2):
        metadata.make_plan()
    (plan,) = launcher.plans
    assert plan["seq_lens"] is facts.seq_lens
    assert (plan["margin"], plan["capacity"]) == (0, 3 * 64)
    assert metadata.block_table is facts.block_table_tensor
    assert (metadata.batch, metadata.q_len, metadata.causal, metadata.use_cascade) == (3, 1, True, False)
    assert metadata.slot_mapping is facts.slot_mapping
    assert metadata.num_actual_tokens == 3
    assert STEPS.as_dict() == {"mjolnir": 1, "non_causal": 0, "fallback": 0, "missed": 0, "reasons": {}}


def test_padding_without_rows_is_cut_off(maker: WatchedMaker) -> None:
    metadata = serve().builder.build(0, step([1, 1, 0], [100, 64, 0]))
    metadata.make_plan()
    assert metadata.seq_lens.tolist() == [100, 64]
    assert metadata.block_table.shape[0] == 2
    assert len(maker.made[0].plans[0]["seq_lens"]) == 2


def test_other_steps_are_built_by_the_fallback_unchanged() -> None:
    builder, facts = serve().builder, step([17, 1])
    metadata = builder.build(0, facts, True)
    assert metadata.step is facts
    assert metadata.fast
    assert builder.build(64, step([1, 1])).prefix == 64
    assert STEPS.fallback == 2
    assert STEPS.missed == 1
    assert STEPS.reasons == {"requests that differ in query tokens": 1, "a cascade over a common prefix": 1}
    builder.build(0, step([1]))
    assert STEPS.share == 0.5


def test_verification_runs_up_to_its_length_and_a_lower_setting_lowers_it() -> None:
    assert isinstance(serve(speculative=3).builder.build(0, step([4, 4])), DecodeMetadata)
    lowered = serve(settings(max_qlen="2"), speculative=3).builder
    assert lowered.build(0, step([4, 4])).stock
    assert isinstance(lowered.build(0, step([2, 2])), DecodeMetadata)
    assert serve(settings(max_qlen="8")).builder.build(0, step([2, 2])).stock
    long = serve(speculative=20).builder
    assert isinstance(long.build(0, step([16])), DecodeMetadata)
    assert long.build(0, step([17])).stock


def test_a_group_that_is_not_eligible_says_why_and_runs_on_the_fallback(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mjolnir.backend"):
        builder = serve(asked={"sliding_window": 128}).builder
    assert caplog.messages == [
        "Mjolnir does not serve layer.0 and 1 more: a sliding window of 128 tokens; they run on the fallback"
    ]
    assert builder.build(0, step([1])).stock
    assert STEPS.reasons == {"a sliding window of 128 tokens": 1}


def test_the_hammer_comes_before_the_start_line_unless_it_is_hidden(caplog: pytest.LogCaptureFixture) -> None:
    def lines(wanted: Settings | None = None) -> list[str]:
        logs.forget()
        caplog.clear()
        with caplog.at_level(logging.INFO, "mjolnir.backend.builder"):
            serve(wanted)
            serve(wanted)
        return [item.getMessage() for item in caplog.records if item.name == "mjolnir.backend.builder"]

    assert [line == logs.HAMMER for line in lines()] == [True, False]
    assert [line == logs.HAMMER for line in lines(settings(banner="off"))] == [False]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"described": {"block_size": 48}}, "a kernel block of 48 tokens"),
        ({"described": {"kv_quant_mode": SimpleNamespace(name="NONE")}}, "the KV cache is not quantised"),
        ({"described": {"head_size_v": 64}}, "heads of K have 128"),
        ({"described": {"state_content_bytes": 192}}, "packed cells"),
        ({"asked": {"kv_cache_dtype": "auto"}}, "the KV cache is auto"),
        ({"changes": {"model_config": SimpleNamespace(dtype=torch.float32)}}, "dtype = 'float32'"),
        (
            {"changes": {"parallel_config": SimpleNamespace(decode_context_parallel_size=2)}},
            "context parallelism",
        ),
    ],
)
def test_vllms_own_objects_are_read_for_the_rules(options: dict[str, Any], reason: str) -> None:
    builder = serve(**options).builder
    assert builder.mjolnir is None
    builder.build(0, step([1]))
    assert any(reason in found for found in STEPS.reasons)


def test_batch_invariant_mode_is_for_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    serving.quiet(monkeypatch, invariant=True)
    assert serve().builder.mjolnir is None


def test_the_start_line_tells_what_serves(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mjolnir.backend"):
        serve(settings(banner="off"))
    (line,) = (item.getMessage() for item in caplog.records if item.name == "mjolnir.backend.builder")
    assert line.startswith("Mjolnir serves 8/2xd128,page=64,q=1,kv=fp8,query=native,dtype=bf16 (head-major) on CPU")
    assert "q_len <= 1, 8 requests; batch <= 1: warp ctas_per_sm=1 kv_stages=4 consumer_warps=8" in line
    assert "[built-in rule]; workspace 200 bytes; fallback FLASH_ATTN" in line


def test_kernels_are_compiled_at_the_start_or_at_first_use(maker: WatchedMaker) -> None:
    serve(speculative=3)
    lengths = [geometry.q_len for geometry, _, _ in maker.compiled]
    assert sorted(lengths) == [1, 1, 2, 2, 3, 3, 4, 4]  # for few sequences and for many
    assert [made.geometry.q_len for made in maker.made] == [1, 1, 4, 4]
    maker.compiled.clear()
    maker.made.clear()
    late = serve(settings(precompile="none"), speculative=3).builder
    assert not maker.compiled
    assert not maker.made
    late.build(0, step([3]))
    assert [geometry.q_len for geometry, _, _ in maker.compiled] == [3]


def test_a_parallel_drafters_blocks_are_compiled_too(monkeypatch: pytest.MonkeyPatch, maker: WatchedMaker) -> None:
    parallel = {"speculative_config": SimpleNamespace(num_speculative_tokens=3, parallel_drafting=True)}
    builder = drafted(monkeypatch, changes=parallel).builder
    assert (4, False) in {(geometry.q_len, geometry.causal) for geometry, _, _ in maker.compiled}
    assert isinstance(block := builder.build(0, step([4, 4], causal=False)), DecodeMetadata)
    assert block.causal is False
    assert (STEPS.mjolnir, STEPS.non_causal) == (0, 1)
    maker.compiled.clear()
    off = drafted(monkeypatch, settings(noncausal="off"), changes=parallel).builder
    assert {geometry.causal for geometry, _, _ in maker.compiled} == {True}
    assert off.build(0, step([4, 4], causal=False)).stock


def test_a_drafters_plan_has_a_margin_for_lengths_that_advance(
    monkeypatch: pytest.MonkeyPatch, maker: WatchedMaker
) -> None:
    builder = drafted(monkeypatch).builder
    assert builder.supports_draft_decode_metadata_update
    metadata = builder.build(0, step([1, 1]))
    metadata.make_plan()
    assert maker.made[0].plans[0]["margin"] == 3
    builder.update_draft_decode_metadata(metadata)
    assert not builder.updated
    stock = builder.build(0, step([9]))
    builder.update_draft_decode_metadata(stock)
    assert builder.updated == [stock]


def test_metadata_between_draft_steps_can_be_built_anew(monkeypatch: pytest.MonkeyPatch, maker: WatchedMaker) -> None:
    builder = drafted(monkeypatch, settings(fused_draft="off")).builder
    assert not builder.supports_draft_decode_metadata_update
    builder.build(0, step([1])).make_plan()
    assert maker.made[0].plans[0]["margin"] == 0


def test_what_the_fallback_does_not_grant_is_not_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Strict(serving.StockBuilder):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.supports_draft_decode_metadata_update = False

    class Backend(serving.StockBackend):
        @staticmethod
        def get_builder_cls() -> type:
            return Strict

    assert not drafted(monkeypatch, stock=Backend).builder.supports_draft_decode_metadata_update


def test_a_drafter_can_be_kept_on_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = drafted(monkeypatch, settings(draft_t5="off")).builder
    assert builder.mjolnir is None
    builder.build(0, step([1]))
    assert STEPS.reasons == {"it is a drafter's, and MJOLNIR_ATTN_DRAFT_T5 is off": 1}


def test_a_mixed_group_counts_as_the_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    first = [True]
    monkeypatch.setattr(versions, "building_drafter", lambda: first.pop() if first else False)
    assert serve(settings(draft_t5="off"), speculative=3).builder.mjolnir is not None


def test_a_step_with_a_plan_is_captured_as_it_replays(maker: WatchedMaker) -> None:
    builder = serve().builder
    metadata = builder.build_for_cudagraph_capture(step([1, 1], [1, 1]))
    assert isinstance(metadata, DecodeMetadata)
    replayed = builder.build(0, step([1, 1], [500, 60]))
    assert metadata.launcher is replayed.launcher
    mixed = builder.build_for_cudagraph_capture(step([2, 1]))
    assert mixed.captured.stock
    assert (STEPS.mjolnir, STEPS.fallback) == (1, 0)


def test_a_capture_compiles_allocates_and_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    builder, facts = serve(speculative=3).builder, step([4, 4])
    padded = step([4, 0], [30, 0], tokens=8)
    with serving.capture(monkeypatch):
        assert isinstance(builder.build_for_cudagraph_capture(facts), DecodeMetadata)
        assert isinstance(builder.build(0, padded), DecodeMetadata)


def test_a_graph_holds_the_plan_whatever_ran_before_it(monkeypatch: pytest.MonkeyPatch, maker: WatchedMaker) -> None:
    metadata = serve().builder.build_for_cudagraph_capture(step([1, 1]))
    metadata.make_plan()
    with serving.capture(monkeypatch):
        for _ in range(2):
            metadata.make_plan()
    assert len(maker.made[0].plans) == 2


def test_a_step_of_decoding_costs_no_operator_of_torch() -> None:
    builder, facts = serve().builder, step([1, 1, 1])
    builder.build(0, facts)
    with serving.Operators() as seen:
        assert isinstance(builder.build(0, facts), DecodeMetadata)
    assert seen.names == []
    facts.query_start_loc_cpu = None  # nor a look at it
    assert isinstance(builder.build(0, facts), DecodeMetadata)


def test_a_variant_that_is_missing_within_a_capture_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = serve(settings(precompile="none"), speculative=3).builder
    facts = step([4, 4])
    with serving.capture(monkeypatch), pytest.raises(RuntimeError, match=r"the kernel for CPU.*q=4.*PRECOMPILE=all"):
        builder.build_for_cudagraph_capture(facts)


def test_always_is_never_promised() -> None:
    def promised(speculative: int = 0, wanted: Settings | None = None, **options: Any) -> Any:
        server = serve(wanted, speculative=speculative, **options)
        return server.backend.get_builder_cls().get_cudagraph_support(server.config, server.spec)

    assert promised() == "UNIFORM_SINGLE_TOKEN_DECODE"
    assert promised(3) == "UNIFORM_BATCH"
    assert promised(3, settings(max_qlen="1")) == "UNIFORM_SINGLE_TOKEN_DECODE"
    assert promised(asked={"sinks": torch.ones(8)}) == "UNIFORM_BATCH"
    monkeyed = type("Weak", (serving.StockBuilder,), {"support": "UNIFORM_SINGLE_TOKEN_DECODE"})
    weak = type("Backend", (serving.StockBackend,), {"get_builder_cls": staticmethod(lambda: monkeyed)})
    assert promised(3, stock=weak) == "UNIFORM_BATCH"
    assert promised(3, stock=weak, asked={"sliding_window": 9}) == "UNIFORM_SINGLE_TOKEN_DECODE"


def test_what_is_granted_beside_graphs_is_what_holds() -> None:
    server = serve()
    assert server.builder.get_varlen_cudagraph_max_query_len(server.config, server.spec) is None
    assert server.builder.supports_update_block_table is False


def test_a_forced_layout_decides_which_rows_are_asked_for() -> None:
    def placed(layout: str) -> Placement:
        served = serve(settings(kv_layout=layout)).builder.mjolnir
        placement: Placement = served.launchers.problem.placement
        return placement

    assert placed("BNH2D") == Placement("token-major", "together")
    assert placed("2BHND") == Placement("head-major", "apart")


def test_a_layout_that_vllm_has_not_is_warned_of_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    serve(settings())
    serve(settings(kv_layout="BHN2D"))
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    serve(settings(kv_layout="2BNHD"))
    serve(settings(kv_layout="2BNHD"))  # another KV group: it is told once
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told.startswith("MJOLNIR_ATTN_KV_LAYOUT = 2BNHD is taken as it is, but vLLM's own KV caches are BHN2D")


def test_vllm_may_make_a_class_of_the_metadata() -> None:
    """Fast prefill copies fields and adds members of its own."""
    metadata = serve().builder.build(0, step([1]))

    class More(metadata.__class__):  # type: ignore[misc, name-defined]
        def __init__(self, other: DecodeMetadata) -> None:
            for item in fields(other):
                setattr(self, item.name, getattr(other, item.name))
            self.logits_indices_padded = 5

    assert isinstance(More(metadata), DecodeMetadata)
