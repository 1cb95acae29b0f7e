"""One KV group put into service: eligibility, knobs, compiled kernels and buffers, and the start-up line."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mjolnir.backend import logs
from mjolnir.backend.eligibility import Group, geometry_of, refusal
from mjolnir.backend.emulated import EMULATED, EmulatedMaker
from mjolnir.backend.launcher import KernelMaker, Maker
from mjolnir.backend.resolve import Launchers, Problem
from mjolnir.backend.settings import CACHE_OFF
from mjolnir.kernel.cache import open_folder
from mjolnir.kernel.device import Device, current_device
from mjolnir.kernel.geometry import Placement

if TYPE_CHECKING:
    from mjolnir.backend.lookup import Defaults
    from mjolnir.backend.routing import Limits
    from mjolnir.backend.settings import Settings
    from mjolnir.kernel.geometry import Geometry

log = logging.getLogger(__name__)

BEST_QUERY = "native"
"""The query format without a setting: the engines multiply in f16, so that rounding Q further would gain nothing."""


@dataclass(frozen=True, slots=True)
class Service:
    """A KV group that runs on Mjolnir.

    Attributes:
        geometry: its problem, with one query token.
        limits: the steps that it takes.
        margin: tokens by which lengths may grow after a plan.
        launchers: what runs them.
    """

    geometry: Geometry
    limits: Limits
    margin: int
    launchers: Launchers


def device_refusal(device: torch.device) -> str | None:
    """Why no kernel runs on a device, or None."""
    if device.type == "cpu":
        return None
    try:
        current_device(_index(device))
    except (RuntimeError, ValueError) as error:
        return str(error)
    if find_spec("cutlass") is None or find_spec("tvm_ffi") is None:
        return "the kernel's compiler is not installed: pip install 'mjolnir-autoresearch[dsl]'"
    return None


def group_refusal(group: Group, device: torch.device) -> str | None:
    """Why a KV group runs on the fallback, or None."""
    return refusal(group) or device_refusal(device)


def open_service(
    group: Group,
    device: torch.device,
    settings: Settings,
    defaults: Defaults,
    limits: Limits,
    placement: Placement,
    environ: Mapping[str, str],
    *,
    margin: int = 0,
    non_causal: bool = False,
) -> Service:
    """Compile and make all that an eligible group needs.

    Args:
        group: the facts; `group_refusal` gave None.
        device: where it runs.
        settings, defaults, environ: what the user wants, the tables, and where caches are named.
        limits: the steps that it takes.
        placement: how the cache lies.
        margin: see `Service`.
        non_causal: whether blocks that are not causal will come.

    Raises:
        ValueError: knobs that do not fit together; the message names the sources.
        RuntimeError: a kernel that does not compile.
    """
    geometry = geometry_of(group, settings.q_dtype or BEST_QUERY)
    facts, maker = _maker(device, settings, environ)
    problem = Problem(facts, geometry, placement, limits.requests, settings.fused_qpack)
    launchers = Launchers(problem, defaults, maker, device)
    # What does not fit is an error at the start, not at the first step of that size.
    found = [launchers.resolve(bucket, q_len) for q_len in range(1, limits.q_len + 1) for bucket in problem.buckets]
    if stale := {item.row.key for item in found if item.row and item.stale}:
        logs.once(
            log,
            f"{len(stale)} rows of the defaults tables were measured with other kernel sources; they fit and still "
            f"serve (`mjolnir defaults check` lists them)",
        )
    if settings.precompile == "all":
        kinds = (True, False) if non_causal and limits.non_causal else (True,)
        launchers.precompile(range(1, limits.q_len + 1), kinds)
        launchers.ready({1, limits.q_len}, kinds)
    return Service(geometry, limits, margin, launchers)


def _maker(device: torch.device, settings: Settings, environ: Mapping[str, str]) -> tuple[Device, Maker]:
    if device.type == "cpu":
        return EMULATED, EmulatedMaker()
    index = _index(device)
    facts = current_device(index)
    return facts, KernelMaker(facts, torch.device("cuda", index), kernel_folder(settings, environ))


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def kernel_folder(settings: Settings, environ: Mapping[str, str]) -> Path:
    """Where compiled kernels are kept; a folder of this process alone where they are not to be, or cannot be.

    Raises:
        OSError: the folder that the user names cannot be used; the message says why.
    """
    if settings.kernel_cache == CACHE_OFF:
        return Path(_scratch().name)
    if settings.kernel_cache is not None:
        return open_folder(Path(settings.kernel_cache).expanduser())
    root = environ.get("VLLM_CACHE_ROOT")
    try:
        return open_folder((Path(root).expanduser() if root else Path.home() / ".cache") / "mjolnir" / "kernels")
    except (OSError, RuntimeError) as error:  # a file system that is read-only, or no home
        logs.once(log, f"compiled kernels are not kept for the next start: {error}")
        return Path(_scratch().name)


@cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    """Removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="mjolnir-kernels-")


def start_line(service: Service, fallback: object, given: Mapping[str, str]) -> str:
    """What serves, in one line: heads, sizes, knobs and where each came from, buffers, and the fallback.

    Args:
        service: the group.
        fallback: as it is to be named.
        given: settings that are not built in, by name, and the variable of each.
    """
    launchers, limits = service.launchers, service.limits
    knobs = [
        f"batch <= {bucket}: {_knobs(launchers.resolve(bucket, limits.q_len))}"
        for bucket in launchers.problem.buckets
        if bucket == 1 or launchers.resolve(bucket, limits.q_len).setting
        != launchers.resolve(bucket // 2, limits.q_len).setting
    ]  # fmt: skip
    chosen = f"; settings from {', '.join(given.values())}" if given else ""
    return (
        f"Mjolnir serves {service.geometry} ({launchers.problem.placement.layout}) on {launchers.problem.device.name}: "
        f"q_len <= {limits.q_len}, {limits.requests} requests; {'; '.join(knobs)}; "
        f"workspace {launchers.workspace_bytes} bytes; fallback {fallback}{chosen}"
    )


def _knobs(found: Any) -> str:
    """Knobs by where they came from: `ctas_per_sm=2 kv_stages=4 [row of tag h200]`."""
    tag = found.row.certificate.get("tag", "?") if found.row else ""
    by_source: dict[str, list[str]] = {}
    for name, value in found.setting.as_dict().items():
        source = found.sources[name]
        if found.row and source in ("user table", "packaged table"):
            source = f"{source}, tag {logs.plain(tag)}"
        by_source.setdefault(source, []).append(f"{name}={value}")
    return " ".join([found.engine, *(f"{' '.join(values)} [{source}]" for source, values in by_source.items())])


def settings_given(sources: Mapping[str, str]) -> dict[str, str]:
    """Settings that a variable gave."""
    return {name: source for name, source in sources.items() if source != "built-in"}


def log_refusal(names: list[str], reason: str) -> None:
    """Say once why a group runs on the fallback."""
    shown = names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "") if names else "no layers"
    logs.once(log, f"Mjolnir does not serve {shown}: {reason}; they run on the fallback")
