"""Timing for the harness and the benchmarks: replays of a CUDA graph over rotating KV sets, so that L2 is cold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mjolnir.kernel.case_inputs import Inputs
from mjolnir.kernel.formats import DTYPES, FORMATS
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.layouts import allocate, views

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

ROTATION_BYTES = 400_000_000
"""KV sets together are at least this large; the L2 of an H200 holds a seventh of it."""

FILL_BYTES = 1 << 26
"""Bytes of a cache that are filled at once; drawing them takes five times as many."""

WARM_REPLAYS = 3


def rotating_inputs(geometry: Geometry, batch: int, context: int, layout: str, seed: int) -> list[Inputs]:
    """At least two input sets on the GPU, their KV together at least `ROTATION_BYTES`."""
    size = batch * context * geometry.kv_bytes_per_token
    count = max(2, -(-ROTATION_BYTES // size))
    return [random_inputs(geometry, batch, context, layout, seed + number) for number in range(count)]


def random_inputs(
    geometry: Geometry,
    batch: int,
    context: int,
    layout: str,
    seed: int,
    *,
    token_major: bool | None = None,
    device: str = "cuda",
) -> Inputs:
    """Inputs of one shape: normal K, V and Q, permuted pages, scales of one, equal lengths.

    Args:
        geometry: the problem; Q has batch * q_len tokens.
        batch, context: sequences, and tokens of each.
        layout, token_major: how the cache lies, as for `layouts.allocate`.
        seed: of everything random.
        device: where.
    """
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    width = -(-context // geometry.page_size)
    cache = allocate(layout, batch * width, geometry, device, token_major=token_major, fill=None)
    _fill_with_normal_codes(cache, generator)
    k, v = views(cache, geometry, layout)
    shape = batch * geometry.q_len, geometry.heads_q, geometry.head_dim
    q = torch.randn(shape, device=device, generator=generator).to(DTYPES[geometry.dtype])
    table = torch.randperm(batch * width, device=device, generator=generator).to(torch.int32).view(batch, width)
    lengths = torch.full((batch,), context, dtype=torch.int32, device=device)
    one = torch.ones((), device=device)
    return Inputs(q, cache, k, v, table, lengths, one, one, geometry.head_dim**-0.5, geometry, layout)


def _fill_with_normal_codes(cache: torch.Tensor, generator: torch.Generator) -> None:
    """Fill a cache without gaps with e4m3 codes whose values are drawn from 256 quantiles of the normal distribution.

    A random byte and a look-up cost a tenth of a normal number and its conversion.
    """
    import torch

    device = cache.device
    quantiles = torch.special.ndtri((torch.arange(256, device=device, dtype=torch.float64) + 0.5) / 256)
    codes = FORMATS["fp8"].quantise(quantiles)
    flat = cache.as_strided((cache.numel(),), (1,))
    for begin in range(0, flat.numel(), FILL_BYTES):
        part = flat[begin : begin + FILL_BYTES]
        index = torch.randint(256, part.shape, dtype=torch.int32, device=device, generator=generator)
        part.copy_(codes.index_select(0, index))


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
