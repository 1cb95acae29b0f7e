"""`mjolnir bench eager`: what one layer costs the host when it is not replayed by a CUDA graph.

Microseconds of host time from call to return, each call by itself; the device is waited for between bursts, so that
no call waits for room in its queue. The device's work is small, as it is no part of the time. Layers take turns, each
with its own KV cache and scales. A row's `tensors` says what a call is given: `kept` the same tensor objects each
time, `new` a new query and output object each time, as a model makes them, `odd` a query and an output that must be
packed. Allocations are those of torch's caching allocator in all calls of the first two kinds together.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter_ns
from typing import Any, Protocol

import torch
from torch import Tensor

from mjolnir.kernel import decode
from mjolnir.kernel.device import Device, current_device
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.runner import Runner
from mjolnir.kernel.sources import kernel_hash
from mjolnir.kernel.timing import random_inputs
from mjolnir.research.answer import Answer, MissingFailure, UsageFailure
from mjolnir.research.bench.replay import written
from mjolnir.research.request import Request
from mjolnir.tuner.gpu.card import package_version

SCHEMA = "mjolnir.bench/1"
DEFAULT_GEOMETRY = "32/8xd128,page=64,q=1"
BATCH, CONTEXT = 8, 256
LAYERS = 32
BURST = 64
"""Calls between two waits; a CUDA stream takes about a thousand launches before it makes the host wait."""

WARM = 4 * LAYERS
"""Calls of each kind before the first that counts."""

ODD = 3
"""Elements by which the rows of an odd tensor are longer than its heads."""


class Host(Protocol):
    """What calls are timed on; tests put another in the place of `CudaHost`."""

    device: Device
    torch_device: str

    def wait(self) -> None:
        """Until the device has done what was enqueued."""

    def allocations(self) -> tuple[int, int]:
        """Allocations made by torch so far, and their bytes."""


class CudaHost:
    """The current CUDA device.

    Raises:
        RuntimeError: there is none, or none that an engine supports.
    """

    def __init__(self) -> None:
        self.device = current_device()
        self.torch_device = "cuda:0"

    def wait(self) -> None:
        """See `Host`."""
        torch.cuda.synchronize()

    def allocations(self) -> tuple[int, int]:
        """See `Host`."""
        stats = torch.cuda.memory_stats()
        return stats.get("allocation.all.allocated", 0), stats.get("allocated_bytes.all.allocated", 0)


Eight = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's tensors, as `Runner.run` takes them."""

    query: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_table: Tensor
    seq_lens: Tensor
    out: Tensor
    k_scale: Tensor
    v_scale: Tensor

    def tensors(self) -> Eight:
        """In the order of `Runner.run`."""
        return (
            self.query, self.k_cache, self.v_cache, self.block_table, self.seq_lens, self.out, self.k_scale,
            self.v_scale,
        )  # fmt: skip


def eager(geometry: str = DEFAULT_GEOMETRY, calls: int = 4000, out: Path | None = None) -> Answer:
    """Time `calls` calls of each kind; rows and figures go to `out` if given.

    Raises:
        UsageFailure: a geometry that does not parse, or too few calls.
        MissingFailure: no GPU.
    """
    problem = Request(geometry=geometry).problem()[0]
    if calls < LAYERS:
        raise UsageFailure(f"--calls {calls}: a median needs at least {LAYERS}, a call for each layer")
    try:
        host = CudaHost()
    except RuntimeError as error:
        raise MissingFailure(f"{error}; the committed figures are in research/bench/results") from error
    return measured(host, problem, calls, out)


def measured(host: Host, geometry: Geometry, calls: int, out: Path | None) -> Answer:
    """Time everything on `host`."""
    runner = Runner(Setting(), geometry, host.device, max_batch=BATCH, capacity=CONTEXT, cuda_device=host.torch_device)
    kept = layers(geometry, host.torch_device)
    odd = [_odd(layer) for layer in kept]
    plan = _row(host, calls, "plan", "kept", lambda layer: lambda: runner.plan(layer.seq_lens), kept)
    times(host, LAYERS, lambda layer: _run(runner, layer), kept)
    before = host.allocations()
    rows = [
        plan,
        _row(host, calls, "run", "kept", lambda layer: _run(runner, layer), kept),
        _row(host, calls, "run", "new", lambda layer: _run(runner, _renewed(layer)), kept),
    ]
    count, size = (now - then for now, then in zip(host.allocations(), before, strict=True))
    rows += [
        _row(host, calls, "run", "odd", lambda layer: _run(runner, layer), odd),
        _row(host, calls, "decode", "kept", _decode, kept),
    ]
    by_name = {(row["call"], row["tensors"]): row for row in rows}
    run = by_name["run", "new"]
    figures = {
        "eager_us_run": run["us"], "eager_us_run_p90": run["us_p90"], "eager_us_run_kept": by_name["run", "kept"]["us"],
        "eager_us_plan": plan["us"], "eager_us_decode": by_name["decode", "kept"]["us"], "eager_allocations": count,
        "eager_allocated_bytes": size,
    }  # fmt: skip
    data = {
        "schema": SCHEMA, "bench": "eager", "figures": figures, "rows": rows, "taken": _taken(host, geometry, calls),
    }  # fmt: skip
    return Answer(data, "\n".join([*_table(rows, count, size), *written(data, out, indent=1)]))


