"""Plans of a workload's points, and what else follows from a setting without a device."""

from __future__ import annotations

from functools import lru_cache

from mjolnir.kernel.device import Device
from mjolnir.kernel.engine import engine_for
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.plan import make_plan
from mjolnir.tuner.workload import Point, Workload


def plan_digests(setting: Setting, workload: Workload, geometry: Geometry, device: Device) -> list[str]:
    """Plan digest of each point; settings of one binary with equal digests do the same there."""
    capacity = capacity_of(workload, geometry)
    heads = geometry.heads_kv * engine_for(geometry, device.arch).blocks
    grid = device.sm_count * setting.ctas_per_sm
    return [_digest(point.contexts, heads, grid, setting.max_splits, capacity) for point in workload.points]


@lru_cache(maxsize=4096)
def _digest(contexts: tuple[int, ...], heads: int, grid: int, max_splits: int, capacity: int) -> str:
    """Thousands of settings have few plans, and a plan takes a good part of a millisecond."""
    return make_plan(contexts, heads, grid, max_splits, capacity=capacity).digest()


def capacity_of(workload: Workload, geometry: Geometry) -> int:
    """Tokens of a block-table row that holds every context of the workload: a whole number of pages, at least one."""
    longest = max(1, *(max(point.contexts) for point in workload.points))
    return -(-longest // geometry.page_size) * geometry.page_size


def kv_bytes_of(point: Point, geometry: Geometry) -> int:
    """KV bytes that one launch at `point` reads."""
    return sum(point.contexts) * geometry.kv_bytes_per_token
