"""The runner: one setting on one device, with the fixed-address buffers that CUDA graphs need.

`plan` is launched once a step for all layers, `run` once a layer; both work on the current stream, allocate nothing
once they are warm and never synchronise, so that they can be captured. A graph that was captured with one plan replays
with the lengths of another. Each runner has buffers of its own, so that two of them may work on two streams at once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path

import torch

from mjolnir.kernel import arguments, cache
from mjolnir.kernel.binding import Views
from mjolnir.kernel.call import Calls
from mjolnir.kernel.device import Device
from mjolnir.kernel.formats import DTYPES
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import Variant

MAX_GRID = 1024
MAX_BATCH = 8192
LOG2_E = math.log2(math.e)
_log = logging.getLogger(__name__)


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
        q_mul: whether `run` multiplies the query.
        o_mul: whether `run` multiplies the output.
        engine: an engine by name, None = the best for the geometry.
        fault: a canary's fault.
        folder: the compile cache, None = the user's.

    Attributes:
        engine: the engine, and how it deals out query rows.
        grid: CTAs.

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
        q_mul: bool = False,
        o_mul: bool = False,
        engine: str | None = None,
        fault: str = "none",
        folder: Path | None = None,
    ) -> None:
        self.variant = Variant.of(
            setting, geometry, device, lse=lse, q_mul=q_mul, o_mul=o_mul, engine=engine, fault=fault
        )
        self.engine = self.variant.shape
        self.geometry = geometry
        self.grid = device.sm_count * setting.ctas_per_sm
        if self.grid > MAX_GRID:
            raise ValueError(f"a grid of {self.grid} CTAs is too large: there are {MAX_GRID} at most")
        if not 1 <= max_batch <= MAX_BATCH:
            raise ValueError(f"max_batch = {max_batch} is not between 1 and {MAX_BATCH}")
        self.max_batch, self.capacity, self.max_splits = max_batch, capacity, setting.max_splits
        self._default_scale = geometry.head_dim**-0.5
        self.built = cache.build_runnable(self.variant, setting, folder)
        self._launch = cache.load(self.built)
        self._launch_plan = cache.load(cache.build_plan(device.arch, folder))
        self._device = torch.device(cuda_device)
        if self._device.type == "cuda" and str(self._device) == "cuda":
            self._device = torch.device("cuda", torch.cuda.current_device())
        optional = {"lse": lse, "q_mul": q_mul, "o_mul": o_mul}
        self._calls = Calls(geometry, self._device, max_batch, capacity, optional)
        self._views = Views()
        self._allocate()
        _log.info("%s: grid %d, workspace %d bytes", self.variant, self.grid, self.workspace_bytes)

    def _allocate(self) -> None:
        def buffer(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=self._device)

        geometry, rows = self.geometry, self.engine.rows
        self.cuts = buffer(self.grid + 1, 4, dtype=torch.int32)
        self.tiles = buffer(self.max_batch, dtype=torch.int32)
        self._counters = buffer(4 * self.grid, dtype=torch.int32)
        self._partial = buffer(2 * self.grid, rows, geometry.head_dim)
        self._partial_lse = buffer(2 * self.grid, rows)
        self._no_lse = buffer(self.max_batch * geometry.q_len, geometry.heads_q)
        self._no_mul = buffer(geometry.heads_q, geometry.head_dim)
        self._packed: dict[str, torch.Tensor] = {}
        self._cut: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def workspace_bytes(self) -> int:
        """Bytes of all buffers; with `max_tokens = max_batch * q_len` and `rows` those of the engine's items:

        The plan takes `16 (grid + 1) + 4 max_batch`, counters `16 grid`, partials `8 grid rows (head_dim + 1)`, what
        stands for a log-sum-exp that nobody asked for `4 max_tokens heads_q`, and for multipliers `4 heads_q head_dim`.
        From the first query on that must be packed there are `2 max_tokens heads_q head_dim` more, and as many from the
        first such output on.
        """
        buffers = (self.cuts, self.tiles, self._counters, self._partial, self._partial_lse, self._no_lse, self._no_mul)
        return sum(item.numel() * item.element_size() for item in (*buffers, *self._packed.values()))

    def use_splits(self, max_splits: int) -> None:
        """Change the knob that no binary depends on, for the plans to come.

        Raises:
            ValueError: 1 against any other value: with 1 no merge is launched, which is another variant.
        """
        if (max_splits == 1) == self.variant.merge:
            built = "with" if self.variant.merge else "without"
            raise ValueError(f"max_splits = {max_splits} is another variant: this one was built {built} a merge")
        self.max_splits = max_splits

    def plan(self, seq_lens: torch.Tensor, margin: int = 0, *, capacity: int | None = None) -> None:
        """Make the plan for `seq_lens` (batch,), int32 on the device; lengths may grow by `margin` tokens before `run`.

        A `capacity` beyond the runner's stands for tables that are wider than it asks for.

        Raises:
            ValueError, TypeError: an argument is wrong; the message says how.
        """
        arguments.check_tensor("seq_lens", seq_lens, self._device)
        arguments.check_int32("seq_lens", seq_lens, (None,))
        batch = seq_lens.shape[0]
        if not 1 <= batch <= self.max_batch:
            raise ValueError(f"seq_lens holds {batch} sequences; this runner plans for 1 to {self.max_batch}")
        if margin < 0:
            raise ValueError(f"margin = {margin}: lengths may grow after the plan, not shrink")
        capacity = self.capacity if capacity is None else capacity
        if capacity < self.capacity:
            raise ValueError(f"capacity = {capacity} is below this runner's {self.capacity}")
        self._on_device(
            self._launch_plan,
            self._views.view(seq_lens, arguments.as_rows(seq_lens).needed(seq_lens)),
            self.cuts,
            self._cut_to(batch)[0],
            self._counters,
            self.geometry.heads_kv * self.engine.blocks,
            self.max_splits,
            capacity,
            margin,
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
        q_mul: torch.Tensor | None = None,
        o_mul: torch.Tensor | None = None,
    ) -> None:
        """Attend: launches what one layer takes. A plan for as many sequences must come before it on the stream.

        Args:
            query, out: (tokens, heads_q, head_dim) or (tokens, heads_q * head_dim), bf16 or f16, any token stride;
                tokens is batch * q_len or more, sequence by sequence, and rows beyond are never touched. Where pointer
                and strides are multiples of 16 bytes the kernel works in place, else it takes one copy.
            k_cache, v_cache: (num_pages, page_size, heads_kv, head_dim) views, e4m3 or bytes, strides multiples of 16.
            block_table: (batch, width) int32; entries beyond a sequence's pages are never followed.
            seq_lens: (batch,) int32.
            k_scale, v_scale: f32, one value, (heads_kv,) or (batch, heads_kv); `k_scale` above zero.
            scale: softmax scale, above zero; None = `head_dim ** -0.5`.
            lse: (tokens, heads_q) f32, natural logarithm; needed exactly when the runner was made with `lse`.
            q_mul, o_mul: (heads_q, head_dim) f32, likewise; the query's factor before it is rounded, and the output's.

        Raises:
            ValueError, TypeError: an argument is wrong; the message says which and why. Nothing was launched.
        """
        call = self._calls.recognise(
            query, k_cache, v_cache, block_table, seq_lens, out, k_scale, v_scale, lse, q_mul, o_mul
        )
        softmax_scale = self._default_scale if scale is None else scale
        if not 0 < softmax_scale < math.inf:
            raise ValueError(f"scale = {scale} must be above zero, and finite")
        seen = self._views.view
        rows, target = seen(query, call.query), seen(out, call.out)
        if call.pack_query:
            rows = _copy(self._pack("query", call.tokens), rows)
        written = self._pack("out", call.tokens) if call.pack_out else target
        tiles, no_lse = self._cut_to(call.batch)
        self._on_device(
            self._launch,
            rows,
            seen(k_cache, call.k_cache),
            seen(v_cache, call.v_cache),
            seen(block_table, call.block_table),
            seen(seq_lens, call.seq_lens),
            written,
            no_lse if lse is None else seen(lse, call.lse),
            seen(k_scale, call.k_scale),
            seen(v_scale, call.v_scale),
            self._no_mul if q_mul is None else q_mul,
            self._no_mul if o_mul is None else o_mul,
            self.cuts,
            tiles,
            self._partial,
            self._partial_lse,
            self._counters,
            softmax_scale * LOG2_E,
        )
        if written is not target:
            _copy(target, written)

    def _cut_to(self, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tiles and what stands for a log-sum-exp, cut to the batch."""
        cut = self._cut.get(batch)
        if cut is None:
            cut = self._cut[batch] = self.tiles[:batch], self._no_lse[: batch * self.geometry.q_len]
        return cut

    def _pack(self, name: str, tokens: int) -> torch.Tensor:
        """Where a query or output goes that the kernel cannot work on in place; made when first needed."""
        if name not in self._packed:
            geometry = self.geometry
            shape = self.max_batch * geometry.q_len, geometry.heads_q, geometry.head_dim
            self._packed[name] = self._no_lse.new_zeros(shape, dtype=DTYPES[geometry.dtype])
        return self._packed[name][:tokens]

    def _on_device(self, launch: Callable[..., None], *given: object) -> None:
        """Launch with the buffers' device current; the stream is torch's current one there."""
        if self._device.type != "cuda" or torch.cuda.current_device() == self._device.index:
            launch(*given)
            return
        with torch.cuda.device(self._device):
            launch(*given)


def _copy(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Copy, whether either was made in inference mode or not: outside of it torch writes to no tensor from inside."""
    with torch.inference_mode():
        return target.copy_(source)
