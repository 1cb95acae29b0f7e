"""What campaigns on the same GPUs share, one after another or in turns: the compile pool and the devices' workers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mjolnir.tuner.gpu.pool import CompilePool
    from mjolnir.tuner.gpu.supervisor import Supervisor

COMPILERS = 16
"""Compile processes for each device, at most; there is never more than one a CPU."""


class Hardware:
    """Made when first asked for.

    Args:
        devices: how many GPUs there will be.
    """

    def __init__(self, devices: int = 1) -> None:
        self._devices = devices
        self._pool: CompilePool | None = None
        self._workers: dict[int, Supervisor] = {}

    def pool(self) -> CompilePool:
        """The compile pool."""
        if self._pool is None:
            from mjolnir.kernel.cache import default_folder
            from mjolnir.tuner.gpu.pool import CompilePool

            processes = min(COMPILERS * self._devices, len(os.sched_getaffinity(0)))
            self._pool = CompilePool(default_folder(), processes=processes)
        return self._pool

    def worker(self, index: int) -> Supervisor:
        """The worker of a CUDA device."""
        if index not in self._workers:
            from mjolnir.tuner.gpu.supervisor import Supervisor, backend_of

            self._workers[index] = Supervisor(backend_of(index), devices=self._devices)
        return self._workers[index]

    def close(self) -> None:
        """End all processes. Idempotent."""
        for worker in self._workers.values():
            worker.close()
        if self._pool is not None:
            self._pool.close()
