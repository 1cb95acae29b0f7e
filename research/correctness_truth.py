"""What a right kernel gives for a case of the matrix, made on the CPU by processes beside the one that has the GPU."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from os import sched_getaffinity
from typing import Any, TypeVar

import torch
from torch import Tensor

from mjolnir.kernel.cases import Inputs, make_inputs
from mjolnir.kernel.device import Device
from mjolnir.kernel.emulator import emulate
from mjolnir.kernel.matrix import Probe
from mjolnir.kernel.reference import attention_f64
from mjolnir.kernel.tolerance import excess, lse_excess

T = TypeVar("T")
R = TypeVar("R")

MOST_PROCESSES = 16
AHEAD = 3
"""Truths in the making for each process: enough that none waits, few enough to fit memory."""


@dataclass(frozen=True, slots=True)
class Truth:
    """One case, ready to be judged.

    Attributes:
        inputs: its tensors, on the CPU.
        out, lse: the emulator's, rounded as the engine rounds.
        exact, exact_lse: the f64 reference, kept in f32.
        excess, lse_excess: the emulator's own largest errors over the bound.
    """

    inputs: Inputs
    out: Tensor
    lse: Tensor
    exact: Tensor
    exact_lse: Tensor
    excess: float
    lse_excess: float


def make_truth(probe: Probe, device: Device) -> Truth:
    """Emulate `probe` as planned for `device`, and compute it in f64."""
    case, engine, inputs = probe.case, probe.shape(device), make_inputs(probe.case)
    plan = case.plan(probe.grid(device), engine)
    warps = probe.setting.consumer_warps
    out, lse = emulate(plan=plan, engine=engine, warps=warps, lse=True, **inputs.arguments())
    assert lse is not None
    exact, exact_lse = attention_f64(**inputs.arguments())
    errors = excess(out, exact, case.geometry, inputs.o_mul), lse_excess(lse, exact_lse)
    return Truth(inputs, out, lse, exact.float(), exact_lse.float(), *errors)


def packed_truth(job: tuple[Probe, Device]) -> bytes:
    """The truth of a probe on a device, as bytes."""
    return packed(make_truth(*job))


def packed(truth: Truth) -> bytes:
    """A truth as bytes: views of one cache stay views of one cache."""
    memory = io.BytesIO()
    torch.save(truth, memory)
    return memory.getvalue()


def unpacked(data: bytes) -> Truth:
    """The inverse of `packed`."""
    truth: Truth = torch.load(io.BytesIO(data), weights_only=False)
    return truth


def processes() -> ProcessPoolExecutor:
    """Processes with one thread each, none with a GPU of its own: all cores but the one that this process needs."""
    count = min(MOST_PROCESSES, max(1, len(sched_getaffinity(0)) - 1))
    return ProcessPoolExecutor(count, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,))


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch to one thread here: beside busy processes, threads that wait for one another take far longer."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_order(executor: Executor, work: Callable[[T], R], jobs: Iterable[T]) -> Iterator[R]:
    """Results in the order of the jobs, of which only some are begun before their turn."""
    waiting: deque[Any] = deque()
    for job in jobs:
        waiting.append(executor.submit(work, job))
        if len(waiting) > AHEAD * MOST_PROCESSES:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
