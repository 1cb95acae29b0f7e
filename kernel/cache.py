"""The compile cache: variants as object files on disk, loaded functions in memory.

Loading an object runs its code, so a folder that others can write is refused. Files appear whole or not at all, and
whatever is wrong with one only means that it is compiled again.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import stat
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mjolnir.kernel import cross
from mjolnir.kernel.cubin import read_resources
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.sources import kernel_hash
from mjolnir.kernel.variant import Variant

OPTIONS = "--enable-tvm-ffi --keep-cubin --keep-ptx"
FUNCTION = "mjolnir_launch"
VARIABLE = "MJOLNIR_ATTN_KERNEL_CACHE"


class CompileError(RuntimeError):
    """A variant did not compile; `log` holds what the compiler said."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log

    def __reduce__(self) -> tuple[type[CompileError], tuple[str, str]]:
        return type(self), (str(self), self.log)


@dataclass(frozen=True, slots=True)
class Built:
    """One compiled binary.

    Attributes:
        key: its name in the cache.
        path: the object file.
        binary: sha256 (hex) of the machine code.
        registers: registers a thread, the most of its kernels.
        spill_bytes: local memory a thread; a variant that spills is infeasible.
        smem_bytes: shared memory of one CTA of the decode kernel.
        seconds: what compiling took, also when it was found in the cache.
    """

    key: str
    path: Path
    binary: str
    registers: int
    spill_bytes: int
    smem_bytes: int
    seconds: float


def default_folder(environ: dict[str, str] | None = None) -> Path:
    """Where objects are kept: `$MJOLNIR_ATTN_KERNEL_CACHE`, else `~/.cache/mjolnir/kernels`."""
    place = (os.environ if environ is None else environ).get(VARIABLE, "")
    return Path(place) if place else Path.home() / ".cache" / "mjolnir" / "kernels"


def open_folder(folder: Path | None) -> Path:
    """Make the cache folder, private to the user, and check that it is.

    Raises:
        PermissionError: others may write to it, or it belongs to somebody else.
    """
    place = default_folder() if folder is None else folder
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    facts = place.stat()
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or facts.st_uid not in (0, os.getuid()):
        raise PermissionError(
            f"the kernel cache {place} can be written by others, and loading an object runs its code: "
            f"run `chmod go-w {place}`, or name another folder in {VARIABLE}"
        )
    return place


@cache
def toolchain(host: str = platform.machine()) -> tuple[str, ...]:
    """What a binary depends on beside the variant: sources, DSL packages, host, options."""
    packages = ("nvidia-cutlass-dsl", "apache-tvm-ffi")
    return (kernel_hash(), host, OPTIONS, *(f"{name} {version(name)}" for name in packages))


def key_of(variant: Variant, host: str | None = None) -> str:
    """The cache key of `variant` with the toolchain installed here."""
    return variant.key(*_toolchain(host))


def _toolchain(host: str | None) -> tuple[str, ...]:
    """For this host whether it is named or not."""
    return toolchain(host) if host is not None and cross.foreign(host) else toolchain()


def build(variant: Variant, folder: Path | None = None, host: str | None = None) -> Built:
    """Find the object of `variant`, or compile it; needs no GPU, and any number of processes may do it at once.

    Args:
        variant: what to compile.
        folder: the cache, None = the user's.
        host: the machine that will load the object, one of `cross.HOSTS`; None = this one. A folder that was filled for
            another machine is found complete there by the same versions of the same packages.

    Raises:
        CompileError: the compiler refused it.
        ValueError: an unknown host.
        PermissionError: see `open_folder`.
    """

    def target() -> tuple[object, tuple[object, ...]]:
        from mjolnir.kernel.engines import step

        return step.Step(variant), step.arguments(variant)

    key = key_of(variant, host)
    return _find_or_compile(key, variant.arch, variant.smem_bytes, target, open_folder(folder), host)


