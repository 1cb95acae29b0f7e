"""Where Mjolnir touches vLLM's own classes, in whatever version is installed; no engine is started.

Each check runs in a process of its own: what a plugin registers stays registered.
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
name = sys.argv[1]
ours, stock = getattr(selected, f"MjolnirOn{name}"), AttentionBackendEnum[name].get_class()
assert issubclass(ours, stock) and ours.get_name() == "CUSTOM"
pairs = [(ours, stock), (ours.get_impl_cls(), stock.get_impl_cls()), (ours.get_builder_cls(), stock.get_builder_cls())]
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


def run(program: str, *arguments: str, **variables: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MJOLNIR_", "THOR_T5_"))}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env={**clean, **variables}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("name", STOCK)
def test_what_vllm_calls_can_be_called(name: str) -> None:
    met = run(SURFACE, name).split()
    assert {"__init__", "build", "forward", "get_cudagraph_support", "get_impl_cls", "get_builder_cls"} <= set(met)


WHERE = """
import sys
from mjolnir.backend import register
register()
from vllm.v1.attention.backends.registry import AttentionBackendEnum
names = [name for name in ("CUSTOM", "MJOLNIR") if name in AttentionBackendEnum.__members__]
print(*(AttentionBackendEnum[name].get_path() for name in names), "mjolnir.kernel" in sys.modules)
"""


def test_it_is_registered_under_every_name_that_vllm_can_have() -> None:
    import vllm

    later = tuple(map(int, vllm.__version__.split(".")[:2])) >= (0, 32)
    assert run(WHERE) == " ".join(["mjolnir.backend.selected.MjolnirBackend"] * (1 + later) + ["False"])


def test_switched_off_custom_is_a_class_of_vllms_and_nothing_of_ours_is_imported() -> None:
    path, *_, imported = run(WHERE, MJOLNIR_ATTN_DISABLE="1").split()
    assert path.startswith("vllm.v1.attention.backends.")
    assert imported == "False"
