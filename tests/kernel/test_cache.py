from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from mjolnir.kernel import cache
from mjolnir.kernel.device import H200, Device
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import KNOBS, Setting
from mjolnir.kernel.variant import Variant, infeasible

pytest.importorskip("cutlass", reason="the extra `dsl` is not installed")
GEOMETRY = Geometry(32, 8)
VARIANT = Variant.of(Setting(), GEOMETRY, H200)
THOR = Variant.of(Setting(), Geometry(24, 4, 256), Device("sm_110a", "NVIDIA Thor", 20))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(scope="module")
def built(folder: Path) -> cache.Built:
    return cache.build(VARIANT, folder)


def test_a_variant_is_compiled_once_and_then_found(
    folder: Path, built: cache.Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "compile_only", lambda *_: pytest.fail("compiled again"))
    assert cache.build(VARIANT, folder) == built
    assert built.path == folder / f"{built.key}.o"
    assert built.spill_bytes == 0
    assert built.smem_bytes > 6 * 16384


def test_a_binary_loads_without_a_gpu(built: cache.Built) -> None:
    assert callable(cache.load(built))
    assert cache.load(built) is cache.load(built)


@pytest.mark.parametrize("damage", ["cut", "other", "facts", "no facts"])
def test_whatever_is_wrong_with_a_file_means_compile(
    tmp_path: Path, built: cache.Built, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    tmp_path.chmod(0o700)
    path, facts = tmp_path / built.path.name, tmp_path / f"{built.key}.json"
    path.write_bytes(built.path.read_bytes())
    facts.write_bytes(built.path.with_suffix(".json").read_bytes())
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage == "other":
        path.write_bytes(b"x" * 100)
    elif damage == "facts":
        facts.write_text("{")
    else:
        facts.unlink()

    def compile_again(*_: object) -> None:
        raise cache.CompileError("compiled again")

    monkeypatch.setattr(cache, "compile_only", compile_again)
    with pytest.raises(cache.CompileError, match="compiled again"):
        cache.build(VARIANT, tmp_path)


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="chmod go-w"):
        cache.build(VARIANT, tmp_path)


def test_files_are_whole_or_not_there(tmp_path: Path) -> None:
    def fail(scratch: Path) -> None:
        scratch.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        cache._replace(tmp_path / "a.o", fail)
    assert list(tmp_path.iterdir()) == []


BASE = Setting(ctas_per_sm=1, kv_stages=4)
"""Leaves room for every other value of some knob."""


def other_settings() -> list[Setting]:
    """For each baked knob a feasible setting that differs from `BASE` in it alone, and one without a merge."""
    changed = []
    for knob in KNOBS:
        others = [replace(BASE, **{knob.name: value}) for value in knob.values if value != getattr(BASE, knob.name)]
        feasible = [s for s in others if s.kv_stages and not infeasible(s, GEOMETRY, H200)]
        changed += feasible[:1] if knob.baked else []
    return [*changed, replace(BASE, max_splits=1)]


def test_the_key_depends_on_every_field_and_on_the_toolchain(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = other_settings()
    variants = [Variant.of(setting, GEOMETRY, H200) for setting in [BASE, *settings]]
    variants += [Variant.of(Setting(), GEOMETRY, H200, fault=fault) for fault in ("mask", "skip", "silent")]
    variants += [replace(VARIANT, lse=True), replace(VARIANT, q_mul=True), replace(VARIANT, o_mul=True)]
    variants += [Variant.of(Setting(), GEOMETRY, H200, engine="wgmma")]
    variants += [
        Variant.of(Setting(), replace(GEOMETRY, **change), H200)
        for change in ({"page_size": 32}, {"dtype": "f16"}, {"q_format": "fp8"}, {"q_len": 2})
    ]
    variants += [Variant.of(Setting(), Geometry(32, 8, q_len=2, causal=False), H200)]
    keys = {cache.key_of(variant) for variant in [VARIANT, *variants]}
    monkeypatch.setattr(cache, "toolchain", lambda: ("another compiler",))
    keys |= {cache.key_of(VARIANT)}
    assert len(keys) == 1 + 1 + len(settings) + 3 + 3 + 1 + 4 + 1 + 1
    assert len(settings) == 1 + sum(knob.baked for knob in KNOBS)


def test_a_compiler_error_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(cache.CompileError, match="compiling for sm_90a failed") as caught:
        cache.compile_only(lambda: 1 / 0, (), "sm_90a")
    assert caught.value.log


def test_facts_hold_no_path_of_the_machine(built: cache.Built) -> None:
    assert json.loads(built.path.with_suffix(".json").read_text())["path"] == built.path.name


@pytest.mark.skipif(not shutil.which("readelf"), reason="needs readelf")
@pytest.mark.parametrize("plan", [False, True], ids=["layer", "plan"])
def test_an_object_for_another_host_differs_in_the_host_alone(folder: Path, plan: bool) -> None:
    here, there = (
        cache.build_plan("sm_110a", folder, host) if plan else cache.build(THOR, folder, host)
        for host in ("x86_64", "aarch64")
    )
    assert [machine_of(built.path) for built in (here, there)] == [62, 183]  # EM_X86_64, EM_AARCH64
    assert here.key != there.key
    assert here.binary == there.binary
    assert there.path.read_bytes().count(b"\x7fELF") == here.path.read_bytes().count(b"\x7fELF") == 2  # and the cubin
    assert symbols(here.path) == symbols(there.path)
    assert "__tvm_ffi_mjolnir_launch" in symbols(there.path)["defined"]


def test_an_object_for_another_host_is_named_as_that_host_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    there = cache.key_of(THOR, "aarch64")
    assert cache.key_of(THOR) == cache.key_of(THOR, "x86_64") != there
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr(cache, "toolchain", partial(cache.toolchain, "aarch64"))
    assert cache.key_of(THOR) == there


def test_an_unknown_host_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="host 'sparc' is not one of x86_64, aarch64"):
        cache.build(THOR, tmp_path, "sparc")


def machine_of(path: Path) -> int:
    """`e_machine` of an ELF file."""
    head = path.read_bytes()[:20]
    assert head[:4] == b"\x7fELF"
    return int.from_bytes(head[18:20], "little")


def symbols(path: Path) -> dict[str, set[str]]:
    """Global symbols of an object that are defined in it, and those that it needs."""
    listed = subprocess.run(["readelf", "-sW", str(path)], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listed.splitlines() if " GLOBAL " in line]
    names = {
        kind: {row[7] for row in rows if (row[6] == "UND") == (kind == "needed")} for kind in ("defined", "needed")
    }
    return {
        "defined": {name for name in names["defined"] if not name.startswith("_mlir_")},
        "needed": names["needed"] - {"_GLOBAL_OFFSET_TABLE_"},
    }
