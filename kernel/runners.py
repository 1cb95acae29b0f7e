"""Runners for calls that come without one: found by what they have in common, made when there is none."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.runner import Runner


@dataclass(frozen=True, slots=True)
class Key:
    """What calls have in common that one runner serves: the problem, the stream, and the batch up to a power of two."""

    geometry: Geometry
    setting: Setting
    device: torch.device
    stream: int
    max_batch: int
    lse: bool
    q_mul: bool
    o_mul: bool


class Runners:
    """Runners by key, at most `limit` of them besides those that graphs were captured with: a graph needs its buffers
    as long as it is replayed.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: dict[Key, _Entry] = {}
        self._uses = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Key, device: Device) -> Runner:
        """The runner for `key`, made where there is none."""
        entry = self._kept.get(key)
        if entry is None:
            entry = _Entry(_make(key, device))
            self._forget()
            self._kept[key] = entry
        self._uses += 1
        entry.last_use = self._uses
        entry.captured |= key.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        return entry.runner

    def _forget(self) -> None:
        """Make room for one more."""
        free = [key for key, entry in self._kept.items() if not entry.captured]
        free.sort(key=lambda key: self._kept[key].last_use)
        for key in free[: max(0, len(free) + 1 - self._limit)]:
            del self._kept[key]


@dataclass(slots=True)
class _Entry:
    """A runner, the number of its last use, and whether a graph was captured with it."""

    runner: Runner
    last_use: int = 0
    captured: bool = False


def _make(key: Key, device: Device) -> Runner:
    """A runner that asks for tables of one page at least; plans are made for what a call's table holds."""
    return Runner(
        key.setting, key.geometry, device, max_batch=key.max_batch, capacity=key.geometry.page_size,
        cuda_device=str(key.device), lse=key.lse, q_mul=key.q_mul, o_mul=key.o_mul,
    )  # fmt: skip
