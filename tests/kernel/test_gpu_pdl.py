"""PDL on and off give the same bits on a GPU, over some replays of every shape of the stress test."""

from __future__ import annotations

import pytest
import torch

from mjolnir.kernel.device import current_device
from mjolnir.research.pdl import problems
from mjolnir.research.pdl_gpu import SHAPES, Shape, stress
from mjolnir.research.pdl_writer import early_writer

pytestmark = pytest.mark.gpu
REPLAYS = 200


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_launches_that_overlap_give_the_bits_of_those_that_do_not(shape: Shape) -> None:
    device = current_device()
    row = stress(shape, REPLAYS, device, early_writer(device.arch), seed=torch.seed() % 10**6)
    assert problems(row, REPLAYS) == []
