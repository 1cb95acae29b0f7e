"""What `defaults explain` says of a step: the plan as the device makes it."""

from __future__ import annotations

from typing import Any

import pytest

from mjolnir.kernel.device import H200
from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.research.explain import Question, plan_effect


def effect(
    text: str, setting: Setting, engine: str | None = None, batch: int = 8, context: int = 8192
) -> dict[str, Any]:
    return plan_effect(Question(Geometry.parse(text), Placement(), "any", batch, context), H200, setting, engine)


def test_equal_lengths_are_cut_into_equal_chunks() -> None:
    assert effect("32/8xd128", Setting()) == {
        "ctas": 264, "busy_ctas": 256, "tiles": 8 * 8 * 128, "tiles_of_the_busiest_cta": 32,
        "most_chunks_of_an_item": 4, "kv_stages": 5,
    }  # fmt: skip


@pytest.mark.parametrize(("engine", "blocks", "stages"), [(None, 1, 4), ("wgmma", 1, 4), ("warp", 4, 5)])
def test_row_blocks_and_ring_are_those_of_the_engine_that_runs(engine: str | None, blocks: int, stages: int) -> None:
    found = effect("64/8xd128,q=8", Setting(max_splits=1), engine)
    assert found["tiles"] == blocks * 8 * 8 * 128
    assert found["kv_stages"] == stages
    assert found["most_chunks_of_an_item"] == 1
