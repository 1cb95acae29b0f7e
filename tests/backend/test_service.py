"""Putting a group into service: devices, caches, and what a table of any kind costs a server."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mjolnir.backend import logs, service
from mjolnir.backend.eligibility import Group, Layer
from mjolnir.backend.lookup import Defaults
from mjolnir.backend.overrides import Overrides
from mjolnir.backend.routing import Limits
from mjolnir.backend.service import Service, device_refusal, kernel_folder, open_service, start_line
from mjolnir.backend.settings import Settings
from mjolnir.backend.table import Table
from mjolnir.kernel.device import H200
from mjolnir.kernel.geometry import Placement
from mjolnir.kernel.knobs import Setting
from tests.backend.rows import certificate, row
from tests.fakes.serving import WatchedMaker, settings

GROUP = Group((Layer(32, 8, 128),))
CPU = torch.device("cpu")


@pytest.fixture
def maker(monkeypatch: pytest.MonkeyPatch) -> WatchedMaker:
    """A server on an H200 whose kernels are watched."""
    made = WatchedMaker()
    logs.forget()
    monkeypatch.setattr(service, "_maker", lambda *_: (H200, made))
    return made


def served(
    wanted: Settings | None = None, table: Table | None = None, environ: dict[str, str] | None = None
) -> Service:
    defaults = Defaults((table,) if table else (), Overrides.read(environ or {}), "b" * 64)
    return open_service(GROUP, CPU, wanted or Settings(), defaults, Limits(1, 8), Placement(), {})


def test_the_query_format_is_the_engines_best_or_the_users(maker: WatchedMaker) -> None:
    assert served().geometry.q_format == "native"
    assert served(settings(q_dtype="e4m3")).geometry.q_format == "fp8"
    assert maker.made[-1].geometry.q_format == "fp8"
    served(settings(q_dtype="fp8", fused_qpack="off"))
    assert maker.made[-1].geometry.q_format == "native"


def test_rows_and_overrides_reach_the_kernel_and_the_start_line(maker: WatchedMaker) -> None:
    table = Table("packaged table", (row(1, Setting(kv_stages=4)), row(8, Setting(kv_stages=2, max_splits=1))))
    found = served(table=table, environ={"MJOLNIR_ATTN_PDL": "on"})
    assert {made.setting for made in maker.made} >= {
        Setting(kv_stages=4, pdl=1),
        Setting(kv_stages=2, max_splits=1, pdl=1),
    }
    line = start_line(found, "TRITON_ATTN (only one)", {"banner": "THOR_T5_BANNER"})
    assert "batch <= 1: warp ctas_per_sm=2 kv_stages=4" in line
    assert "[packaged table, tag tag of the test] pdl=1 [MJOLNIR_ATTN_PDL]" in line
    assert "fallback TRITON_ATTN (only one); settings from THOR_T5_BANNER" in line


def test_a_tag_of_a_table_does_not_steer_the_terminal(maker: WatchedMaker) -> None:
    hostile = replace(row(1), certificate=certificate(tag="\x1b[31mevil\n\nWARN"))
    line = start_line(served(table=Table("user table", (hostile,))), "TRITON_ATTN", {})
    assert "[user table, tag ?[31mevil??WARN]" in line


def test_knobs_that_do_not_fit_stop_the_server_naming_both_sources(maker: WatchedMaker) -> None:
    table = Table("packaged table", tuple(row(batch, Setting(kv_stages=4)) for batch in (1, 2, 4, 8)))
    with pytest.raises(ValueError, match="from packaged table and MJOLNIR_ATTN_KV_STAGES, cannot run: shared memory"):
        served(table=table, environ={"MJOLNIR_ATTN_KV_STAGES": "12"})


def test_rows_of_other_sources_serve_and_cost_one_line(maker: WatchedMaker, caplog: pytest.LogCaptureFixture) -> None:
    table = Table("packaged table", (row(1), row(2), row(8, Setting(kv_stages=4))))
    with caplog.at_level(logging.INFO, "mjolnir.backend.service"):
        served(table=table)
    lines = [item.getMessage() for item in caplog.records if item.name == "mjolnir.backend.service"]
    assert len(lines) == 1
    assert lines[0].startswith("3 rows of the defaults tables were measured with other kernel sources; they fit")
    assert Setting(kv_stages=4) in {made.setting for made in maker.made}


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe\x00", b'{"schema": "mjolnir.defaults/1", "rows": [{"key": 1}]}', b"[" * 100_000, None],
)
def test_a_table_of_any_kind_costs_a_line_and_never_the_server(
    maker: WatchedMaker, caplog: pytest.LogCaptureFixture, tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "defaults.json"
    if content is not None:
        path.write_bytes(content)
    with caplog.at_level(logging.WARNING, "mjolnir.backend"):
        table = Table.read(path, "user table")
        served(table=table)
    assert maker.made[-1].setting in (Setting(1, 4, 8), Setting(2, 2))
    assert len(caplog.messages) == 1


def test_a_device_without_a_kernel_is_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(index: int) -> None:
        raise RuntimeError("Tesla T4 is sm_75a; the engines support sm_90a")

    monkeypatch.setattr(service, "current_device", unknown)
    assert device_refusal(torch.device("cuda", 0)) == "Tesla T4 is sm_75a; the engines support sm_90a"
    monkeypatch.setattr(service, "current_device", lambda index: H200)
    assert device_refusal(torch.device("cuda", 0)) is None
    monkeypatch.setattr(service, "find_spec", lambda name: None)
    assert "pip install 'mjolnir-autoresearch[dsl]'" in str(device_refusal(torch.device("cuda", 0)))
    assert device_refusal(CPU) is None


def test_kernels_are_kept_where_the_settings_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    root = {"VLLM_CACHE_ROOT": str(tmp_path / "vllm")}
    assert kernel_folder(Settings(), {}) == tmp_path / "home/.cache/mjolnir/kernels"
    assert kernel_folder(settings(kernel_cache="on"), root) == tmp_path / "vllm/mjolnir/kernels"
    named = tmp_path / "named"
    assert kernel_folder(settings(kernel_cache=str(named)), root) == named
    scratch = kernel_folder(settings(kernel_cache="off"), {})
    assert scratch.is_dir()
    assert scratch.stat().st_mode & 0o077 == 0
    assert kernel_folder(settings(kernel_cache="0"), {}) == scratch


def test_a_cache_that_cannot_be_used_costs_a_line_unless_it_was_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logs.forget()
    (tmp_path / "mjolnir").write_text("a file where a folder would be")
    with caplog.at_level(logging.INFO, "mjolnir.backend.service"):
        found = kernel_folder(Settings(), {"VLLM_CACHE_ROOT": str(tmp_path)})
    assert found == kernel_folder(settings(kernel_cache="off"), {})
    assert "compiled kernels are not kept for the next start" in caplog.text
    with pytest.raises(OSError, match="mjolnir"):
        kernel_folder(settings(kernel_cache=str(tmp_path / "mjolnir")), {})
