"""The seam between measuring and the GPU: `CudaCard` is the real one; tests put another in its place.

A card makes decoders (the kernel with its buffers), captures chains into graphs, and times replays of graphs.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.gpu.window import Looker


class Graph(Protocol):
    """A captured sequence of launches."""

    def replay(self) -> None:
        """Enqueue it once."""


class Binary(Protocol):
    """The part of `mjolnir.kernel.cache.Built` that says which binary runs: its name, and the sha256 of its code."""

    @property
    def key(self) -> str: ...

    @property
    def binary(self) -> str: ...


class Decoder(Protocol):
    """The part of `mjolnir.kernel.runner.Runner` that is used here; its docstrings hold."""

    @property
    def built(self) -> Binary: ...

    def plan(self, seq_lens: Tensor, margin: int = 0) -> None: ...

    def use_splits(self, max_splits: int) -> None: ...

    def run(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_table: Tensor,
        seq_lens: Tensor,
        out: Tensor,
        k_scale: Tensor,
        v_scale: Tensor,
        scale: float | None = None,
    ) -> None: ...


class Card(Protocol):
    """One device, owned by this process.

    Attributes:
        torch_device: where tensors are put, such as "cuda:0".
        device: what the kernel knows of it.
        uuid: names the card among all of them; what the lock is on.
    """

    torch_device: str
    device: Device
    uuid: str

    def environment(self) -> dict[str, Any]:
        """Versions of what times depend on."""

    def decoder(self, setting: Setting, *, max_batch: int, capacity: int, fault: str) -> Decoder:
        """A kernel with buffers of its own."""

    def capture(self, body: Callable[[], None]) -> Graph:
        """Capture what `body` enqueues; it must have run once before."""

    def start(self, graphs: Sequence[Graph]) -> None:
        """Enqueue the replays of `graphs` one after another, all before the first ends; nothing is waited for."""

    def finish(self) -> list[float]:
        """Wait for what was started; ns of each replay."""

    def synchronize(self) -> None:
        """Wait for everything enqueued; raises what the device has to say."""

    def release(self) -> None:
        """Give back the memory of what is no longer held."""

    def look(self) -> dict[str, Any]:
        """Clocks, temperature, power, throttling, neighbours (see `window`)."""


class CudaCard:
    """A CUDA device through torch.

    Everything runs on one side stream, on which graphs are captured and replayed as well.

    Args:
        geometry: the problem.
        index: the CUDA device.
        folder: the compile cache that the pool fills.

    Raises:
        RuntimeError: no such device, or an architecture that no engine supports.
    """

    def __init__(self, geometry: Geometry, index: int, folder: Path) -> None:
        from mjolnir.kernel.device import current_device

        self.device = current_device(index)
        self.torch_device = f"cuda:{index}"
        self.uuid = gpu_uuid(index)
        self._geometry, self._folder = geometry, folder
        self._looker = Looker(self.uuid)
        torch.cuda.set_device(index)
        self._stream = torch.cuda.Stream(index)  # type: ignore[no-untyped-call]
        torch.cuda.set_stream(self._stream)
        torch.zeros(1, device=self.torch_device)  # the context is there from here on
        self.synchronize()
        self._looker.settle()
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._started = self._events

    def environment(self) -> dict[str, Any]:
        """Driver, packages and kernel sources."""
        from mjolnir.kernel.sources import kernel_hash

        return {
            "driver": self._looker.driver(),
            "torch": str(torch.__version__),
            "cuda": str(torch.version.cuda),
            "dsl": package_version("nvidia-cutlass-dsl"),
            "kernel_hash": kernel_hash(),
            "nvml": self._looker.trouble or "yes",
        }

    def decoder(self, setting: Setting, *, max_batch: int, capacity: int, fault: str) -> Decoder:
        """A `Runner` on this device."""
        from mjolnir.kernel.runner import Runner

        return Runner(
            setting,
            self._geometry,
            self.device,
            max_batch=max_batch,
            capacity=capacity,
            cuda_device=self.torch_device,
            fault=fault,
            folder=self._folder,
        )

    def capture(self, body: Callable[[], None]) -> Graph:
        """Capture into a CUDA graph; without the collecting and freeing that `torch.cuda.graph` does each time."""
        graph = torch.cuda.CUDAGraph()
        self._stream.synchronize()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            body()
        except BaseException:
            with contextlib.suppress(Exception):  # the stream must leave capture mode; what went wrong is in flight
                graph.capture_end()
            raise
        graph.capture_end()
        return graph

    def start(self, graphs: Sequence[Graph]) -> None:
        """CUDA events around each replay."""
        while len(self._events) < len(graphs):
            pair = (_timing_event(), _timing_event())
            self._events.append(pair)
        self._started = self._events[: len(graphs)]
        for graph, (begin, end) in zip(graphs, self._started, strict=True):
            begin.record(self._stream)
            graph.replay()
            end.record(self._stream)

    def finish(self) -> list[float]:
        """What the events say, read after the last."""
        self._stream.synchronize()
        return [begin.elapsed_time(end) * 1e6 for begin, end in self._started]

    def synchronize(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self.torch_device)

    def release(self) -> None:
        """Graphs and tensors may hold one another, so they are collected first."""
        self.synchronize()
        gc.collect()
        torch.cuda.empty_cache()

    def look(self) -> dict[str, Any]:
        """Through NVML."""
        return self._looker.look()


def _timing_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def create_cuda(options: Mapping[str, Any], geometry: Geometry, folder: Path) -> Card:
    """The real card; `options` names its "index"."""
    return CudaCard(geometry, int(options.get("index", 0)), folder)


def gpu_uuid(index: int) -> str:
    """The UUID as NVML spells it."""
    uuid = str(torch.cuda.get_device_properties(index).uuid)
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def package_version(name: str) -> str:
    """The installed version of a distribution, or "none"."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "none"
