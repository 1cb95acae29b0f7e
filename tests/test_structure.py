"""The house as a whole: who may import whom, what is packaged, how long a module may be."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("kernel", "tuner", "ledger", "backend", "research")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

DATA = ("research/runs/", "research/bench/results/")
"""Folders of results: committed, not packaged."""

LONG_MODULES: dict[str, str] = {}
"""Modules that may have more than 400 lines, each with its reason."""


def room_files() -> list[str]:
    """The rooms' files that are committed, or would be."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", "--", *ROOMS]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in listed if not name.startswith(DATA) and (ROOT / name).is_file()]


def modules() -> list[str]:
    return [name for name in room_files() if name.endswith(".py")]


# ---- imports ------------------------------------------------------------------------------------------------------


def lint_imports(*path: Path) -> subprocess.CompletedProcess[str]:
    linter = Path(sys.executable).with_name("lint-imports")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [str(linter), "--no-cache", "--config", str(ROOT / "pyproject.toml")]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


def test_only_the_arrows_of_the_design_are_imported() -> None:
    done = lint_imports()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Contracts: 4 kept, 0 broken" in done.stdout


ARROWS = {
    "kernel": "kernel runs inside a serving process and knows no other room",
    "backend": "backend runs inside a serving process and knows kernel alone",
    "tuner": "tuner knows kernel alone",
    "ledger": "ledger knows no other room and runs where there is no torch",
}


def test_an_import_against_an_arrow_is_found(tmp_path: Path) -> None:
    """Also one inside a function, which is how a heavy import would creep in."""
    for room in ROOMS:
        folder = tmp_path / "mjolnir" / room
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        (folder / "plain.py").touch()
    room_of = tmp_path / "mjolnir"
    (room_of / "kernel" / "plain.py").write_text("def late():\n    import vllm\n")
    (room_of / "backend" / "plain.py").write_text("import mjolnir.tuner.plain\n")
    (room_of / "tuner" / "plain.py").write_text("from mjolnir.ledger import plain\n")
    (room_of / "ledger" / "plain.py").write_text("def late():\n    import torch.cuda\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1
    assert [name for name in ARROWS.values() if f"{name} BROKEN" in done.stdout] == list(ARROWS.values())


def test_every_room_is_under_the_rules() -> None:
    settings = PROJECT["tool"]["importlinter"]
    assert set(settings["root_packages"]) == {f"mjolnir.{room}" for room in ROOMS}
    assert {contract["id"] for contract in settings["contracts"]} == {*ROOMS} - {"research"}


# ---- shape --------------------------------------------------------------------------------------------------------


def test_no_module_is_long_without_a_reason() -> None:
    lengths = {name: len((ROOT / name).read_text("utf-8").splitlines()) for name in modules()}
    assert {name for name, lines in lengths.items() if lines > 400} == set(LONG_MODULES)


@pytest.mark.parametrize("room", ROOMS)
def test_room_is_typed(room: str) -> None:
    assert (ROOT / room / "py.typed").is_file()


def test_every_package_is_listed_in_pyproject() -> None:
    folders = {Path(name).parent for name in modules()}
    without = {folder for folder in folders if not (ROOT / folder / "__init__.py").is_file()}
    assert without == set()
    listed = set(PROJECT["tool"]["setuptools"]["packages"])
    assert listed == {".".join(("mjolnir", *folder.parts)) for folder in folders}


def test_install_is_current() -> None:
    """A strict editable install links file by file: a module added since is missing until it is made anew."""
    for name in modules():
        module = ".".join(("mjolnir", *Path(name).with_suffix("").parts)).removesuffix(".__init__")
        found = find_spec(module)
        assert found, f"{module} is not installed; run `make install`"
        assert found.origin
        assert Path(found.origin).samefile(ROOT / name), f"{module} is installed from {found.origin}"


# ---- distribution -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel made from it, built from a copy so that the tree stays as it is."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "Makefile"):
        shutil.copy(ROOT / name, source)
    for name in room_files():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    (path,) = built.glob("*.whl")
    return zipfile.ZipFile(path)


def test_wheel_holds_every_file_of_the_rooms(wheel: zipfile.ZipFile) -> None:
    packaged = {name for name in wheel.namelist() if ".dist-info/" not in name}
    expected = {f"mjolnir/{name}" for name in room_files()}
    assert packaged - expected == set()
    assert expected - packaged == set()
    assert {f"mjolnir/{room}/py.typed" for room in ROOMS} | {"mjolnir/backend/defaults.json"} <= packaged


def test_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    (folder,) = {name.partition("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    metadata = wheel.read(f"{folder}/METADATA").decode()
    assert folder == f"mjolnir_autoresearch-{version('mjolnir-autoresearch')}.dist-info"
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: <3.14,>=3.11" in metadata
    assert "mjolnir = mjolnir.research.cli.main:run" in wheel.read(f"{folder}/entry_points.txt").decode()
    assert wheel.read(f"{folder}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


def test_wheel_works_away_from_the_tree(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    program = (
        "from mjolnir.backend.table import Table, packaged_path as path\n"
        "table = Table.read(path())\n"
        "print(path(), len(table.problems))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(tmp_path / "mjolnir" / "backend" / "defaults.json"), "0"]
