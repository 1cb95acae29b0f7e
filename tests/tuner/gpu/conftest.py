"""Small problems and sessions on a fake card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.tuner.gpu.expectation import Expectation
from mjolnir.tuner.gpu.expected import expected_outputs
from mjolnir.tuner.gpu.measure import Policy
from mjolnir.tuner.gpu.session import Session
from mjolnir.tuner.workload import Point, Workload, uniform
from tests.fakes import gpu

GEOMETRY = Geometry(4, 2, page_size=16)
WORKLOAD = Workload("small", (uniform(1, 200), Point(3, (130, 0, 65)), uniform(4, 64)))
POLICY = Policy(rotating_bytes=1, replay_seconds=1e-9, rounds=6)
GRID = 8
"""Two CTAs on each of the fake card's four SMs."""

EXPECTATIONS = {merge: Expectation("sm_90a", GRID, merge, 4) for merge in (True, False)}
"""Of settings with two CTAs per SM and four computing warps, by whether items may be cut."""


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files of expected outputs, by name."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("expected")
    return {
        expectation.name: str(expected_outputs(GEOMETRY, expectation, folder)) for expectation in EXPECTATIONS.values()
    }


@pytest.fixture
def session(tmp_path: Path) -> Callable[..., Session]:
    """Makes a session; keywords are options of the fake card, and "policy"."""

    def make(policy: Policy = POLICY, placement: Placement | None = None, **options: Any) -> Session:
        card = gpu.create({"journal": str(tmp_path / "journal"), **options}, GEOMETRY, tmp_path)
        return Session(card, GEOMETRY, placement or Placement(), WORKLOAD, policy, seed=11)

    return make
