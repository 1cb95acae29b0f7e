"""The kernel hash: which code a row, a recording and a binary were made with."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

DEVICE_SOURCES = (
    "device.py",
    "engine.py",
    "engines/consumer.py",
    "engines/decode.py",
    "engines/lazy_softmax.py",
    "engines/masking.py",
    "engines/meeting.py",
    "engines/merge.py",
    "engines/operands.py",
    "engines/output.py",
    "engines/planner.py",
    "engines/ptx.py",
    "engines/query.py",
    "engines/ring.py",
    "engines/step.py",
    "engines/warp.py",
    "engines/wgmma.py",
    "engines/widening.py",
    "geometry.py",
    "plan.py",
    "variant.py",
)
"""Modules whose code reaches the device or decides launches; emulator, harness and tests are not among them."""


@cache
def kernel_hash() -> str:
    """sha256 (hex) over path and bytes of `DEVICE_SOURCES`, in this order."""
    return hash_sources({name: (Path(__file__).parent / name).read_bytes() for name in DEVICE_SOURCES})


def hash_sources(contents: dict[str, bytes]) -> str:
    """The kernel hash of the given contents by module path, for trees other than the installed one."""
    digest = hashlib.sha256()
    for name in DEVICE_SOURCES:
        digest.update(f"{name}\0{len(contents[name])}\0".encode())
        digest.update(contents[name])
    return digest.hexdigest()
