"""vLLM's configuration read as facts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from mjolnir.backend import server
from mjolnir.backend.eligibility import Layer
from mjolnir.backend.routing import Limits
from tests.fakes.serving import config, spec


def layer(facts: Layer | None, *, drafter: bool = False) -> Any:
    impl = SimpleNamespace(mjolnir_drafter=drafter)
    if facts is not None:
        impl.mjolnir_layer = facts
    return SimpleNamespace(impl=impl)


def test_a_group_has_the_facts_of_its_layers_and_its_cache() -> None:
    facts = Layer(8, 2, 128)
    group = server.group_of(
        config(),
        spec(sliding_window=4, attention_chunk_size=9),
        [layer(facts)] * 2,
        block_size=32,
        batch_invariant=True,
    )
    assert group.layers == (facts, facts)
    assert (group.dtype, group.block_size, group.spec) == ("bf16", 32, "FullAttentionSpec")
    assert (group.sliding_window, group.chunk, group.batch_invariant, group.drafter) == (4, 9, True, False)
    assert not group.packed
    assert server.group_of(config(), spec(num_head_slots=4), [layer(facts)]).packed
    assert server.group_of(config(), spec(tokens_per_state=2), [layer(facts)]).packed


def test_a_group_with_a_foreign_layer_is_not_ours() -> None:
    assert server.group_of(config(), spec(), [layer(Layer(8, 2, 128)), layer(None)]).layers == ()
    assert server.group_of(config(), spec(), [SimpleNamespace()]).layers == ()
    assert not server.group_of(config(), spec(), []).drafter


def test_a_drafters_group_is_one_of_drafters_layers_alone() -> None:
    facts = Layer(8, 2, 128)
    assert server.group_of(config(), spec(), [layer(facts, drafter=True)]).drafter
    assert not server.group_of(config(), spec(), [layer(facts, drafter=True), layer(facts)]).drafter


def test_what_one_version_lacks_is_what_it_cannot_do() -> None:
    bare = config(model_config=SimpleNamespace(dtype=torch.float16), parallel_config=SimpleNamespace())
    group = server.group_of(bare, SimpleNamespace(block_size=16), [layer(Layer(8, 2, 128))])
    assert (group.dtype, group.context_parallel, group.multimodal_prefix) == ("f16", 1, False)
    assert not group.quantised


def test_a_collection_of_specs_is_read_by_its_first() -> None:
    inner = spec()
    assert server.first_spec(SimpleNamespace(kv_cache_specs={"a": inner, "b": spec(8)})) is inner
    assert server.first_spec(inner) is inner


def test_limits_follow_the_drafter_the_scheduler_and_the_graphs() -> None:
    assert server.limits_of(config(), None) == Limits(1, 8)
    assert server.limits_of(config(3), None) == Limits(4, 8)
    assert server.limits_of(config(3), 2, non_causal=False) == Limits(2, 8, non_causal=False)
    assert server.limits_of(config(3), 9) == Limits(4, 8)
    assert server.limits_of(config(20), None) == Limits(16, 8)
    wide = config(compilation_config=SimpleNamespace(max_cudagraph_capture_size=512))
    assert server.max_requests(wide) == 512
    huge = config(scheduler_config=SimpleNamespace(max_num_seqs=1 << 20))
    assert server.max_requests(huge) == 8192


def test_parallel_drafting_is_told_by_either_side() -> None:
    assert not server.parallel_drafter(config(3))
    drafter = SimpleNamespace(num_speculative_tokens=3, parallel_drafting=True)
    assert server.parallel_drafter(config(speculative_config=drafter))
    assert server.parallel_drafter(config(attention_config=SimpleNamespace(use_non_causal=True)))
