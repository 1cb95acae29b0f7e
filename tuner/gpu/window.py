"""What is seen of the device around a block of measurements: clocks, temperature, power, throttling, neighbours.

Read-only: no setting of the GPU is ever changed. Without NVML a look says so and nothing is judged by it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SLOWDOWN = {"hw_slowdown", "hw_thermal", "hw_power_brake", "sw_thermal"}
"""Throttle reasons that make a window dirty: heat and power brakes, which come and go within a block. The power cap is
not among them: a card at work lives with it, and interleaving takes it out of ratios."""

COLLAPSE = 0.75
"""An SM clock below this share of the highest of late has collapsed, whatever reason the card gives, or none."""

RECENT = 64
"""Looks that "of late" means: a clock that stays low for longer is the card's new level, and no collapse."""


class Looker:
    """Looks at one GPU through NVML.

    Args:
        uuid: the GPU's UUID, "GPU-...".

    Create it before the CUDA context and call `settle` after: what appears between is this process itself, also
    where a container shows other process ids than ours.
    """

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid
        self._trouble = ""
        self._clocks: deque[int] = deque(maxlen=RECENT)
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except Exception as error:  # whatever NVML or its absence raises, measuring goes on without it
            self._trouble = f"NVML is not usable: {error}"
        self._known = self._processes()

    def settle(self) -> None:
        """Take all processes on the GPU now as known: ourselves, and who was there before."""
        self._known = self._processes() | self._known | {os.getpid()}

    @property
    def trouble(self) -> str:
        """Why nothing is seen; empty when NVML works."""
        return self._trouble

    def driver(self) -> str:
        """The driver's version, or "unknown"."""
        version = self._try(lambda: self._nvml.nvmlSystemGetDriverVersion())
        return version.decode() if isinstance(version, bytes) else str(version or "unknown")

    def look(self) -> dict[str, Any]:
        """The device now; what cannot be read is left out."""
        if self._trouble:
            return {"nvml": self._trouble}
        nvml, handle = self._nvml, self._handle
        found = self._processes()
        readings: dict[str, Callable[[], Any]] = {
            "sm_mhz": lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            "mem_mhz": lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            "celsius": lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            "watts": lambda: round(nvml.nvmlDeviceGetPowerUsage(handle) / 1000, 1),
            "throttle": lambda: throttle_reasons(int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))),
            "newcomers": lambda: len(found - self._known),
            "strangers": lambda: len(self._strangers(found)),
        }
        values = {name: self._try(read) for name, read in readings.items()}
        if values["sm_mhz"] is not None:
            self._clocks.append(values["sm_mhz"])
            values["recent_mhz"] = max(self._clocks)
        return {name: value for name, value in values.items() if value is not None}

    def _processes(self) -> frozenset[int]:
        if self._trouble:
            return frozenset()
        found = self._try(lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle))
        return frozenset(int(process.pid) for process in found or ())

    def _strangers(self, found: frozenset[int]) -> frozenset[int]:
        """Newcomers that are not of this run; none where the process ids on the card are not ours to read."""
        if os.getpid() not in found:
            return frozenset()
        return frozenset(pid for pid in found - self._known if parent_of(pid) != os.getppid())

    def _try(self, read: Callable[[], Any]) -> Any:
        if self._trouble:
            return None
        try:
            return read()
        except Exception:  # a reading that this card or driver does not have
            return None


def parent_of(pid: int) -> int | None:
    """The parent of process `pid`, or None where it cannot be read."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, ValueError, IndexError):
        return None


THROTTLE_BITS: Mapping[int, str] = {
    0x2: "application_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
"""`nvmlClocksEventReasons` by bit (nvml.h); bit 0 is idle and says nothing."""


def throttle_reasons(bits: int) -> list[str]:
    """Names of the throttle reasons that are set."""
    return [name for bit, name in THROTTLE_BITS.items() if bits & bit]


def between(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """A window from the looks before and after a block; `dirty` says why it cannot be trusted, "" when it can."""
    seen = set(before.get("throttle", ())) | set(after.get("throttle", ()))
    slow = sorted(seen & SLOWDOWN)
    strangers = max(before.get("strangers", 0), after.get("strangers", 0))
    trouble = [f"the card throttled ({', '.join(slow)})"] if slow else []
    # The look before a block may find the card idle, with its clock low; after a block it never is: that look is taken
    # right behind it, or while the next block runs.
    if after.get("sm_mhz", 0) < COLLAPSE * after.get("recent_mhz", 0):
        trouble.append(f"the SM clock fell to {after['sm_mhz']} MHz, of late it was {after['recent_mhz']}")
    if strangers:
        trouble.append(f"other processes came onto the GPU: {strangers}")
    return {"before": dict(before), "after": dict(after), "dirty": "; ".join(trouble)}
