"""Recordings that the tuner's tests share: small, and of known truth."""

from __future__ import annotations

from pathlib import Path

import pytest

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner import synthetic
from mjolnir.tuner.recording import Recording
from mjolnir.tuner.workload import Workload, uniform

SMALL = Workload("small", (uniform(1, 4096), uniform(1, 16384, 2.0), uniform(32, 4096)))
VALUES = {"ctas_per_sm": (1, 2), "kv_stages": (2, 4, 5), "max_splits": (0, 1, 64), "pdl": (0, 1), "l2_prefetch": (0, 2)}
WINNER = Setting(ctas_per_sm=1, kv_stages=4, max_splits=64, pdl=1)


@pytest.fixture(scope="session")
def modelled() -> Recording:
    """A speed model with many different settings."""
    return synthetic.make(values=VALUES, workload=SMALL)


@pytest.fixture(scope="session")
def slow() -> Recording:
    """`modelled`, but the device has to wait for nearly every compile."""
    return synthetic.make(values=VALUES, workload=SMALL, compile_seconds=12.0)


@pytest.fixture(scope="session")
def null() -> Recording:
    """Every setting is as fast as the default."""
    return synthetic.make(synthetic.flat, name="null", values=VALUES, workload=SMALL)


@pytest.fixture(scope="session")
def gain() -> Recording:
    """`WINNER` is 5 % faster than all others, which are equal."""
    return synthetic.make(synthetic.planted(WINNER, 0.05), name="gain", values=VALUES, workload=SMALL)


@pytest.fixture(scope="session")
def saved(modelled: Recording, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `modelled` in it."""
    folder = tmp_path_factory.mktemp("recordings") / "modelled"
    modelled.save(folder)
    return folder
