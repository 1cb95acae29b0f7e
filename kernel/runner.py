"""The runner: one setting on one device, with the fixed-address buffers that CUDA graphs need.

`plan` is launched once a step for all layers, `run` once a layer; both work on the current stream, allocate nothing
and never synchronise, so that they can be captured. A graph that was captured with one plan replays with the lengths
of another.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from mjolnir.kernel import arguments, cache
from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.layouts import check_views
from mjolnir.kernel.variant import Variant

if TYPE_CHECKING:
    import torch

MAX_GRID = 1024
MAX_BATCH = 8192


class Runner:
    """Runs one setting.

    Args:
        setting: the knobs.
        geometry: the problem.
        device: facts of the device; the grid has exactly `sm_count * ctas_per_sm` CTAs.
        max_batch: the largest batch that will be planned.
        capacity: tokens that a block-table row can hold, `width * page_size`; longer sequences are clamped to it.
        cuda_device: where the buffers lie.
        lse: whether `run` also writes the log-sum-exp.
        fault: a canary's fault.
        folder: the compile cache, None = the user's.

    Raises:
        ValueError: an infeasible setting, or a batch or grid beyond the limits.
        mjolnir.kernel.cache.CompileError: the variant did not compile, or spills registers.
    """

    def __init__(
        self,
        setting: Setting,
        geometry: Geometry,
        device: Device,
        *,
        max_batch: int,
        capacity: int,
        cuda_device: str = "cuda:0",
        lse: bool = False,
        fault: str = "none",
        folder: Path | None = None,
    ) -> None:
        import torch

        self.variant = Variant.of(setting, geometry, device, lse=lse, fault=fault)
        self.geometry = geometry
        self.grid = device.sm_count * setting.ctas_per_sm
        if self.grid > MAX_GRID or not 1 <= max_batch <= MAX_BATCH:
            raise ValueError(
                f"a grid of {self.grid} (at most {MAX_GRID}) or a batch of {max_batch} (1 to {MAX_BATCH}) is too large"
            )
        self.max_batch, self.capacity, self.max_splits = max_batch, capacity, setting.max_splits
        self.built = cache.build(self.variant, folder)
        if self.built.spill_bytes:
            raise cache.CompileError(f"{setting} spills {self.built.spill_bytes} bytes of registers a thread")
        self._launch = cache.load(self.built)
        self._launch_plan = cache.load(cache.build_plan(device.arch, folder))
        self._device = torch.device(cuda_device)

        def buffer(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=self._device)

        self.cuts = buffer(self.grid + 1, 4, dtype=torch.int32)
        self.tiles = buffer(max_batch, dtype=torch.int32)
        self._partial = buffer(2 * self.grid, geometry.rows, geometry.head_dim)
        self._partial_lse = buffer(2 * self.grid, geometry.rows)
        self._no_lse = buffer(max_batch, geometry.heads_q)
        dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[geometry.dtype]
        self._packed = buffer(2, max_batch, geometry.heads_q, geometry.head_dim, dtype=dtype)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of all buffers.

        The plan takes `16 (grid + 1) + 4 max_batch`, partials take `8 grid rows (head_dim + 1)`, packed Q and O
        `4 max_batch heads_q head_dim`, and a log-sum-exp that nobody asked for `4 max_batch heads_q`.
        """
        buffers = (self.cuts, self.tiles, self._partial, self._partial_lse, self._no_lse, self._packed)
        return sum(item.numel() * item.element_size() for item in buffers)

    def use_splits(self, max_splits: int) -> None:
        """Change the knob that no binary depends on, for the plans to come.

        Raises:
            ValueError: 1 against any other value: with 1 no merge is launched, which is another variant.
        """
        if (max_splits == 1) == self.variant.merge:
            built = "with" if self.variant.merge else "without"
            raise ValueError(f"max_splits = {max_splits} is another variant: this one was built {built} a merge")
        self.max_splits = max_splits

    def plan(self, seq_lens: torch.Tensor, margin: int = 0) -> None:
        """Make the plan for `seq_lens` (batch,), int32 on the device; lengths may grow by `margin` tokens before `run`.

        Raises:
            ValueError, TypeError: the argument is wrong; the message says how.
        """
        arguments.check_int32("seq_lens", seq_lens, (None,))
        batch = seq_lens.shape[0]
        if not 1 <= batch <= self.max_batch:
            raise ValueError(f"seq_lens holds {batch} sequences; this runner plans for 1 to {self.max_batch}")
        self._launch_plan(
            seq_lens,
            self.cuts,
            self.tiles[:batch],
            self.geometry.heads_kv,
            self.max_splits,
            self.capacity,
            margin,
            self._stream(),
        )

    def run(
        self,
        query: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_table: torch.Tensor,
        seq_lens: torch.Tensor,
        out: torch.Tensor,
        k_scale: torch.Tensor,
        v_scale: torch.Tensor,
        scale: float | None = None,
        lse: torch.Tensor | None = None,
    ) -> None:
        """Attend: launches decode and, where lengths could split, the merge.

        Args:
            query, out: (batch, heads_q, head_dim), bf16 or f16, any token stride; `out` may be (batch, heads_q *
            head_dim). k_cache, v_cache: (num_pages, page_size, heads_kv, head_dim) views, e4m3 or bytes, strides
            multiples of 16. block_table: (batch, width) int32; entries beyond a sequence's pages are never followed.
            seq_lens: (batch,) int32. k_scale, v_scale: f32, one value, (heads_kv,) or (batch, heads_kv); `k_scale`
            above zero. scale: softmax scale, above zero; None = `head_dim ** -0.5`. lse: (batch, heads_q) f32,
            natural logarithm; needed exactly when the runner was made with `lse`.

        Raises:
            ValueError, TypeError: an argument is wrong; the message says which and why. Nothing was launched.
        """
        geometry = self.geometry
        batch = seq_lens.shape[0]
        arguments.check_int32("seq_lens", seq_lens, (batch,))
        arguments.check_int32("block_table", block_table, (batch, None))
        if batch > self.max_batch or block_table.shape[1] * geometry.page_size < self.capacity:
            raise ValueError(
                f"a batch of {batch} and a table of {block_table.shape[1]} pages do not fit this runner: "
                f"at most {self.max_batch} sequences, at least {-(-self.capacity // geometry.page_size)} pages a row"
            )
        softmax_scale = geometry.head_dim**-0.5 if scale is None else scale
        if not softmax_scale > 0:
            raise ValueError(f"scale = {softmax_scale} must be above zero")
        if (lse is not None) != self.variant.lse:
            raise ValueError("lse is given exactly when the runner was made with lse=True")
        check_views(k_cache, v_cache, geometry)
        rows = arguments.check_query("query", query, geometry, batch)
        target = arguments.check_query("out", out, geometry, batch)
        if not _aligned(rows):
            rows = self._packed[0, :batch].copy_(rows)
        direct = target if _aligned(target) else self._packed[1, :batch]
        self._launch(
            rows,
            arguments.as_bytes(k_cache),
            arguments.as_bytes(v_cache),
            block_table,
            seq_lens,
            direct,
            self._no_lse[:batch] if lse is None else lse,
            arguments.spread_scale("k_scale", k_scale, batch, geometry.heads_kv),
            arguments.spread_scale("v_scale", v_scale, batch, geometry.heads_kv),
            self.cuts,
            self.tiles[:batch],
            self._partial,
            self._partial_lse,
            softmax_scale * math.log2(math.e),
            self._stream(),
        )
        if direct is not target:
            target.copy_(direct)

    def _stream(self) -> object:
        import cuda.bindings.driver as cuda
        import torch

        return cuda.CUstream(torch.cuda.current_stream(self._device).cuda_stream)


def _aligned(tensor: torch.Tensor) -> bool:
    """Whether pointer and strides are multiples of 16 bytes, so that the kernel works on the tensor itself."""
    unit = arguments.ALIGNMENT // tensor.element_size()
    return tensor.data_ptr() % arguments.ALIGNMENT == 0 and all(step % unit == 0 for step in tensor.stride()[:2])
