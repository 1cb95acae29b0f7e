"""How much of an engine's steps is attention, from the kernels that a profiler saw.

A kernel counts as attention by its place, so that no backend is favoured by what its kernels are called: in each layer
all that runs after the cache write and before the next matrix product. What lies outside of that place counts by name:
the preparation of Q before the cache write, and Mjolnir's plan, once a step. Overlapping kernels (PDL) are counted
once, and not while anything else runs: the time of attention is that by which a step is longer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

CACHE_WRITE = re.compile(r"reshape_and_cache|concat_and_cache|write_kv_cache", re.IGNORECASE)
PRODUCT = re.compile(r"gemm|gemv|nvjet|xmma|cublas|splitk", re.IGNORECASE)
BY_NAME = re.compile(
    r"mjolnir|flash|attention|attn|fmha|kernel_mha|xqa|reduce_segments|mergestate|merge_states|"
    r"fp8_quant|BatchDecode|BatchPrefill|PagedKV",
    re.IGNORECASE,
)
"""Kernels that are attention wherever they lie; what quantises to fp8 is for Q: nothing else of the model is fp8."""

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of a trace that take time on the device."""


@dataclass(frozen=True, slots=True, order=True)
class Kernel:
    """One launch: begin and end in microseconds, and the kernel's name."""

    begin: float
    end: float
    name: str


@dataclass(frozen=True, slots=True)
class Attention:
    """What attention took.

    Attributes:
        steps: how many steps the kernels are of.
        us: microseconds of one step.
        kernels: the same by name of kernel, overlaps and all; the longest first.
        others: of the kernels that are not attention.
    """

    steps: int
    us: float
    kernels: dict[str, float]
    others: dict[str, float]


def read_trace(path: Path) -> list[Kernel]:
    """The device's work in a trace that torch's profiler exported."""
    events: Iterable[dict[str, Any]] = json.loads(path.read_text("utf-8"))["traceEvents"]
    found = [event for event in events if event.get("cat") in ON_DEVICE]
    return sorted(Kernel(event["ts"], event["ts"] + event["dur"], event["name"]) for event in found)


def attention(kernels: Sequence[Kernel], layers: int) -> Attention:
    """Attribute `kernels`, in the order in which they began, of a model with so many attention layers.

    Raises:
        ValueError: they are no whole steps, or no matrix product follows a cache write.
    """
    writes = sum(_is_write(kernel) for kernel in kernels)
    if not writes or writes % layers:
        raise ValueError(f"the trace has {writes} cache writes, which is no multiple of {layers} layers above zero")
    places = _places(kernels)
    closed = sum(before and not inside for before, inside in pairwise(places))
    if closed < writes:
        raise ValueError(f"after {writes - closed} of {writes} cache writes no matrix product was recognised")
    steps = writes // layers
    ours: list[Kernel] = []
    rest: list[Kernel] = []
    for kernel, inside in zip(kernels, places, strict=True):
        is_attention = not _is_write(kernel) and (inside or bool(BY_NAME.search(kernel.name)))
        (ours if is_attention else rest).append(kernel)
    return Attention(steps, alone(ours, rest) / steps, _by_name(ours, steps), _by_name(rest, steps))


def _is_write(kernel: Kernel) -> bool:
    return bool(CACHE_WRITE.search(kernel.name))


def _places(kernels: Sequence[Kernel]) -> list[bool]:
    """Whether each kernel lies where attention does: from a cache write on, up to the next matrix product."""
    inside, found = False, []
    for kernel in kernels:
        if _is_write(kernel):
            inside = True
        elif PRODUCT.search(kernel.name) and not BY_NAME.search(kernel.name):
            inside = False
        found.append(inside)
    return found


def alone(ours: Sequence[Kernel], others: Sequence[Kernel]) -> float:
    """Microseconds in which a kernel of `ours` runs and none of `others`."""
    edges = [(kernel.begin, 1, 0) for kernel in ours] + [(kernel.end, -1, 0) for kernel in ours]
    edges += [(kernel.begin, 0, 1) for kernel in others] + [(kernel.end, 0, -1) for kernel in others]
    total = last = 0.0
    running = beside = 0
    for at, mine, foreign in sorted(edges):
        total += at - last if running and not beside else 0.0
        running, beside, last = running + mine, beside + foreign, at
    return total


def _by_name(kernels: Sequence[Kernel], steps: int) -> dict[str, float]:
    times: dict[str, float] = {}
    for kernel in kernels:
        times[kernel.name] = times.get(kernel.name, 0.0) + (kernel.end - kernel.begin) / steps
    return dict(sorted(times.items(), key=lambda item: -item[1]))
