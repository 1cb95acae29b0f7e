"""Handlers of child processes that go wrong on request; no torch, so that they start at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

from mjolnir.tuner.gpu.child import Handler, Report


def create() -> Handler:
    return handle


def broken() -> Handler:
    print("cannot start", flush=True)
    raise SystemExit(7)


def handle(request: dict[str, Any], report: Report) -> dict[str, Any]:
    op = request["op"]
    if op == "phases":
        for phase in request["phases"]:
            report(phase)
            time.sleep(request["seconds"])
    if op == "sleep":
        report("sleeping")
        time.sleep(600)
    if op == "family":
        return {
            "pid": os.getpid(),
            "child": subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid,
        }
    if op == "signal":
        report("work")
        print("last words", flush=True)
        os.kill(os.getpid(), getattr(signal, request["name"]))
    if op == "raise":
        report("work")
        raise ValueError("no such thing")
    return {"echo": request}
