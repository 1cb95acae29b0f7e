"""What this machine can do, and what would have to be installed for the rest."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjolnir.research.answer import Answer

if TYPE_CHECKING:
    from rich.console import RenderableType

NEEDED_DISK = 2 << 30
"""Bytes that a campaign with its binaries should find free."""

DSL_PACKAGES = ("nvidia-cutlass-dsl", "apache-tvm-ffi")
DSL_ADVICE = "pip install 'mjolnir-autoresearch[dsl]'"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at.

    Attributes:
        name: what was looked at.
        ok: whether it is as a live campaign needs it.
        found: what is there, in words.
        advice: what to do when it is not; empty otherwise.
    """

    name: str
    ok: bool
    found: str
    advice: str = ""


def doctor(ledger_folder: Path | None = None) -> Answer:
    """Look at GPU, driver, torch, DSL, git, disk and caches."""
    gpus, gpu_check = _gpus()
    checks = [gpu_check, _torch(bool(gpus)), _dsl(), _vllm(), _git(ledger_folder), *_places(ledger_folder)]
    by_name = {check.name: check for check in checks}
    live = [name for name in ("GPU", "torch", "CuTe DSL") if not by_name[name].ok]
    abilities = {
        "replay a recorded campaign": "yes",
        "tune on this machine": "yes" if not live else f"no: {', '.join(live)} missing",
        "compile variants": "yes" if by_name["CuTe DSL"].ok else "no: CuTe DSL missing",
        "serve with vLLM": "yes" if by_name["vLLM"].ok and not live else "no",
        "keep the ledger in git": "yes" if by_name["git"].ok else f"no: {by_name['git'].found}",
    }
    data = {"checks": [asdict(check) for check in checks], "gpus": gpus, "abilities": abilities}
    return Answer(data, _view(checks, abilities))


def _gpus() -> tuple[list[dict[str, Any]], Check]:
    advice = "tuning needs an NVIDIA GPU with its driver (Hopper or Blackwell); without one use --device replay"
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:  # NVML raises its own types, and ImportError or OSError without the library
        return [], Check("GPU", False, f"none found ({error})", advice)
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        gpus = [_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()
    if not gpus:
        return [], Check("GPU", False, f"driver {driver}, no device", advice)
    supported = [gpu for gpu in gpus if gpu["capability"] in ("9.0", "10.0", "11.0")]
    names = ", ".join(f"{gpu['index']}: {gpu['name']} (sm {gpu['capability']})" for gpu in gpus)
    return gpus, Check("GPU", bool(supported), f"{names}; driver {driver}", "" if supported else advice)


def _gpu(nvml: Any, index: int) -> dict[str, Any]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return {
        "index": index,
        "name": _text(nvml.nvmlDeviceGetName(handle)),
        "capability": f"{major}.{minor}",
        "memory_bytes": int(memory.total),
        "memory_free_bytes": int(memory.free),
    }


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _torch(has_gpu: bool) -> Check:
    version = _version("torch")
    if version is None:
        return Check("torch", False, "not installed", "pip install torch")
    if not has_gpu:
        return Check("torch", True, version)
    import torch

    if torch.cuda.is_available():
        return Check("torch", True, f"{version}, CUDA {torch.version.cuda}")
    return Check("torch", False, f"{version} sees no CUDA device", "install a CUDA build of torch for this driver")


def _dsl() -> Check:
    versions = {package: _version(package) for package in DSL_PACKAGES}
    missing = [package for package, version in versions.items() if version is None]
    if missing:
        return Check("CuTe DSL", False, f"{', '.join(missing)} not installed", DSL_ADVICE)
    return Check("CuTe DSL", True, ", ".join(f"{package} {version}" for package, version in versions.items()))


def _vllm() -> Check:
    version = _version("vllm")
    if version is None:
        return Check("vLLM", False, "not installed (needed only to serve)", "pip install 'mjolnir-autoresearch[vllm]'")
    return Check("vLLM", True, version)


def _git(ledger_folder: Path | None) -> Check:
    """What the ledger itself says of git, which is what a run will find."""
    from mjolnir import ledger as ledgers

    with ledgers.open(ledger_folder) as ledger:
        if ledger.git_note:
            advice = (
                "records are kept in the live file alone; for commits put the ledger into a writable git repository"
            )
            return Check("git", False, ledger.git_note, advice)
        return Check("git", True, f"trials become commits in {ledger.repository}")


def _places(ledger_folder: Path | None) -> list[Check]:
    from mjolnir.research import places

    folders = {
        "ledger": places.ledger_folder(ledger_folder),
        "compile cache": places.compile_cache(),
        "user table": places.user_table().parent,
    }
    return [_place(name, folder) for name, folder in folders.items()]


def _place(name: str, folder: Path) -> Check:
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    found = f"{folder}, {free / 1e9:.1f} GB free"
    if not os.access(existing, os.W_OK):
        return Check(name, False, f"{found}, not writable", f"make {existing} writable, or choose another folder")
    if free < NEEDED_DISK:
        return Check(name, False, found, f"free at least {NEEDED_DISK >> 30} GB there, or choose another folder")
    return Check(name, True, found)


def _view(checks: list[Check], abilities: dict[str, str]) -> RenderableType:
    from rich.console import Group
    from rich.table import Table

    facts = Table(box=None, pad_edge=False)
    for title in ("", "what", "found", "what to do"):
        facts.add_column(title, overflow="fold")
    for check in checks:
        facts.add_row("ok" if check.ok else "--", check.name, check.found, check.advice)
    can = Table(box=None, pad_edge=False, title="This machine can", title_justify="left")
    can.add_column("")
    can.add_column("")
    for name, answer in abilities.items():
        can.add_row(name, answer)
    return Group(facts, "", can)
