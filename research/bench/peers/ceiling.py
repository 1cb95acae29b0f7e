"""The read-only ceiling: the fastest of several streams over exactly the bytes that a spot's launch reads.

The row is the best stream of plain launches, as the line `2.4 us + bytes / 4.68 TB/s` was taken; streams whose launches
overlap by PDL are timed beside it and told under `us_pdl`. A stream that has not read every byte is an error.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mjolnir.kernel.device import Device
from mjolnir.research.bench.peers.contender import Entry, Heats, Way
from mjolnir.research.bench.points import Spot
from mjolnir.research.bench.pool import Sets

if TYPE_CHECKING:
    from mjolnir.research.bench.ceiling_kernels import CopyStream, LoadStream

LAYOUT = "B2NHD"
"""Whichever: a stream takes the bytes as they lie."""

LOADS = (
    (256, 8, 1), (256, 8, 2), (256, 8, 4), (256, 4, 4), (512, 4, 2), (512, 4, 4), (512, 8, 2), (1024, 4, 1),
    (1024, 4, 2), (128, 8, 4),
)  # fmt: skip
"""Threads, loads in flight of a thread, and blocks of a CTA."""

COPIES = (
    (16384, 4, 2), (16384, 6, 2), (16384, 12, 1), (32768, 6, 1), (8192, 8, 2), (8192, 12, 2), (8192, 8, 3),
    (8192, 6, 4), (4096, 12, 4), (4096, 16, 2),
)  # fmt: skip
"""Bytes of a copy, copies in flight of a CTA, and CTAs per SM."""

OVERLAPPED = 3
"""How many of the fastest streams are timed with PDL as well."""


class Ceiling:
    """Streams of both kinds.

    Args:
        device: decides the grid of the copies.
    """

    name = "ceiling"

    def __init__(self, device: Device) -> None:
        self._device = device

    def choose(self, spot: Spot, heats: Heats) -> None:
        """Every stream that divides the bytes evenly."""
        from mjolnir.research.bench.ceiling_kernels import CopyStream, LoadStream

        streams: list[LoadStream | CopyStream] = [LoadStream(*numbers) for numbers in LOADS]
        streams += [CopyStream(*numbers) for numbers in COPIES]
        times: dict[LoadStream | CopyStream, float] = {}
        for stream in streams:
            if spot.kv_bytes % stream.granularity == 0 and (us := heats.time(self._way(stream))) is not None:
                times[stream] = us
        for stream in sorted(times, key=lambda known: times[known])[:OVERLAPPED]:
            heats.time(self._way(replace(stream, pdl=True)), aside=True)

    def _way(self, stream: LoadStream | CopyStream) -> Way:
        return Way(LAYOUT, label(stream), lambda sets: self._prepare(sets, stream))

    def _prepare(self, sets: Sets, stream: LoadStream | CopyStream) -> Entry:
        launch_stream, size = _compiled(stream, self._device.arch), sets.spot.kv_bytes
        sums = [
            torch.zeros(count_of(stream, size, self._device.sm_count), dtype=torch.uint32, device=item.q.device)
            for item in sets.items
        ]
        data = [item.memory[:size] for item in sets.items]

        def launch(number: int) -> None:
            launch_stream(data[number], sums[number], _stream())

        return Entry(launch, lambda: max(map(_checked(stream), data, sums)))


def label(stream: LoadStream | CopyStream) -> str:
    """`LDG threads=256 unroll=8 blocks=4`, `TMA chunk=16384 stages=4 ctas_per_sm=2`."""
    from mjolnir.research.bench.ceiling_kernels import LoadStream

    if isinstance(stream, LoadStream):
        words = f"LDG threads={stream.threads} unroll={stream.unroll} blocks={stream.blocks}"
    else:
        words = f"TMA chunk={stream.chunk} stages={stream.stages} ctas_per_sm={stream.ctas_per_sm}"
    return words + (" pdl" if stream.pdl else "")


def count_of(stream: LoadStream | CopyStream, size: int, sm_count: int) -> int:
    """Sums that a launch over `size` bytes stores, which also say how large its grid is."""
    from mjolnir.research.bench.ceiling_kernels import LoadStream

    if isinstance(stream, LoadStream):
        return stream.sums(size)
    return min(sm_count * stream.ctas_per_sm, size // stream.chunk)


def _checked(stream: LoadStream | CopyStream) -> Callable[[torch.Tensor, torch.Tensor], float]:
    """A function that is 0.0 where the sums are those of the data.

    It raises RuntimeError where they are not.
    """
    from mjolnir.research.bench.ceiling_kernels import LoadStream

    def check(data: torch.Tensor, sums: torch.Tensor) -> float:
        read = int(sums.view(torch.int32).long().remainder(1 << 32).sum()) % (1 << 32)
        wanted = word_sum(data) if isinstance(stream, LoadStream) else data.numel() % (1 << 32)
        if read != wanted:
            raise RuntimeError(f"{label(stream)} has not read what there is: its sum is {read}, not {wanted}")
        return 0.0

    return check


def word_sum(data: torch.Tensor) -> int:
    """The sum of the 32-bit words of `data` (bytes,), modulo 2^32."""
    return int(data.view(torch.int32).sum(dtype=torch.int64)) % (1 << 32)


def _stream() -> object:
    import cuda.bindings.driver as cuda

    return cuda.CUstream(torch.cuda.current_stream().cuda_stream)


@cache
def _compiled(stream: LoadStream | CopyStream, arch: str) -> Any:
    """The launch function, by way of an object file as for the kernel itself."""
    from cutlass import cute

    from mjolnir.kernel.cache import FUNCTION, compile_only

    path = Path(_folder().name, f"{label(stream).replace(' ', '-')}.o")
    compile_only(stream, stream.arguments(), arch).export_to_c(str(path), function_name=FUNCTION)
    return getattr(cute.runtime.load_module(str(path), enable_tvm_ffi=True), FUNCTION)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Where object files lie as long as this process runs."""
    return tempfile.TemporaryDirectory(prefix="mjolnir-ceiling-")
