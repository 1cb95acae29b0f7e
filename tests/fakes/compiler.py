"""A compiler that builds nothing; `l2_prefetch` of the variant says how it goes wrong. Expected outputs are real."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from typing import Any

from mjolnir.tuner.gpu import compiler
from mjolnir.tuner.gpu.child import Handler, Report

HANGS, CRASHES, FAILS, SPILLS = 5, 6, 7, 8


def create() -> Handler:
    return handle


def handle(request: dict[str, Any], report: Report) -> dict[str, Any]:
    if request["op"] in ("expected", "warm"):
        return compiler.handle(request, report)
    report("compile")
    if request["op"] == "plan":
        return {"built": {"key": "plan", "spill_bytes": 0}, "seconds": 0.0}
    variant = compiler.variant_of(request["variant"])
    if variant.l2_prefetch == HANGS:
        time.sleep(600)
    if variant.l2_prefetch == CRASHES:
        print("internal compiler error", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if variant.l2_prefetch == FAILS:
        return {"failed": "compiling for sm_90a failed: DSLRuntimeError", "log": "line 1\nline 2"}
    key = key_of(request["variant"])
    spilled = 16 if variant.l2_prefetch == SPILLS else 0
    facts = {
        "key": key,
        "binary": code_of(key),
        "registers": 100,
        "spill_bytes": spilled,
        "smem_bytes": 1000,
        "seconds": 0.3,
    }
    return {"built": facts, "seconds": 0.3}


def key_of(variant: dict[str, Any]) -> str:
    """The name of a binary."""
    return hashlib.sha256(json.dumps(variant, sort_keys=True).encode()).hexdigest()[:32]


def code_of(key: str) -> str:
    """The digest of a binary's code."""
    return key * 2
