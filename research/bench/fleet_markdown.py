"""What more devices gained, as Markdown, for the README: of each run how fast it went, and how its devices fared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mjolnir.research.bench.targets import line_of

HEAD = [
    "campaign", "devices", "trials", "trials/min", "busy", "idle between trials", "devices apart", "lost, asked again",
    "each once",
]  # fmt: skip


def page(results: Mapping[str, Any]) -> str:
    """A line for each run, and how two of them compare."""
    lines = [line_of(HEAD), line_of(["---"] * len(HEAD))]
    lines += [line_of([tag, *_cells(run)]) for tag, run in results["runs"].items()]
    most = max(len(run["devices"]) for run in results["runs"].values())
    return "\n".join([*lines, "", _sum(results["figures"], most), ""])


def _cells(run: Mapping[str, Any]) -> list[str]:
    devices: Mapping[str, Mapping[str, Any]] = run["devices"]
    shares = " + ".join(str(device["trials"]) for device in devices.values())
    apart = max((abs(value) for device in devices.values() for value in device["offset"].values()), default=0.0)
    return [
        str(len(devices)),
        str(run["trials"]) if len(devices) == 1 else f"{run['trials']} ({shares})",
        f"{run['trials_per_minute']:.0f}",
        f"{run['busy_share']:.1%}",
        "-" if run["idle_ms"] is None else f"{run['idle_ms']:.3f} ms",
        "" if len(devices) == 1 else f"{apart:.1%}",
        str(run["lost"]),
        "yes" if run["each_once"] else "no",
    ]


def _sum(figures: Mapping[str, Any], devices: int) -> str:
    same, buckets = figures["same_winners"], figures["buckets"]
    return (
        f"On {devices} devices it tried {figures['speed_up']:.2f} times as many settings a minute as on one. In {same} "
        f"of {buckets} buckets what both came to, and the fastest that both saw, are the same within the noise. "
        "Devices apart: by how much the default's time differs between them, at the point where that is most; every "
        "setting is timed beside the default on its own device. Each once: the trials' numbers leave none out, none "
        "is there twice."
    )
