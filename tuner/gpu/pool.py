"""The compile pool: processes that build ahead of the device.

Each thread of the pool owns one child process and feeds it jobs. A compiler that hangs or dies takes down its own
process alone: the job is answered with that status and a new process takes the next one. Equal jobs share one answer.
What is in the cache is answered without a process: one that is new takes seconds to import the compiler, and a device
would wait for that. For the same reason there are no more threads than have been busy at once.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from mjolnir.kernel import cache
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.variant import Variant
from mjolnir.tuner.bench import Status
from mjolnir.tuner.gpu import expected
from mjolnir.tuner.gpu.compiler import expectation_of, facts_of, variant_of
from mjolnir.tuner.gpu.expectation import Expectation
from mjolnir.tuner.gpu.protocol import KILL_SECONDS, Child, ChildError, Died, Hung

COMPILE_SECONDS = 60.0
"""What one job may take."""

START_SECONDS = 120.0
"""What a new process may take to import the compiler, on a cold disk shared with its siblings."""

WARM = 4
"""Processes that are started before there are jobs; where all is compiled they suffice."""

COMPILER = "mjolnir.tuner.gpu.compiler:create"
_IDLE = 1 << 30


class Need(IntEnum):
    """How soon a job's answer is needed; the more urgent ones are done first."""

    NOW = 0
    SOON = 1
    PERHAPS = 2


@dataclass(frozen=True, slots=True)
class Build:
    """What came of one job.

    Attributes:
        failure: None when it went well, else compile-failed or compile-timeout.
        reason: one line, when it failed.
        facts: of a variant what the cache tells of the binary (key, registers, spill_bytes, ...); of expected outputs
            their `path`.
        seconds: what compiling took; 0 where an object was found.
        log: the end of the compiler's output, when it failed.
    """

    failure: Status | None = None
    reason: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    log: str = ""


CLOSED = Build(Status.COMPILE_FAILED, "the compile pool was closed")