def layers(geometry: Geometry, device: str) -> list[Layer]:
    """`LAYERS` layers of one batch: table and lengths are shared, caches, scales, queries and outputs are not."""
    made = []
    first = random_inputs(geometry, BATCH, CONTEXT, "BHN2D", 0, device=device)
    for number in range(LAYERS):
        item = random_inputs(geometry, BATCH, CONTEXT, "BHN2D", number, device=device)
        k_scale, v_scale = torch.ones(2, device=device).unbind()
        out = torch.empty_like(item.q)
        made.append(Layer(item.q, item.k, item.v, first.block_table, first.seq_lens, out, k_scale, v_scale))
    return made


def _renewed(layer: Layer) -> Layer:
    """The same memory behind new query and output objects."""
    query, out = layer.query.view(layer.query.shape), layer.out.view(layer.out.shape)
    return Layer(
        query, layer.k_cache, layer.v_cache, layer.block_table, layer.seq_lens, out, layer.k_scale, layer.v_scale
    )


def _odd(layer: Layer) -> Layer:
    """Query and output with rows that TMA cannot take."""
    tokens, heads, dim = layer.query.shape
    memory = layer.query.new_zeros(2, tokens, heads * dim + ODD)
    query, out = (part[:, : heads * dim].view(tokens, heads, dim) for part in memory)
    return Layer(
        query, layer.k_cache, layer.v_cache, layer.block_table, layer.seq_lens, out, layer.k_scale, layer.v_scale
    )


Prepare = Callable[[Layer], Callable[[], object]]
"""Makes the call that is timed, outside of its time."""


def _run(runner: Runner, layer: Layer) -> Callable[[], object]:
    tensors = layer.tensors()
    return lambda: runner.run(*tensors)


def _decode(layer: Layer) -> Callable[[], object]:
    return lambda: decode(
        layer.query, (layer.k_cache, layer.v_cache), layer.block_table, layer.seq_lens, k_scale=layer.k_scale,
        v_scale=layer.v_scale, out=layer.out,
    )  # fmt: skip


def _row(host: Host, calls: int, call: str, tensors: str, prepare: Prepare, given: list[Layer]) -> dict[str, Any]:
    micros = times(host, calls, prepare, given)
    tenths = quantiles(micros, n=10)
    return {
        "call": call, "tensors": tensors, "calls": calls, "us": round(median(micros), 2),
        "us_p10": round(tenths[0], 2), "us_p90": round(tenths[-1], 2),
    }  # fmt: skip


def times(host: Host, calls: int, prepare: Prepare, given: list[Layer]) -> list[float]:
    """Microseconds of each of `calls` calls, after `WARM` others; layers take turns."""
    for number in range(WARM):
        prepare(given[number % len(given)])()
    found = []
    with _no_collection():
        for number in range(calls):
            if number % BURST == 0:
                host.wait()
            call = prepare(given[number % len(given)])
            begin = perf_counter_ns()
            call()
            found.append((perf_counter_ns() - begin) / 1e3)
    host.wait()
    return found


@contextmanager
def _no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _taken(host: Host, geometry: Geometry, calls: int) -> dict[str, Any]:
    return {
        "device": host.device.name, "sm_count": host.device.sm_count, "kernel_hash": kernel_hash(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"), "geometry": str(geometry), "batch": BATCH, "context": CONTEXT,
        "layers": LAYERS, "calls": calls,
        "versions": {name: package_version(name) for name in ("torch", "nvidia-cutlass-dsl", "apache-tvm-ffi")},
        "how": " ".join((__doc__ or "").split("\n\n", 1)[1].split()),
    }  # fmt: skip


def _table(rows: list[dict[str, Any]], count: int, size: int) -> list[str]:
    lines = [f"{'call':>8} {'tensors':>8} {'us':>8} {'p10':>8} {'p90':>8}"]
    lines += [
        f"{row['call']:>8} {row['tensors']:>8} {row['us']:8.2f} {row['us_p10']:8.2f} {row['us_p90']:8.2f}"
        for row in rows
    ]
    return [*lines, f"{count} allocations of {size} bytes in the timed calls of run"]
