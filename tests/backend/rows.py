"""Keys and rows that the tests of the table share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mjolnir.backend.table import CERTIFICATE, Key, Row
from mjolnir.kernel.device import H200, Device
from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.rule import built_in

GEOMETRY = Geometry(32, 8)
PLACEMENT = Placement()
HASH = "a" * 64


def key(batch: int = 8, **changes: Any) -> Key:
    """The key of 32/8 heads on an H200, with `changes`."""
    return replace(Key.of(H200, GEOMETRY, PLACEMENT, batch), **changes)


def certificate(**changes: Any) -> dict[str, Any]:
    """A complete certificate."""
    values: dict[str, Any] = {name: f"{name} of the test" for name in CERTIFICATE}
    return values | {"kernel_hash": HASH, "records": ["b" * 64, "c" * 64], "noise_floor": {"8x4096": 0.004}} | changes


def row(batch: int = 8, setting: Setting | None = None, *, kernel_hash: str = HASH, **changes: Any) -> Row:
    """A row for `key(batch, **changes)`."""
    return Row(key(batch, **changes), "warp", setting or Setting(), certificate(kernel_hash=kernel_hash))


def unfitted(geometry: Geometry, device: Device, batch: int) -> Setting:
    """The built-in rule as it is on a device that it was not fitted on: rows nearby come before it."""
    return built_in(geometry, device, batch)
