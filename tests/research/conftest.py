"""Repositories, recordings and rows that the research tests share."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mjolnir.backend import lookup
from mjolnir.backend.table import CERTIFICATE, Key, Row
from mjolnir.kernel.device import H200
from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.sources import DEVICE_SOURCES, hash_sources
from mjolnir.research import diff, promote
from mjolnir.research.verify_rows import Verified
from mjolnir.tuner import synthetic

KERNEL = {name: f"# {name}\n".encode() for name in DEVICE_SOURCES}
"""The kernel sources of a test checkout."""

EMPTY_TABLE = '{\n  "schema": "mjolnir.defaults/1",\n  "rows": []\n}\n'


def git(folder: Path, *arguments: str) -> str:
    """Run git in `folder` and return what it printed, failing with its message."""
    result = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"git {' '.join(arguments)}: {result.stderr}"
    return result.stdout.strip()


def make_row(batch: int = 8, kernel_hash: str | None = None, **knobs: int) -> Row:
    """A row with a whole certificate, proven with the kernel of a test checkout."""
    certificate: dict[str, object] = dict.fromkeys(CERTIFICATE)
    ratio = {"value": 0.873, "low": 0.861, "high": 0.885, "coverage": 0.95}
    certificate |= {"tag": "live", "ratio_default": ratio, "kernel_hash": kernel_hash or hash_sources(KERNEL)}
    key = Key.of(H200, Geometry(32, 8), Placement(), batch)
    return Row(key, "warp", Setting(**(knobs or {"kv_stages": 4})), certificate)


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes what is the user's, and none can be led by the git configuration of the machine."""
    home = tmp_path / "home"
    home.mkdir()
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for name in ("MJOLNIR_LEDGER", "MJOLNIR_DEFAULTS", "GIT_DIR", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def checkout(tmp_path: Path, _alone: None) -> Path:
    """A small Mjolnir checkout with one commit on `main`."""
    root = tmp_path / "checkout"
    files = {
        "pyproject.toml": b'[project]\nname = "mjolnir-autoresearch"\n',
        "backend/defaults.json": EMPTY_TABLE.encode(),
        "README.md": b"one\n",
        "research/__init__.py": b"",
        ".gitignore": b"/research/ledger.*\n/research/.ledger/\n",
        **{f"kernel/{name}": data for name, data in KERNEL.items()},
    }
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "config", "user.name", "Someone")
    git(root, "config", "user.email", "someone@example.invalid")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "start")
    return root


@pytest.fixture
def on_their_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are written without a look at their evidence: the promotion records that `make_row` makes have none."""
    monkeypatch.setattr(promote, "examined", lambda table, row, evidence: Verified(table, row, (), ()))


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small synthetic recording."""
    folder = tmp_path_factory.mktemp("recording") / "small"
    values = {"ctas_per_sm": (1, 2, 3), "kv_stages": (2, 4, 5), "max_splits": (0, 1, 16), "pdl": (0, 1)}
    synthetic.make(name="small", values=values).save(folder)
    return folder


def six_rows_path() -> Path:
    """A table of six rows, of an earlier kernel, that follow from the committed run h200-decode8."""
    return Path(__file__).parent / "data" / "six-rows.json"


@pytest.fixture
def six_rows(monkeypatch):
    """The packaged table is that of `six_rows_path`, whatever campaigns have brought since."""
    for module in (lookup, diff, promote):
        monkeypatch.setattr(module, "packaged_path", six_rows_path)