def build_runnable(variant: Variant, setting: Setting, folder: Path | None = None) -> Built:
    """`build`, for who will run it.

    Args:
        variant, folder: as there.
        setting: that the variant runs, for the message.

    Raises:
        CompileError: as there, or its registers spill.
    """
    built = build(variant, folder)
    if built.spill_bytes:
        raise CompileError(f"{setting} spills {built.spill_bytes} bytes of registers a thread")
    return built


def find(variant: Variant, folder: Path | None = None) -> Built | None:
    """The object of `variant` if it is in the cache whole; compiles nothing, and imports no compiler.

    Raises:
        PermissionError: see `open_folder`.
    """
    place, key = open_folder(folder), key_of(variant)
    return _read_facts(place / f"{key}.json", place / f"{key}.o")


def build_plan(arch: str, folder: Path | None = None, host: str | None = None) -> Built:
    """The same for the plan kernel, of which there is one for each architecture."""

    def target() -> tuple[object, tuple[object, ...]]:
        from mjolnir.kernel.engines import planner

        return planner.Planner(), planner.arguments()

    digest = hashlib.sha256(json.dumps(["plan", arch, *_toolchain(host)]).encode()).hexdigest()[:32]
    return _find_or_compile(digest, arch, 0, target, open_folder(folder), host)


_functions: dict[Path, Callable[..., None]] = {}


def load(built: Built) -> Callable[..., None]:
    """The launch function of a binary, loaded once in a process."""
    if built.path not in _functions:
        from cutlass import cute

        module = cute.runtime.load_module(str(built.path), enable_tvm_ffi=True)
        _functions[built.path] = getattr(module, FUNCTION)
    return _functions[built.path]


def compile_only(target: object, arguments: tuple[object, ...], arch: str) -> Any:
    """Compile for `arch`, whatever GPU is here; the result's artifacts hold PTX and cubin.

    Raises:
        CompileError: the compiler refused it.
    """
    from cutlass import cute

    _preload()
    with tempfile.TemporaryDirectory(prefix="mjolnir-compile-") as scratch:
        try:
            return cute.compile(target, *arguments, options=f"--gpu-arch {arch} {OPTIONS} --dump-dir {scratch}")
        except Exception as error:
            raise CompileError(f"compiling for {arch} failed: {type(error).__name__}", str(error)) from error


def _find_or_compile(
    key: str,
    arch: str,
    smem: int,
    target: Callable[[], tuple[object, tuple[object, ...]]],
    folder: Path,
    host: str | None,
) -> Built:
    path, facts = folder / f"{key}.o", folder / f"{key}.json"
    found = _read_facts(facts, path)
    if found is not None:
        return found
    started = time.perf_counter()
    compiled = compile_only(*target(), arch)
    cubin = compiled.artifacts.CUBIN
    resources = read_resources(cubin)
    _replace(path, lambda scratch: _export(compiled, scratch, host))
    seconds = round(time.perf_counter() - started, 3)
    binary = hashlib.sha256(cubin).hexdigest()
    built = Built(key, path, binary, resources.registers, resources.frame_bytes, smem, seconds)
    text = json.dumps({**asdict(built), "path": path.name, "object": _sha256(path)})
    _replace(facts, lambda scratch: scratch.write_text(text))
    return built


def _export(compiled: Any, path: Path, host: str | None) -> None:
    if host is not None and cross.foreign(host):
        cross.export(compiled, path, FUNCTION, host)
    else:
        compiled.export_to_c(str(path), function_name=FUNCTION)


def _read_facts(facts: Path, path: Path) -> Built | None:
    """What is known of an object in the cache, or None when it is not there whole."""
    try:
        values = json.loads(facts.read_text())
        if values.pop("object") != _sha256(path):
            return None
        return Built(**{**values, "path": path})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a file beside `path`, then put it there in one step."""
    scratch = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        write(scratch)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


@cache
def _preload() -> None:
    """Exporting on a machine without a driver needs the DSL's runtime among the process's global symbols."""
    from cutlass import cute

    for library in cute.runtime.find_runtime_libraries(enable_tvm_ffi=True):
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
