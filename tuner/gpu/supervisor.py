"""Keeps one device worker going: opens it, asks it, tells how it failed, and replaces it.

A second process waits behind it with its imports done, so that a replacement costs no more than its inputs.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mjolnir.tuner.bench import BenchFailure, Status
from mjolnir.tuner.gpu.pool import COMPILER
from mjolnir.tuner.gpu.protocol import Child, ChildError, Died, Failed, Hung
from mjolnir.tuner.gpu.worker import KERNEL_PHASES

LIMITS: Mapping[str, float] = {
    "start": 240.0, "open": 120.0, "inputs": 240.0, "gate": 30.0, "baseline": 30.0, "measure": 60.0,
    "lock": 20.0,
}  # fmt: skip
"""Seconds that the worker may take, by phase; a kernel's phases have some hundred times what they usually take.
"lock" is how long it waits for the GPU's lock: a killed predecessor needs a moment to go."""

EXTERNAL_SIGNALS = (-1, -2, -9, -15)
"""Exit statuses of a worker that others ended: SIGHUP, SIGINT, SIGKILL (the system when memory is short), SIGTERM."""

DEVICE_WORDS = ("CUDA error", "CUDA_ERROR", "cudaError", "illegal memory access", "launch failure")

LOST_WORDS = (
    "no CUDA-capable device", "uncorrectable ECC", "busy or unavailable", "uncorrectable NVLink", "device is lost",
    "fallen off the bus", "initialization error", "driver shutting down",
)  # fmt: skip
"""What CUDA says of a device that is gone, held by others or ill: no kernel does that, whatever was running."""


class DeviceUnavailable(BenchFailure):
    """The device cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Backend:
    """What the bench runs on; tests put others in its place.

    Attributes:
        card: `module:function` that makes the worker's card.
        options: what it is given.
        worker: `module:function` that makes the worker's handler.
        compiler: `module:function` that makes a compile process's handler.
        tree: where all these processes import from; see `Child`.
        locks: whether the worker takes the GPU's lock; not so where another one of this run holds it.
    """

    card: str = "mjolnir.tuner.gpu.card:create_cuda"
    options: Mapping[str, Any] | None = None
    worker: str = "mjolnir.tuner.gpu.worker:create_warm"
    compiler: str = COMPILER
    tree: Path | None = None
    locks: bool = True


class Supervisor:
    """One device worker at a time.

    Args:
        backend: what it runs on.
        request: the "open" request, without what every worker has of its own.
        limits: seconds by phase.

    Attributes:
        process: the index that the present worker was opened for, None for any other use.
    """

    def __init__(self, backend: Backend, request: Mapping[str, Any], limits: Mapping[str, float]) -> None:
        self._backend, self._request, self._limits = backend, request, limits
        self._worker: Child | None = None
        self._spare: Child | None = None
        self.process: int | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the worker, if there is one."""
        return self._worker.pid if self._worker else None

    def open(self, process: int | None = None, seed: int | None = None) -> dict[str, Any]:
        """Start a worker, and a spare behind it; returns the device's facts. Without a `seed` its KV is like no other.

        Raises:
            ChildError: it did not open.
        """
        self.drop()
        self._worker = self._spare or Child(self._backend.worker, tree=self._backend.tree)
        self._spare = None
        seconds = self._limits["lock"] if self._backend.locks else None
        own = {"seed": secrets.randbits(48) if seed is None else seed, "lock_seconds": seconds}
        facts = self._worker.ask({**self._request, **own}, self._limits)
        self.process = process
        self._spare = Child(self._backend.worker, nice=5, tree=self._backend.tree)
        return facts

    def ask(self, request: Mapping[str, Any], process: int | None = None) -> dict[str, Any]:
        """Ask the worker, opening one for `process` where there is none.

        Raises:
            ChildError: it failed; it has been dropped.
        """
        try:
            if self._worker is None:
                self.open(process)
            assert self._worker is not None
            answer = self._worker.ask(request, self._limits)
        except BaseException:
            self.drop()
            raise
        if answer.get("spoiled"):
            self.drop()
        return answer

    def drop(self) -> None:
        """End the worker; the next request opens another."""
        if self._worker:
            self._worker.close()
        self._worker, self.process = None, None

    def close(self) -> None:
        """End worker and spare. Idempotent."""
        self.drop()
        if self._spare:
            self._spare.close()
            self._spare = None


def blame(error: ChildError) -> tuple[Status, str]:
    """What a request that got no answer says of the setting: a status, and one line."""
    reason = str(error).strip().split("\n")[0][:500]
    if error.phase not in KERNEL_PHASES:
        return Status.INFRASTRUCTURE, reason
    if isinstance(error, Hung):
        return Status.HUNG, reason
    if isinstance(error, Died):
        external = error.code is None or error.code in EXTERNAL_SIGNALS
        return (Status.INFRASTRUCTURE if external else Status.CRASHED), reason
    if any(word in reason for word in LOST_WORDS):
        return Status.INFRASTRUCTURE, reason
    kernel = isinstance(error, Failed) and (error.kind == "LaunchError" or any(word in reason for word in DEVICE_WORDS))
    return (Status.CRASHED if kernel else Status.INFRASTRUCTURE), reason
