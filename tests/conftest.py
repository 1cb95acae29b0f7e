"""Marks and settings for all test trees."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("mjolnir", deadline=None, derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "mjolnir"))


def no_gpu() -> str:
    """Why tests marked `gpu` cannot run here; empty where they can."""
    from mjolnir.kernel.device import current_device

    try:
        current_device()
    except (RuntimeError, ImportError) as error:
        return str(error)
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `gpu` where there is none, with the reason."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and (reason := no_gpu()):
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"needs a CUDA device: {reason}"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server of our own, which the tests of one process share: take a tag or a table each."""
    from tests.postgres import running

    with running() as url:
        yield url


@pytest.fixture(scope="session")
def nobody(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home for user folders that nobody lives in."""
    return tmp_path_factory.mktemp("nobody")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, nobody: Path) -> None:
    """No setting, table, ledger or cache of the person who runs the tests reaches them."""
    for name in list(os.environ):
        if name.startswith(("MJOLNIR_", "THOR_T5_")):
            monkeypatch.delenv(name)
    for kind in ("CONFIG", "DATA", "CACHE", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(nobody / kind.lower()))
