"""The inside of a child process: answers requests over a pipe until the pipe closes.

Started by `protocol.Child` as `python -m mjolnir.tuner.gpu.child FD TARGET PARENT NICE`. TARGET names a function
`module:name` that makes the handler; it runs before the first request, so that its imports overlap with waiting.
Messages are JSON both ways. A handler may report its phase, which restarts the parent's clock and says whom to blame.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

Report = Callable[[str], None]
Handler = Callable[[dict[str, Any], Report], dict[str, Any]]

PR_SET_PDEATHSIG = 1

FEW_COLLECTIONS = 200_000
"""Objects between two collections of garbage while a handler imports, which makes many and leaves none behind: a fifth
of a start."""


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, however that happens (Linux only)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call above
        os._exit(1)


def resolve(target: str) -> Any:
    """The object that `module:name` names."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def make(target: str) -> Handler:
    """The handler that `target` makes, with little collecting of garbage on the way, and none of it looked at again."""
    usual = gc.get_threshold()
    gc.set_threshold(FEW_COLLECTIONS)
    try:
        handler: Handler = resolve(target)()
    finally:
        gc.freeze()
        gc.set_threshold(*usual)
    return handler


def serve(connection: Connection, handler: Handler) -> None:
    """Answer requests until the other end closes. An exception of the handler is an answer too.

    Each answer tells under "idle" how many seconds went by between the one before and its own request.
    """
    since = time.perf_counter()

    def send(message: dict[str, Any]) -> None:
        connection.send_bytes(json.dumps(message, allow_nan=False).encode())

    while True:
        try:
            text = connection.recv_bytes()
        except EOFError:
            return
        idle, request = time.perf_counter() - since, json.loads(text)
        try:
            answer = {"answer": handler(request, lambda phase: send({"phase": phase}))}
        except Exception as error:
            detail = traceback.format_exc()
            answer = {"error": {"type": type(error).__name__, "message": str(error), "traceback": detail}}
        send({**answer, "idle": round(idle, 6)})
        since = time.perf_counter()


def main(argv: list[str]) -> None:
    """Entry point: FD TARGET PARENT NICE."""
    descriptor, target, parent, nice = int(argv[0]), argv[1], int(argv[2]), int(argv[3])
    die_with_parent(parent)
    os.nice(nice)
    connection = Connection(descriptor)
    serve(connection, make(target))


if __name__ == "__main__":
    main(sys.argv[1:])
