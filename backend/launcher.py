"""What plans a step and runs its layers: the kernel's runner on a GPU, the emulator elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from mjolnir.kernel.layouts import allocate, views
from mjolnir.kernel.runner import Runner

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from mjolnir.kernel.device import Device
    from mjolnir.kernel.geometry import Geometry
    from mjolnir.kernel.knobs import Setting


class Launcher(Protocol):
    """One setting of one problem, with buffers of its own; arguments as `mjolnir.kernel.runner.Runner` has them."""

    @property
    def workspace_bytes(self) -> int:
        """Bytes of all buffers."""
        ...

    def plan(self, seq_lens: Tensor, margin: int = 0, *, capacity: int | None = None) -> None:
        """Plan a step for all layers; lengths may grow by `margin` before they run."""
        ...

    def run(
        self,
        query: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_table: Tensor,
        seq_lens: Tensor,
        out: Tensor,
        k_scale: Tensor,
        v_scale: Tensor,
        scale: float | None = None,
    ) -> None:
        """Attend, for one layer."""
        ...


class Maker(Protocol):
    """Makes launchers."""

    def compile(self, geometry: Geometry, setting: Setting, engine: str) -> None:
        """Compile and load what a launcher needs; takes no memory of the GPU's.

        Raises:
            mjolnir.kernel.cache.CompileError: it does not compile.
        """
        ...

    def make(self, geometry: Geometry, setting: Setting, engine: str, max_batch: int) -> Launcher:
        """A launcher that can be captured into a CUDA graph at once."""
        ...


class KernelMaker:
    """Makes runners of the kernel.

    Args:
        device: facts of the GPU.
        cuda_device: where buffers lie.
        folder: the compile cache.
    """

    def __init__(self, device: Device, cuda_device: torch.device, folder: Path | None) -> None:
        self._device, self._cuda_device, self._folder = device, cuda_device, folder

    def compile(self, geometry: Geometry, setting: Setting, engine: str) -> None:
        from mjolnir.kernel import cache
        from mjolnir.kernel.variant import Variant

        variant = Variant.of(setting, geometry, self._device, engine=engine)
        cache.load(cache.build_runnable(variant, setting, self._folder))
        cache.load(cache.build_plan(self._device.arch, self._folder))

    def make(self, geometry: Geometry, setting: Setting, engine: str, max_batch: int) -> Launcher:
        runner = Runner(
            setting, geometry, self._device, max_batch=max_batch, capacity=geometry.page_size,
            cuda_device=str(self._cuda_device), engine=engine, folder=self._folder,
        )  # fmt: skip
        warm(runner, geometry, self._cuda_device)
        return runner


def warm(launcher: Launcher, geometry: Geometry, device: torch.device) -> None:
    """Plan and run one sequence of no tokens: CUDA loads a module at its first launch, which no capture may see."""
    from mjolnir.kernel.formats import DTYPES

    one = torch.zeros(1, dtype=torch.int32, device=device)
    scale = torch.ones((), device=device)
    shape = geometry.q_len, geometry.heads_q, geometry.head_dim
    query = torch.zeros(shape, dtype=DTYPES[geometry.dtype], device=device)
    k, v = views(allocate("BHN2D", 1, geometry, device, fill=0), geometry, "BHN2D")
    launcher.plan(one)
    launcher.run(query, k, v, one.view(1, 1), one, torch.empty_like(query), scale, scale)
