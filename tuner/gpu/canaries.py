"""Canaries that need no faulty kernel: the harness itself serves what it should not, and the gate has to see it.

"stale" serves the binary of another setting: its outputs are right, so only its name and code give it away. "replayed"
copies what earlier launches left instead of computing: right on the inputs that were seen, so only new ones show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import FAULTS, Setting
from mjolnir.kernel.variant import infeasible, resolve

if TYPE_CHECKING:
    from torch import Tensor

    from mjolnir.tuner.gpu.card import Binary, Decoder


class StaleBinary(RuntimeError):
    """What would run is not the binary that was built for the setting."""


def baked(fault: str) -> str:
    """The fault of the kernel that a canary is built with; "none" for those of the harness."""
    return fault if fault in FAULTS else "none"


def stand_in(setting: Setting, geometry: Geometry, device: Device) -> Setting:
    """A setting that differs in one baked knob, which no two binaries can share: the ring's depth, else the launch.

    Raises:
        ValueError: nothing else fits.
    """
    depth = resolve(setting, geometry, device).kv_stages
    rings = [replace(setting, kv_stages=other) for other in (depth - 1, depth + 1, depth - 2, depth + 2) if other >= 2]
    for candidate in (*rings, replace(setting, pdl=1 - setting.pdl)):
        if infeasible(candidate, geometry, device) is None:
            return candidate
    raise ValueError(f"{setting}: nothing else fits, so there is no other binary to serve")


def require_binary(setting: Setting, ran: Binary, built: Mapping[str, Any] | None) -> None:
    """Compare the binary that is to run with the one that was built.

    Raises:
        StaleBinary: they differ, or none was built.
    """
    if built is None:
        raise StaleBinary(f"no binary was built for {setting}")
    if (ran.key, ran.binary) != (built["key"], built["binary"]):
        raise StaleBinary(
            f"the binary {ran.key} (code {ran.binary[:12]}) would run for {setting}; "
            f"built was {built['key']} (code {built['binary'][:12]})"
        )


class Replaying:
    """A decoder that computes an output once, and from then on copies what it left."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._left: dict[int, Tensor] = {}

    @property
    def built(self) -> Binary:
        """Of the decoder inside."""
        return self._decoder.built

    def plan(self, seq_lens: Tensor, margin: int = 0) -> None:
        """As the decoder inside."""
        self._decoder.plan(seq_lens, margin)

    def use_splits(self, max_splits: int) -> None:
        """As the decoder inside."""
        self._decoder.use_splits(max_splits)

    def run(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_table: Tensor,
        seq_lens: Tensor,
        out: Tensor,
        k_scale: Tensor,
        v_scale: Tensor,
        scale: float | None = None,
    ) -> None:
        """Compute into an output that was never seen; else copy."""
        left = self._left.get(out.data_ptr())
        if left is not None:
            out.copy_(left)
            return
        self._decoder.run(q, k_cache, v_cache, block_table, seq_lens, out, k_scale, v_scale, scale)
        self._left[out.data_ptr()] = out.clone()
