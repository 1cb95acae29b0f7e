"""What is asked of a device worker (see `worker.Worker`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.gpu.measure import Policy
from mjolnir.tuner.gpu.supervisor import Backend
from mjolnir.tuner.workload import Workload


def opening(
    backend: Backend, geometry: Geometry, placement: Placement, workload: Workload, policy: Policy, folder: Path
) -> dict[str, Any]:
    """To take up a problem, without what each process has of its own."""
    return {
        "op": "open",
        "card": backend.card,
        "options": dict(backend.options or {}),
        "geometry": geometry.as_dict(),
        "placement": asdict(placement),
        "workload": workload.as_dict(),
        "policy": policy.as_dict(),
        "folder": str(folder),
    }


def measuring(
    trial: int | None,
    setting: Setting,
    points: Sequence[int],
    rounds: int | None = None,
    fault: str = "none",
    serve: Setting | None = None,
) -> dict[str, Any]:
    """To gate a setting and time it against the default."""
    return {
        "op": "measure",
        "trial": trial,
        "setting": setting.as_dict(),
        "fault": fault,
        "serve": serve.as_dict() if serve else None,
        "points": list(points),
        "rounds": rounds,
    }
