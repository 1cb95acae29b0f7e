"""The bench that measures on a GPU, and the recorder. Importing this package imports neither torch nor the compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mjolnir.tuner.gpu.gpu_bench import GpuBench
    from mjolnir.tuner.gpu.measure import Policy
    from mjolnir.tuner.gpu.recorder import record
    from mjolnir.tuner.gpu.supervisor import DeviceUnavailable

__all__ = ["DeviceUnavailable", "GpuBench", "Policy", "record"]

_HOMES = {"DeviceUnavailable": "supervisor", "GpuBench": "gpu_bench", "Policy": "measure", "record": "recorder"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