class CompilePool:
    """Compiles in parallel processes.

    Args:
        folder: where objects and expected outputs are kept.
        processes: how many; None = one a CPU that this process may use, at most 16.
        seconds: the limit of one job.
        target: the function that makes a process's handler.
        tree: where its processes import from; see `Child`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        processes: int | None = None,
        seconds: float = COMPILE_SECONDS,
        target: str = COMPILER,
        tree: Path | None = None,
    ) -> None:
        self._folder, self._tree = folder, tree
        self._limits = {"start": START_SECONDS, "compile": seconds}
        self._target = target
        self._lock = threading.Lock()
        self._jobs: dict[str, Future[Build]] = {}
        self._needs: dict[str, int] = {}
        self._queue: queue.PriorityQueue[tuple[int, int, str]] = queue.PriorityQueue()
        self._order = itertools.count()
        self._closed = False
        self._children: set[Child] = set()
        self._most = processes or min(16, len(os.sched_getaffinity(0)))
        self._threads: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)

    def warm(self) -> list[Future[Build]]:
        """Start some processes before there are jobs, so that they import while others do; returns without waiting."""
        jobs = [{"op": "warm", "number": number} for number in range(min(WARM, self._most))]
        return [self._submit(job, Need.NOW) for job in jobs]

    def variant(self, variant: Variant, need: Need = Need.SOON) -> Future[Build]:
        """Build a variant."""
        return self._submit({"op": "build", "variant": variant.as_dict()}, need)

    def plan(self, arch: str) -> Future[Build]:
        """Build the plan kernel of an architecture."""
        return self._submit({"op": "plan", "arch": arch}, Need.NOW)

    def expected(self, geometry: Geometry, expectation: Expectation, need: Need = Need.SOON) -> Future[Build]:
        """Make the expected outputs of the gate's small cases."""
        job = {"op": "expected", "geometry": geometry.as_dict(), "expectation": asdict(expectation)}
        return self._submit(job, need)

    def _submit(self, job: dict[str, Any], need: Need) -> Future[Build]:
        text = json.dumps({**job, "folder": str(self._folder)}, sort_keys=True)
        with self._lock:
            if self._closed:
                raise RuntimeError("the compile pool is closed")
            future = self._jobs.get(text) or self._jobs.setdefault(text, self._begun(job))
            waits = not future.running() and not future.done()
            if waits and need < self._needs.get(text, _IDLE):
                self._needs[text] = need
                self._queue.put((need, next(self._order), text))  # an earlier entry will be passed over
                self._have_a_thread()
        return future

    def _have_a_thread(self) -> None:
        """Begin another thread, unless one is idle or there are enough."""
        if self._idle.acquire(blocking=False) or len(self._threads) == self._most:
            return
        name = f"mjolnir-compile-{len(self._threads)}"
        self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
        self._threads[-1].start()

    def _next(self) -> str:
        """The most urgent job, waited for; empty at the end."""
        try:
            return self._queue.get_nowait()[2]
        except queue.Empty:
            self._idle.release()
            return self._queue.get()[2]

    def _work(self) -> None:
        child: Child | None = None
        while text := self._next():
            future = self._jobs[text]
            with self._lock:
                if self._closed:
                    break
                if future.running() or future.done() or not future.set_running_or_notify_cancel():
                    continue
            try:
                child = child if child and child.alive else self._replace(child)
                future.set_result(self._ask(child, json.loads(text)) if child else CLOSED)
            except Exception as error:
                future.set_exception(error)
        if child:
            child.close()

    def _begun(self, job: Mapping[str, Any]) -> Future[Build]:
        """The future of a job, done if its answer is in the cache."""
        future: Future[Build] = Future()
        if found := self._found(job):
            future.set_result(found)
        return future

    def _found(self, job: Mapping[str, Any]) -> Build | None:
        """The answer to a job, if it is in the cache; what another tree makes has names of its own."""
        if self._tree is not None:
            return None
        with contextlib.suppress(PermissionError):  # a process will say it
            if job["op"] == "build" and (built := cache.find(variant_of(job["variant"]), self._folder)):
                return Build(facts=facts_of(built))
            if job["op"] == "expected":
                path = expected.find(*expectation_of(job), self._folder)
                return Build(facts={"path": str(path)}) if path else None
        return None

    def _replace(self, old: Child | None) -> Child | None:
        """A new process, of this thread alone; None when the pool was closed meanwhile."""
        if old:
            old.close()
        with self._lock:
            if self._closed:
                return None
            if old:
                self._children.discard(old)
            # Compiling must not take the CPU from the thread that feeds the GPU: hence the lower priority.
            child = Child(self._target, environment={"OMP_NUM_THREADS": "1"}, nice=10, tree=self._tree)
            self._children.add(child)
        return child

    def _ask(self, child: Child, job: Mapping[str, Any]) -> Build:
        try:
            answer = child.ask(job, self._limits)
        except Hung as error:
            return Build(Status.COMPILE_TIMEOUT, f"the compiler gave {error}", log=error.log)
        except Died as error:
            return Build(Status.COMPILE_FAILED, f"the compiler died: {error}", log=error.log)
        except ChildError as error:
            return Build(Status.COMPILE_FAILED, str(error), log=error.log)
        if "failed" in answer:
            return Build(
                Status.COMPILE_FAILED, answer["failed"].strip().split("\n")[0][:300], log=answer["log"][-4000:]
            )
        return Build(facts=answer.get("built", answer), seconds=answer.get("seconds", 0.0))

    def close(self) -> None:
        """End all processes; jobs that have not begun are cancelled. Idempotent."""
        with self._lock:
            self._closed = True
            children = list(self._children)
            waiting = [future for future in self._jobs.values() if not future.done() and not future.running()]
        for future in waiting:
            future.cancel()
        for _ in self._threads:
            self._queue.put((_IDLE, 0, ""))
        for child in children:
            child.kill()  # its thread gets the end of the pipe, and closes it
        for thread in self._threads:
            thread.join(KILL_SECONDS)
