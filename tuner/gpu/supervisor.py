"""Keeps one device worker going: opens it, asks it, tells how it failed, and replaces it.

Other processes wait behind it with their imports done, so that a replacement costs no more than its inputs. A request
can be sent while the one before it is worked on (`send`), so that the device does not wait for what is done here.
"""

from __future__ import annotations

import math
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
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


MOST_SPARES = 4

SPARE_SECONDS = 1.5
"""Between the starts of two spares, at least."""


class DeviceUnavailable(BenchFailure):
    """The device cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Backend:
    """What the bench runs on; tests put others in its place.

    Attributes:
        card: `module:function` that makes the worker's card.
        options: what it is given.
        environment: variables of the worker.
        worker: `module:function` that makes the worker's handler.
        compiler: `module:function` that makes a compile process's handler.
        tree: where all these processes import from; see `Child`.
        locks: whether the worker takes the GPU's lock; not so where another one of this run holds it.
    """

    card: str = "mjolnir.tuner.gpu.card:create_cuda"
    options: Mapping[str, Any] | None = None
    environment: Mapping[str, str] | None = None
    worker: str = "mjolnir.tuner.gpu.worker:create_warm"
    compiler: str = COMPILER
    tree: Path | None = None
    locks: bool = True


def backend_of(index: int, environ: Mapping[str, str] | None = None) -> Backend:
    """The backend of a CUDA device: its worker sees that one alone, as number 0.

    Args:
        index: as this process counts devices.
        environ: of this process, None = the real one.
    """
    shown = (os.environ if environ is None else environ).get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in shown.split(",")] if shown else []
    name = names[index] if index < len(names) else str(index)
    return Backend(options={"index": 0}, environment={"CUDA_VISIBLE_DEVICES": name})


class Supervisor:
    """One device worker at a time, for one problem after another.

    Args:
        backend: what it runs on.
        limits: seconds by phase, None = `LIMITS`.
        devices: how many workers share the CPUs; spares wait behind each, one for four CPUs, at most `MOST_SPARES`.

    Attributes:
        backend: as it was given.
        opening: seconds that opening took in the last request: "wait" for the process, and "open"; empty where it was
            open.
    """

    def __init__(self, backend: Backend, limits: Mapping[str, float] | None = None, devices: int = 1) -> None:
        self.backend, self._limits = backend, {**LIMITS, **(limits or {})}
        self._most = max(1, min(MOST_SPARES, len(os.sched_getaffinity(0)) // (4 * devices)))
        self._worker: Child | None = None
        self._spares: deque[Child] = deque()
        self._started = -math.inf
        self._problem: Mapping[str, Any] | None = None
        self._processes: dict[str, int] = {}
        self._ahead: Any = None
        self.opening: dict[str, float] = {}

    @property
    def pid(self) -> int | None:
        """Process id of the worker, if there is one."""
        return self._worker.pid if self._worker else None

    def warm(self) -> None:
        """Start a process, if there is none, so that it imports while this side does something else."""
        if self._worker is None and not self._spares:
            self._spares.append(self._start(nice=0))

    def begin(self, problem: Mapping[str, Any], process: tuple[str, int], seed: int) -> None:
        """Have the worker be a fresh process, whose KV comes from `seed`, unless it is that process already.

        Raises:
            ChildError: it did not open.
        """
        name, index = process
        if self._worker is None or self._problem != problem or self._processes.get(name) != index:
            self.drop()
            self._processes = {name: index}
            self.open(problem, seed)

    def open(self, problem: Mapping[str, Any], seed: int | None = None) -> dict[str, Any]:
        """Have the worker take up a problem, in the process that there is or in a new one.

        Args:
            problem: the "open" request, without what each process has of its own.
            seed: of the KV contents, None = one that no other process has.

        Returns:
            The facts of the device.

        Raises:
            ChildError: it did not open.
        """
        self._settle()
        begin = time.perf_counter()
        if self._worker is None:
            self._worker = self._spares.popleft() if self._spares else self._start(nice=0)
        own = {
            "seed": secrets.randbits(48) if seed is None else seed,
            "lock_seconds": self._limits["lock"] if self.backend.locks else None,
        }
        try:
            facts = self._worker.ask({**problem, **own}, self._limits)
        except BaseException:
            self.drop()
            raise
        self._problem = problem
        whole, opened = time.perf_counter() - begin, facts.pop("seconds")
        self.opening = {"wait": round(whole - opened, 3), "open": round(opened, 3)}
        self._have_spares()
        return facts

    def send(self, problem: Mapping[str, Any], request: Mapping[str, Any], ticket: Any) -> None:
        """Send a request behind the one that the worker is at, so that it goes on without waiting for us.

        Only what is asked next under the same ticket gets the answer. Nothing is sent where there is no worker at this
        problem, or another request waits already.
        """
        if self._worker is not None and self._problem == problem and self._ahead is None:
            self._worker.send(request)
            self._ahead = ticket

    def sent(self, ticket: Any) -> bool:
        """Whether a request waits with the worker under this ticket."""
        return ticket is not None and self._ahead == ticket

    def ask(
        self,
        problem: Mapping[str, Any],
        request: Mapping[str, Any],
        *,
        process: tuple[str, int] | None = None,
        ticket: Any = None,
        behind: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """Ask the worker, opening one where there is none at this problem.

        Args:
            problem: the "open" request.
            request: what is asked.
            process: a campaign and the index of its fresh process that this is to be done in; None for any.
            ticket: that the request may have been sent under.
            behind: called when the worker has the request and before its answer, to send what comes next.

        Raises:
            ChildError: it failed; it has been dropped.
        """
        self.opening = {}
        if not self.sent(ticket):
            self._settle()
            self._enter(process)
            if self._worker is None or self._problem != problem:
                self.open(problem)
            assert self._worker is not None
            self._worker.send(request)
        worker, self._ahead = self._worker, None
        assert worker is not None
        try:
            behind()
            answer = worker.receive(self._limits)
        except BaseException:
            self.drop()
            raise
        if answer.get("spoiled"):
            self.drop()
        self._have_spares()
        return answer

    def _enter(self, process: tuple[str, int] | None) -> None:
        """See to it that the worker is the process that is asked for.

        Campaigns that take turns share their fresh processes: what one of them has begun is fresh for another that was
        not in it yet. A worker that failed is replaced within its process's index.
        """
        if process is None:
            self._processes.clear()
            return
        name, index = process
        if self._processes.get(name) == index:
            return
        if not self._processes or name in self._processes:
            self.drop()
            self._processes.clear()
        self._processes[name] = index

    def drop(self) -> None:
        """End the worker; the next request opens another."""
        if self._worker:
            self._worker.leave()
        self._worker = self._problem = self._ahead = None

    def close(self) -> None:
        """End worker and spares. Idempotent."""
        self.drop()
        while self._spares:
            self._spares.pop().close()

    def _settle(self) -> None:
        """Wait for the answer to a request that was sent and that nobody asks for any more."""
        if self._ahead is None:
            return
        self._ahead = None
        assert self._worker is not None
        try:
            spoiled = self._worker.receive(self._limits).get("spoiled")
        except ChildError:
            spoiled = True
        if spoiled:
            self.drop()

    def _start(self, nice: int) -> Child:
        self._started = time.monotonic()
        backend = self.backend
        return Child(backend.worker, environment=backend.environment, nice=nice, tree=backend.tree)

    def _have_spares(self) -> None:
        """Start a spare where one is missing: at once the first, then one at a time, since imports fill a CPU each."""
        due = time.monotonic() - self._started >= SPARE_SECONDS
        if not self._spares or (due and len(self._spares) < self._most):
            self._spares.append(self._start(nice=5))


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
