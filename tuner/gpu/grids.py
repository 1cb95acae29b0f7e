"""The grids that a recorder takes, and how much it takes beside them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mjolnir.kernel.knobs import Setting

COARSE: Mapping[str, Sequence[int]] = {
    "ctas_per_sm": (1, 2, 3),
    "kv_stages": (0, 2, 4, 6),
    "consumer_warps": (4, 8),
    "max_splits": (0, 1, 2, 4, 8, 16, 32, 64, 128),
    "pdl": (0, 1),
    "l2_prefetch": (0, 1, 4),
    "kv_evict_first": (0, 1),
}
"""The coarse grid: on an H200, with what cannot fit left out, 156 combinations of baked knobs, each with a merge and
without (312 binaries), and 1404 settings."""

FULL: Mapping[str, Sequence[int]] = {
    **COARSE,
    "ctas_per_sm": (1, 2, 3, 4),
    "kv_stages": (0, *range(2, 13)),
    "l2_prefetch": (0, 1, 2, 4, 8),
}
"""The full grid: on an H200 440 combinations of baked knobs (880 binaries) and 3960 settings. It leaves out prefetch
distances between those it has; `between` looks whether they would tell anything."""


@dataclass(frozen=True, slots=True)
class Extent:
    """What a recording consists of.

    Attributes:
        values: the grid, by knob; the built-in default is always recorded.
        pairs: A/A pairs per point.
        rebuilds: of the default.
        instances: further instances of each cell near its point's best.
        between: whether prefetch distances that the grid leaves out are looked at.
    """

    values: Mapping[str, Sequence[int]]
    pairs: int = 200
    rebuilds: int = 10
    instances: int = 0
    between: bool = False


EXTENTS: Mapping[str, Extent] = {
    "coarse": Extent(COARSE),
    "full": Extent(FULL, pairs=2000, rebuilds=30, instances=6, between=True),
}
"""By the name that `autoresearch record --grid` takes."""


def in_order(settings: Sequence[Setting], default: Setting) -> list[Setting]:
    """The default first, then all settings by binary, binaries in an order that is random but always the same."""

    def place(setting: Setting) -> tuple[str, int]:
        baked = {name: value for name, value in setting.as_dict().items() if name != "max_splits"}
        return hashlib.sha256(repr(baked).encode()).hexdigest(), setting.max_splits

    return [default, *sorted(set(settings) - {default}, key=place)]
