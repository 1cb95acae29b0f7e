"""Timing for the harness and the benchmarks: replays of a CUDA graph over rotating KV sets, so that L2 is cold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mjolnir.kernel.cases import Inputs
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.layouts import allocate, views

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

ROTATION_BYTES = 400_000_000
"""KV sets together are at least this large; the L2 of an H200 holds a seventh of it."""

WARM_REPLAYS = 3


def rotating_inputs(geometry: Geometry, batch: int, context: int, layout: str, seed: int) -> list[Inputs]:
    """At least two input sets on the GPU, their KV together at least `ROTATION_BYTES`."""
    size = batch * context * geometry.kv_bytes_per_token
    count = max(2, -(-ROTATION_BYTES // size))
    return [random_inputs(geometry, batch, context, layout, seed + number) for number in range(count)]


def random_inputs(geometry: Geometry, batch: int, context: int, layout: str, seed: int) -> Inputs:
    """Inputs of one shape on the GPU: normal K, V and Q, permuted pages, scales of one, equal lengths."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(seed)
    width = -(-context // geometry.page_size)
    cache = allocate(layout, batch * width, geometry, "cuda")
    k, v = views(cache, geometry, layout)
    for page in range(0, batch * width, 1024):
        for view in (k[page : page + 1024], v[page : page + 1024]):
            values = torch.randn(view.shape, device="cuda", generator=generator)
            view.copy_(values.to(torch.float8_e4m3fn).view(torch.uint8))
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[geometry.dtype]
    q = torch.randn(batch, geometry.heads_q, geometry.head_dim, device="cuda", generator=generator).to(dtype)
    table = torch.randperm(batch * width, device="cuda", generator=generator).to(torch.int32).view(batch, width)
    lengths = torch.full((batch,), context, dtype=torch.int32, device="cuda")
    one = torch.ones((), device="cuda")
    return Inputs(q, cache, k, v, table, lengths, one, one, geometry.head_dim**-0.5, geometry, layout)


def replay_micros(launch: Callable[[int], None], sets: int, repeats: int) -> list[float]:
    """Microseconds of one launch, one value a graph replay of `launch(0)` to `launch(sets - 1)`."""
    import torch

    graph = capture(launch, sets)
    samples = []
    for _ in range(WARM_REPLAYS + repeats):
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(float(begin.elapsed_time(end)) * 1e3 / sets)
    return samples[WARM_REPLAYS:]


def capture(launch: Callable[[int], None], sets: int) -> torch.cuda.CUDAGraph:
    """A graph of one launch on each set; each is launched once before, outside of the capture."""
    import torch

    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for number in range(sets):
            launch(number)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(sets):
            launch(number)
    return graph
