"""Objects for another machine: the host function of a variant as AArch64 code, made on x86-64 or the other way round.

The DSL exports either functions that TVM-FFI calls, or for another host, never both (4.7.1 refuses the two options
together). Its parts do both: the module that it would export, handed to the object writer that takes a host triple.
The GPU's code inside is the same, and so is every symbol.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

HOSTS = ("x86_64", "aarch64")
"""Machines that objects are made for, as `platform.machine` names them."""


def foreign(host: str | None) -> bool:
    """Whether `host` is another machine than this one; None is this one.

    Raises:
        ValueError: neither this machine nor one that objects are made for.
    """
    if host in (None, platform.machine()):
        return False
    if host not in HOSTS:
        raise ValueError(f"host {host!r} is not one of {', '.join(HOSTS)}")
    return True


def export(compiled: Any, path: Path, function: str, host: str) -> None:
    """Write the object that `compiled.export_to_c(path, function_name=function)` would, for `host`."""
    from cutlass.base_dsl.export import get_export_module
    from cutlass.cutlass_dsl.tvm_ffi_provider import rename_tvm_ffi_function

    name = compiled.function_name
    prefix = f"__cute_internal_{function}"
    module = get_export_module(compiled.ir_module, prefix, preserve_symbols={f"__tvm_ffi_{name}"})
    rename_tvm_ffi_function(module, name, function)
    compiled.export_provider.mlirExecutionEngine.dump_object_file_pic(
        module, str(path), f"{prefix}_{name}", host_triple=f"{host}-unknown-linux-gnu", host_cpu="", host_features=""
    )
