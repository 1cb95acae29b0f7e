# mypy: disallow-untyped-decorators=False, disallow-any-unimported=False, warn-return-any=False
"""A kernel with a race in shared memory, by which racecheck shows that it sees races."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import cast

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, cute
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

from mjolnir.kernel.cache import FUNCTION, compile_only

THREADS = 64


class Racing:
    """Two warps that read each other's words."""

    @cute.jit
    def __call__(self, out: cute.Tensor, stream: cuda.CUstream) -> None:
        """`out` (64,), int32, gets what a thread has found in the other warp's place."""
        self.kernel(out).launch(grid=[1, 1, 1], block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, out: cute.Tensor) -> None:
        thread, _, _ = cute.arch.thread_idx()
        smem = cutlass.utils.SmemAllocator()
        words = smem.allocate_tensor(Int32, cute.make_layout(THREADS), byte_alignment=16)
        words[thread] = thread
        # here a barrier is missing
        out[thread] = words[THREADS - 1 - thread]

    def arguments(self) -> tuple[object, ...]:
        """Symbolic arguments to compile it with."""
        return make_fake_compact_tensor(Int32, (cute.sym_int32(),)), make_fake_stream(use_tvm_ffi_env_stream=True)


def racing(arch: str) -> Callable[..., None]:
    """The kernel as a function of its output, on torch's current stream."""
    made = Racing()
    with tempfile.TemporaryDirectory(prefix="mjolnir-race-") as folder:
        path = Path(folder, "race.o")
        compile_only(made, made.arguments(), arch).export_to_c(str(path), function_name=FUNCTION)
        return cast("Callable[..., None]", getattr(cute.runtime.load_module(str(path), enable_tvm_ffi=True), FUNCTION))
