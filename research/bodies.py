"""The bodies of a campaign's first records, and the environment that a process leaves with its first one."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from importlib import metadata
from platform import python_version, system
from typing import TYPE_CHECKING, Any

from mjolnir.kernel.knobs import Setting
from mjolnir.research.request import Request, command_line

if TYPE_CHECKING:
    from mjolnir.tuner.bench import Bench
    from mjolnir.tuner.options import Options

EPOCH_PARTS = ("kernel_hash", "policy", "driver", "dsl", "torch")
PACKAGES = ("mjolnir-autoresearch", "torch", "nvidia-cutlass-dsl", "apache-tvm-ffi", "optuna", "numpy")


def campaign_body(request: Request, bench: Bench, options: Options) -> dict[str, Any]:
    """The body of the campaign record."""
    recording = getattr(bench, "recording", None)
    return {
        "geometry": bench.geometry.as_dict(),
        "placement": asdict(bench.placement),
        "workload": bench.workload.as_dict(),
        "options": options.as_dict(),
        "device": asdict(bench.device),
        "simulated": bench.simulated,
        "recording": recording.name if recording else None,
        "command": command_line(request.command),
        "default": Setting().as_dict(),
        "incumbents": {str(bucket): setting.as_dict() for bucket, setting in options.incumbents.items()},
        "enqueued": [setting.as_dict() for setting in options.enqueued],
    }


def epoch_body(bench: Bench) -> dict[str, Any]:
    """The body of the epoch record: what measurements must share to be compared, and its digest."""
    facts = {**(bench.environment.get("versions") or {}), **bench.environment}
    parts = {"device": asdict(bench.device), **{name: facts.get(name) for name in EPOCH_PARTS}}
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return {"epoch": hashlib.sha256(text.encode()).hexdigest()[:16], "parts": parts}


def environment(bench: Bench) -> dict[str, Any]:
    """The environment of this process for its first record: versions and the bench, no host and no folder."""
    return {**process_environment(), "device": asdict(bench.device), "bench": dict(bench.environment)}


def process_environment() -> dict[str, Any]:
    """The part of it that needs no bench."""
    versions = {name: version for name in PACKAGES if (version := _version(name))}
    return {"python": python_version(), "system": system(), "packages": versions}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
