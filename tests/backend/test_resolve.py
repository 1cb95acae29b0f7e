"""Knobs by batch size: what is compiled, what launchers are shared, and what happens to a row that does not compile."""

from __future__ import annotations

import logging

import pytest
import torch

from mjolnir.backend import resolve
from mjolnir.backend.lookup import Defaults
from mjolnir.backend.overrides import Overrides
from mjolnir.backend.query import UnfusedQuery
from mjolnir.backend.resolve import Launchers, Problem
from mjolnir.backend.table import Table
from mjolnir.kernel.device import H200
from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import Setting
from tests.backend.rows import row, unfitted
from tests.fakes.serving import WatchedMaker

SMALL, LARGE = Setting(kv_stages=4), Setting(kv_stages=2, max_splits=1)
WIDE = Setting(1, 4, 8)
TABLE = Table("table", (row(1, SMALL), row(2, SMALL), row(8, LARGE)))
PROBLEM = Problem(H200, Geometry(32, 8), Placement(), max_batch=12)


def launchers(
    maker: WatchedMaker, *, table: Table = TABLE, environ: dict[str, str] | None = None, problem: Problem = PROBLEM
) -> Launchers:
    return Launchers(
        problem, Defaults((table,), Overrides.read(environ or {}), rule=unfitted), maker, torch.device("cpu")
    )


def test_each_batch_has_the_row_of_its_bucket() -> None:
    ours = launchers(maker := WatchedMaker())
    assert PROBLEM.buckets == (1, 2, 4, 8, 16)
    settings = {batch: ours.get(batch, 1, True).setting for batch in (1, 2, 3, 5, 8, 12)}  # type: ignore[attr-defined]
    assert settings == {1: SMALL, 2: SMALL, 3: LARGE, 5: LARGE, 8: LARGE, 12: LARGE}
    assert [made.setting for made in maker.made] == [SMALL, LARGE]
    assert {made.max_batch for made in maker.made} == {12}


def test_equal_settings_share_buffers_and_other_lengths_have_their_own() -> None:
    ours = launchers(maker := WatchedMaker())
    assert ours.get(1, 1, True) is ours.get(2, 1, True)
    assert ours.get(1, 2, True) is not ours.get(1, 2, False)
    assert [(made.geometry.q_len, made.geometry.causal) for made in maker.made] == [(1, True), (2, True), (2, False)]
    assert ours.workspace_bytes == 300


def test_precompiling_makes_no_binary_twice_and_takes_no_memory() -> None:
    ours = launchers(maker := WatchedMaker())
    assert ours.precompile((1, 2), (True, False)) == 4
    compiled = [(geometry.q_len, geometry.causal, setting) for geometry, setting, _ in maker.compiled]
    assert len(set(compiled)) == len(compiled)
    assert {(1, True, SMALL), (1, True, LARGE), (2, True, WIDE), (2, False, WIDE)} == set(compiled)
    assert not maker.made
    ours.ready((2,), (False,))
    assert [(made.geometry.q_len, made.geometry.causal) for made in maker.made] == [(2, False)]


def test_a_row_that_does_not_compile_is_dropped_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    ours = launchers(WatchedMaker(fails=lambda setting: setting == SMALL))
    with caplog.at_level(logging.WARNING, "mjolnir.backend.resolve"):
        found = [ours.get(batch, 1, True).setting for batch in (1, 2, 1)]  # type: ignore[attr-defined]
    assert found == [WIDE] * 3
    assert len(caplog.messages) == 1
    assert "cannot be used: it spills" in caplog.messages[0]


def test_what_the_rule_says_is_dropped_for_the_knobs_own_defaults(caplog: pytest.LogCaptureFixture) -> None:
    ours = launchers(WatchedMaker(fails=lambda setting: setting in (SMALL, WIDE)))
    with caplog.at_level(logging.WARNING, "mjolnir.backend.resolve"):
        assert ours.get(1, 1, True).setting == Setting()  # type: ignore[attr-defined]
    assert [f"the {what}" in line for what, line in zip(("row", "built-in rule"), caplog.messages, strict=True)] == [
        True,
        True,
    ]


def test_a_built_in_default_that_does_not_compile_is_an_error_with_a_way_out() -> None:
    ours = launchers(WatchedMaker(fails=lambda setting: True), table=Table("empty"))
    with pytest.raises(RuntimeError, match=r"32/8xd128.*cannot be used: it spills; MJOLNIR_ATTN_DISABLE=1 serves"):
        ours.precompile((1,), (True,))


def test_overrides_stay_where_a_row_goes() -> None:
    environ = {"MJOLNIR_ATTN_L2_PREFETCH": "2"}
    maker = WatchedMaker(fails=lambda setting: setting.kv_stages == 4)
    ours = launchers(maker, environ=environ)
    assert ours.get(1, 1, True).setting == Setting(l2_prefetch=2)  # type: ignore[attr-defined]  # the rule has 4 too


def test_knobs_that_do_not_fit_together_name_both_sources() -> None:
    environ = {"MJOLNIR_ATTN_KV_STAGES": "12"}
    with pytest.raises(ValueError, match=r"from table and MJOLNIR_ATTN_KV_STAGES, cannot run: shared memory"):
        launchers(WatchedMaker(), environ=environ).resolve(1, 1)


def test_nothing_is_made_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = launchers(WatchedMaker())
    ready = ours.get(1, 1, True)
    monkeypatch.setattr(resolve, "is_capturing", lambda: True)
    assert ours.get(1, 1, True) is ready
    assert ours.get(2, 1, True) is ready
    with pytest.raises(RuntimeError, match=r"the kernel for NVIDIA H200.*q=3.*batch<=1 \(warp: .*kv_stages=4"):
        ours.get(1, 3, True)
    monkeypatch.setattr(resolve, "is_capturing", lambda: False)
    ours.precompile((3,), (True,))
    monkeypatch.setattr(resolve, "is_capturing", lambda: True)
    with pytest.raises(RuntimeError, match=r"the buffers for NVIDIA H200.*q=3"):
        ours.get(1, 3, True)


def test_a_query_that_pytorch_quantises_needs_a_kernel_that_does_not() -> None:
    problem = Problem(H200, Geometry(32, 8, q_format="fp8"), Placement(), 4, fused_query=False)
    ours = launchers(maker := WatchedMaker(), problem=problem)
    assert isinstance(ours.get(1, 1, True), UnfusedQuery)
    assert maker.made[0].geometry.q_format == "native"
    fused = Problem(H200, Geometry(32, 8, q_format="fp8"), Placement(), 4)
    launchers(maker, problem=fused).get(1, 1, True)
    assert maker.made[1].geometry.q_format == "fp8"
