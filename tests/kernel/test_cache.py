from __future__ import annotations

import json
from pathlib import Path

import pytest

from mjolnir.kernel import cache
from mjolnir.kernel.device import H200
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import Variant

pytest.importorskip("cutlass", reason="the extra `dsl` is not installed")
VARIANT = Variant.of(Setting(), Geometry(32, 8), H200)


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


def test_the_key_depends_on_every_field_and_on_the_toolchain(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {cache.key_of(VARIANT)}
    settings = [
        Setting(ctas_per_sm=1, kv_stages=6),
        Setting(kv_stages=3),
        Setting(pdl=1),
        Setting(l2_prefetch=1),
        Setting(kv_evict_first=0),
        Setting(max_splits=1),
    ]
    keys |= {cache.key_of(Variant.of(setting, Geometry(32, 8), H200)) for setting in settings}
    keys |= {
        cache.key_of(Variant.of(Setting(), Geometry(32, 8), H200, fault=fault)) for fault in ("mask", "skip", "silent")
    }
    keys |= {cache.key_of(Variant.of(Setting(), Geometry(32, 8), H200, lse=True))}
    keys |= {cache.key_of(Variant.of(Setting(), Geometry(32, 8, page_size=32), H200))}
    keys |= {cache.key_of(Variant.of(Setting(), Geometry(32, 8, dtype="f16"), H200))}
    monkeypatch.setattr(cache, "toolchain", lambda: ("another compiler",))
    keys |= {cache.key_of(VARIANT)}
    assert len(keys) == 1 + 6 + 3 + 1 + 2 + 1


def test_a_compiler_error_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(cache.CompileError, match="compiling for sm_90a failed") as caught:
        cache.compile_only(lambda: 1 / 0, (), "sm_90a")
    assert caught.value.log


def test_facts_hold_no_path_of_the_machine(built: cache.Built) -> None:
    assert json.loads(built.path.with_suffix(".json").read_text())["path"] == built.path.name
