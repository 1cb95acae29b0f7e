"""What a split limit costs where one sequence of a batch is much longer than the others.

A bucket's points have equal lengths, and with those a limit changes little. But a server's batches are uneven, and a
long sequence that may not be split is streamed by a few CTAs while all others wait for them. How long the longest run
of CTAs then is follows from the plan alone, so no such setting has to be measured to be kept out of a table.
"""

from __future__ import annotations

from functools import lru_cache

from mjolnir.kernel.device import Device
from mjolnir.kernel.engine import engine_for
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.runs import planned
from mjolnir.tuner.workload import Point

LONG, SHORT = 65536, 4096
"""Tokens of the one long sequence, and of each of the others."""

MOST = 1.25
"""How much longer than without a limit the longest run may be."""

LOOKS = 9
"""Batches of a bucket that are looked at."""


def stretch(setting: Setting, batch: int, geometry: Geometry, device: Device) -> float:
    """The tiles of the CTA that has the most, over those without a limit, with one sequence `LONG`, the rest `SHORT`.

    Args:
        setting: its CTAs, warps and split limit count.
        batch: sequences.
        geometry, device: whose plan it is.
    """
    heads = geometry.heads_kv * engine_for(geometry, device.arch, warps=setting.consumer_warps).blocks
    grid = device.sm_count * setting.ctas_per_sm
    return _longest(batch, heads, grid, setting.max_splits) / _longest(batch, heads, grid, 0)


@lru_cache(maxsize=1 << 15)
def _longest(batch: int, heads: int, grid: int, max_splits: int) -> int:
    """The tiles of the CTA that has the most."""
    return planned(Point(batch, (LONG, *[SHORT] * (batch - 1))), heads, grid, max_splits)[0]


def worst(setting: Setting, bucket: int, geometry: Geometry, device: Device) -> float:
    """The largest `stretch` among the batches that a bucket serves, those above half of it; of many, an even draw."""
    first = bucket // 2 + 1
    batches = {first + (bucket - first) * place // (LOOKS - 1) for place in range(LOOKS)}
    return max(stretch(setting, batch, geometry, device) for batch in batches)


def serves(setting: Setting, bucket: int, geometry: Geometry, device: Device) -> bool:
    """Whether a setting may be the row of a bucket: alone in a batch a sequence is as the bucket's points are."""
    return bucket == 1 or not setting.max_splits or worst(setting, bucket, geometry, device) <= MOST
