from __future__ import annotations

import pytest

from mjolnir.kernel.__main__ import main, parser
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import KNOBS


def test_help_names_every_knob_with_its_domain(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parser().parse_args(["--help"])
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for knob in KNOBS:
        assert f"--{knob.name.replace('_', '-')}" in text
        assert knob.domain() in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--geometry", "32x8"], "is not a geometry"),
        (["--kv-stages", "99"], "kv_stages = 99 is not allowed: 0, 2 to 12"),
        (["--compile-only", "sm_90a", "--ctas-per-sm", "4"], "registers: 4 CTAs"),
        (["--compile-only", "sm_110a", "--engine", "wgmma"], "engine wgmma needs sm_90a, not sm_110a"),
        (["--geometry", "32/8xd128,q=17"], "q_len = 17 is not supported; it is 1 to 16"),
        (["--host", "aarch64"], "--host is for --compile-only"),
    ],
)
def test_wrong_usage_ends_with_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_without_a_device_it_says_what_works(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == 3
    assert "--compile-only" in capsys.readouterr().err


def test_compile_only_reports_resources(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("cutlass", reason="the extra `dsl` is not installed")
    monkeypatch.setenv("MJOLNIR_ATTN_KERNEL_CACHE", str(tmp_path_factory.mktemp("kernels")))
    assert main(["--compile-only", "sm_110a", "--kv-stages", "3"]) == 0
    out = capsys.readouterr().out
    assert "kv_stages=3" in out
    assert "0 bytes spilled" in out


@pytest.mark.parametrize(
    ("geometry", "more", "engine"),
    [
        ("32/8xd128,page=16,q=4,causal=no", ["--engine", "warp"], "engine warp (16 rows an item, 1 a KV head)"),
        ("24/4xd256,query=fp8,dtype=f16", ["--host", "aarch64"], "engine wgmma (6 rows an item, 1 a KV head)"),
    ],
)
def test_every_kind_of_problem_compiles(
    geometry: str,
    more: list[str],
    engine: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    pytest.importorskip("cutlass", reason="the extra `dsl` is not installed")
    folder = tmp_path_factory.mktemp("kernels")
    monkeypatch.setenv("MJOLNIR_ATTN_KERNEL_CACHE", str(folder))
    assert main(["--compile-only", "sm_90a", "--geometry", geometry, *more]) == 0
    out = capsys.readouterr().out
    assert engine in out
    assert str(Geometry.parse(geometry)) in out
    machines = {path.read_bytes()[18] for path in folder.glob("*.o")}
    assert machines == {183 if "aarch64" in more else 62}
