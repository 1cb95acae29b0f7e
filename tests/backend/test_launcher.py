"""Making runners of the kernel: compiled first, warmed before any capture, and refused where registers spill."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mjolnir.backend.launcher import KernelMaker
from mjolnir.kernel import cache
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.runner import Runner
from tests.fakes import launches as fake
from tests.fakes.launches import DEVICE

GEOMETRY = Geometry(8, 2, page_size=16, q_len=2)


def test_a_runner_has_launched_once_before_it_is_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = fake.install(monkeypatch)
    maker = KernelMaker(DEVICE, torch.device("cpu"), None)
    maker.compile(GEOMETRY, Setting(), "warp")
    assert not launches.layers
    runner = maker.make(GEOMETRY, Setting(), "warp", 5)
    assert isinstance(runner, Runner)
    assert (runner.max_batch, runner.capacity) == (5, 16)
    assert len(launches.plans) == len(launches.layers) == 1
    assert launches.plans[0]["lengths"].tolist() == [0]
    assert launches.layers[0]["query"].shape == (2, 8, 128)
    assert launches.layers[0]["k_cache"].shape == (1, 16, 2, 128)


def test_what_spills_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    fake.install(monkeypatch)
    spilling = replace(cache.build(None), spill_bytes=64)  # type: ignore[arg-type]
    monkeypatch.setattr(cache, "build", lambda *_: spilling)
    with pytest.raises(cache.CompileError, match="spills 64 bytes"):
        KernelMaker(DEVICE, torch.device("cpu"), None).compile(GEOMETRY, Setting(), "warp")


def test_compiling_is_told_the_folder_and_the_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake.install(monkeypatch)
    asked: list[tuple[object, ...]] = []
    built = cache.build(None)  # type: ignore[arg-type]

    def build(*given: object) -> cache.Built:
        asked.append(given)
        return built

    monkeypatch.setattr(cache, "build", build)
    monkeypatch.setattr(cache, "build_plan", build)
    KernelMaker(DEVICE, torch.device("cpu"), tmp_path).compile(GEOMETRY, Setting(), "wgmma")
    (variant, folder), (arch, plan_folder) = asked
    assert variant.engine == "wgmma"  # type: ignore[attr-defined]
    assert (arch, folder, plan_folder) == ("sm_90a", tmp_path, tmp_path)
