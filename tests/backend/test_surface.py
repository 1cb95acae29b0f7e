"""Every method that stands before one of vLLM's can be called as that one is, in whatever version is installed.

The check runs in a process of its own: what a plugin registers stays registered.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("vllm")

pytestmark = pytest.mark.vllm

STOCK = ("TRITON_ATTN", "FLASH_ATTN")

SURFACE = """
import inspect, sys
from mjolnir.backend import register
register()
import mjolnir.backend.selected as selected
from vllm.v1.attention.backends.registry import AttentionBackendEnum
pairs = []
for name in sys.argv[1:]:
    ours, stock = getattr(selected, f"MjolnirOn{name}"), AttentionBackendEnum[name].get_class()
    assert ours.get_name() == "CUSTOM"
    parts = lambda backend: (backend, backend.get_impl_cls(), backend.get_builder_cls())
    pairs += zip(parts(ours), parts(stock))
def plain(function):
    return function.__func__ if isinstance(function, (classmethod, staticmethod)) else function
met = []
for mine, theirs in pairs:
    assert issubclass(mine, theirs)
    for member in {member for base in mine.__mro__ if base.__module__.startswith("mjolnir.") for member in vars(base)}:
        before = inspect.getattr_static(theirs, member, None)
        found = plain(inspect.getattr_static(mine, member))
        if member.startswith("__") and member != "__init__" or not inspect.isfunction(plain(before)) or found is None:
            continue
        positional, named = [], {}
        for parameter in inspect.signature(plain(before)).parameters.values():
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                positional.append(parameter.name)
            elif parameter.kind is parameter.KEYWORD_ONLY:
                named[parameter.name] = None
        if isinstance(before, staticmethod) and isinstance(inspect.getattr_static(mine, member), classmethod):
            positional.insert(0, "cls")
        inspect.signature(found).bind(*positional, **named)
        met.append(member)
print(" ".join(sorted(set(met))))
"""
"""Binds every call that the stock class takes to what stands before it; prints the members that it met."""


def test_what_vllm_calls_can_be_called() -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MJOLNIR_", "THOR_T5_"))}
    command = [sys.executable, "-c", SURFACE, *STOCK]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    met = set(done.stdout.splitlines()[-1].split())
    assert {"__init__", "build", "forward", "get_cudagraph_support", "get_impl_cls", "get_builder_cls"} <= met
