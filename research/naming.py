"""Settings in words, what differs from the built-in default on this device; and words for ratios and counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import resolve
from mjolnir.tuner.earlier import as_of_now


def counted(number: int, noun: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def interval(ratio: Any) -> str:
    """A certificate's ratio in words: `0.873 [0.861, 0.885]`, or the bare number."""
    if isinstance(ratio, Mapping):
        value, low, high = (ratio.get(name) for name in ("value", "low", "high"))
        return f"{value:.3f} [{low:.3f}, {high:.3f}]"
    return "none" if ratio is None else f"{ratio:.3f}"


def written(changed: int, rows: int, place: str) -> str:
    """How many rows were written where."""
    return f"{changed} of {counted(rows, 'proven row')} written to {place}"


@dataclass(frozen=True, slots=True)
class Names:
    """Names settings for one geometry on one device."""

    geometry: Geometry
    device: Device

    @classmethod
    def of(cls, campaign: Mapping[str, Any]) -> Names:
        """Those of a campaign body or a summary."""
        return cls(Geometry.from_dict(campaign["geometry"]), Device(**campaign["device"]))

    def __call__(self, setting: Setting | Mapping[str, Any]) -> str:
        """The knobs that differ from the built-in default as `name=value`, or "the built-in default".

        A ring as deep as fits is what `kv_stages=0` stands for, so it counts as the default.
        """
        given = setting if isinstance(setting, Setting) else Setting.from_dict(setting)
        folded = replace(given, kv_stages=0)
        now = as_of_now(given, self.geometry, self.device)
        same = resolve(folded, self.geometry, self.device) == resolve(now, self.geometry, self.device)
        changed = (folded if same else given).changed(Setting())
        return " ".join(f"{name}={value}" for name, value in changed.items()) or "the built-in default"
