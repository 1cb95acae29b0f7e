"""Two makes may run beside one another in one clone."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.test_structure import ROOMS, ROOT


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Rooms with a file each, and an environment whose python notes that it was called."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for room in ROOMS:
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").touch()
    (tmp_path / "build").mkdir()
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@" >> calls\nsleep 0.3\n')
    python.chmod(0o755)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / ".venv" / ".dependencies").touch()
    return tmp_path


def makes(clone: Path, target: str, number: int) -> None:
    command = ["make", "--no-print-directory", target]
    processes = [
        subprocess.Popen(command, cwd=clone, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(number)
    ]
    for process in processes:
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said


def test_each_lists_the_modules_under_a_name_of_its_own(clone: Path) -> None:
    for number in range(3):
        (clone / "kernel" / f"new{number}.py").touch()
        makes(clone, ".venv/.modules", 8)
    listed = (clone / ".venv" / ".modules").read_text().splitlines()
    assert listed[:2] == ["backend/__init__.py", "kernel/__init__.py"]
    assert sorted(path.name for path in (clone / ".venv").iterdir()) == [".dependencies", ".modules", "bin"]


@pytest.mark.skipif(shutil.which("flock") is None, reason="no flock here")
def test_one_installs_and_the_others_see_that_it_did(clone: Path) -> None:
    makes(clone, "install", 4)
    installs = [line for line in (clone / "calls").read_text().splitlines() if "pip install" in line]
    assert len(installs) == 1
