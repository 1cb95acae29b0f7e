"""The records that open a campaign: what was asked, the epoch that it is measured in, and what it ran in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from platform import python_version, system
from typing import TYPE_CHECKING, Any

from mjolnir.kernel.knobs import Setting
from mjolnir.research.request import Request, command_line

if TYPE_CHECKING:
    from mjolnir.tuner.bench import Bench
    from mjolnir.tuner.journal import Journal
    from mjolnir.tuner.options import Options

EPOCH_PARTS = ("kernel_hash", "policy", "driver", "dsl", "torch")
PACKAGES = ("mjolnir-autoresearch", "torch", "nvidia-cutlass-dsl", "apache-tvm-ffi", "optuna", "numpy")


def open_records(
    request: Request,
    bench: Bench,
    options: Options,
    journal: Journal,
    *,
    campaign: Mapping[str, Any] | None = None,
    epoch: Mapping[str, Any] | None = None,
) -> None:
    """Append the campaign record, when it is new or its limits changed, and the epoch record, when that changed.

    Args:
        request, bench, options: what the records are of.
        journal: takes them.
        campaign, epoch: further members of their bodies; those of the epoch are parts of it.
    """
    history = journal.history()
    body = {**campaign_body(request, bench, options), **(campaign or {})}
    old = [record["body"] for record in history if record["kind"] == "campaign"]
    if not old or old[-1]["options"] != json.loads(json.dumps(body["options"])):
        journal.append("campaign", body)
    now = epoch_body(bench, epoch)
    epochs = [record["body"]["epoch"] for record in history if record["kind"] == "epoch"]
    if not epochs or epochs[-1] != now["epoch"]:
        journal.append("epoch", now)


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


def epoch_body(bench: Bench, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The body of the epoch record: what measurements must share to be compared, and its digest."""
    facts = {**(bench.environment.get("versions") or {}), **bench.environment}
    parts = {"device": asdict(bench.device), **{name: facts.get(name) for name in EPOCH_PARTS}, **(more or {})}
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
