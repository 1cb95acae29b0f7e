"""What the outputs that a gate expects depend on: the emulator stands for an engine, its warps, and a plan's grid."""

from __future__ import annotations

from dataclasses import dataclass

from mjolnir.kernel.device import Device
from mjolnir.kernel.engine import Engine, engine_for
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting


@dataclass(frozen=True, slots=True)
class Expectation:
    """One set of expected outputs of a geometry's small cases; the binaries that it serves differ in speed alone.

    Attributes:
        arch: architecture, which the engine is chosen by.
        grid: CTAs that the cases are planned on.
        merge: whether items may be cut.
        warps: computing warps of a CTA.
    """

    arch: str
    grid: int
    merge: bool
    warps: int

    @classmethod
    def of(cls, setting: Setting, device: Device) -> Expectation:
        """That of the setting's binary."""
        return cls(device.arch, device.sm_count * setting.ctas_per_sm, setting.max_splits != 1, setting.consumer_warps)

    @property
    def name(self) -> str:
        """Names it among those of one geometry and device."""
        return f"{self.grid}-{'merge' if self.merge else 'whole'}-{self.warps}"

    def engine(self, geometry: Geometry) -> Engine:
        """The engine that the emulator stands for."""
        return engine_for(geometry, self.arch, warps=self.warps)
