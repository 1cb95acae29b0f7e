"""One compiler for all tests of a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kernel.engines.machine_code import Compiler


@pytest.fixture(scope="session")
def code(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    """Compiles each variant once in a test run; its processes share a folder beside their own."""
    own = tmp_path_factory.getbasetemp()
    folder: Path = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "code"
    folder.mkdir(exist_ok=True)
    return Compiler(folder)
