"""Plans of a workload's points: those that the device makes, row blocks and all."""

from __future__ import annotations

from mjolnir.kernel.device import H200, Device
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.plan import make_plan
from mjolnir.tuner.gpu.plans import plan_digests
from mjolnir.tuner.workload import Workload, uniform

WORKLOAD = Workload("two", (uniform(2, 4096), uniform(3, 1000)))
THOR = Device("sm_110a", "NVIDIA Thor", 20)


def digests(heads: int, grid: int, splits: int = 0) -> list[str]:
    contexts = ([4096, 4096], [1000] * 3)
    return [make_plan(lengths, heads, grid, splits, capacity=4096).digest() for lengths in contexts]


def test_the_row_blocks_of_a_head_are_items_of_their_own() -> None:
    few, many = Geometry(32, 8), Geometry(64, 8, q_len=16)
    assert plan_digests(Setting(), WORKLOAD, few, H200) == digests(8, 264)
    assert plan_digests(Setting(max_splits=2), WORKLOAD, few, H200) == digests(8, 264, 2)
    assert plan_digests(Setting(), WORKLOAD, many, H200) == digests(2 * 8, 264)  # 128 rows in blocks of 64
    assert plan_digests(Setting(ctas_per_sm=1), WORKLOAD, many, THOR) == digests(8 * 8, 20)  # and of 16
