# mypy: disallow-untyped-decorators=False, disallow-any-unimported=False, warn-return-any=False
"""The writer of the stress test: a kernel that lets its successor start at once, and writes only some time after.

A successor that reads before `griddepcontrol.wait` would find what was there before. So would one behind a kernel that
starts its successor at its end, but then the window is that of a flush, and a fault would show once in many runs.
"""

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

CTAS, THREADS = 16, 256
DELAY_CYCLES = 3000
"""Cycles (below two microseconds) between the successor's start and the first write."""


class Scatter:
    """Writes words to places."""

    @cute.jit
    def __call__(self, words: cute.Tensor, places: cute.Tensor, target: cute.Tensor, stream: cuda.CUstream) -> None:
        """`target[places[i]] = words[i]`, all int32 with one dimension; places are within the target."""
        self.kernel(words, places, target).launch(grid=[CTAS, 1, 1], block=[THREADS, 1, 1], stream=stream, use_pdl=True)

    @cute.kernel
    def kernel(self, words: cute.Tensor, places: cute.Tensor, target: cute.Tensor) -> None:
        thread, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        cute.arch.griddepcontrol_launch_dependents()
        cute.arch.griddepcontrol_wait()
        begin = cute.arch.clock()
        now = cute.arch.clock()
        # the difference wraps as the counter does
        while now - begin < DELAY_CYCLES:
            now = cute.arch.clock()
        for number in cutlass.range(cta * THREADS + thread, cute.size(words), CTAS * THREADS, unroll=1):
            target[places[number]] = words[number]

    def arguments(self) -> tuple[object, ...]:
        """Symbolic arguments to compile it with."""
        count, size = cute.sym_int32(), cute.sym_int32()
        words, places = (make_fake_compact_tensor(Int32, (count,)) for _ in range(2))
        target = make_fake_compact_tensor(Int32, (size,))
        return words, places, target, make_fake_stream(use_tvm_ffi_env_stream=True)


def early_writer(arch: str) -> Callable[..., None]:
    """The writer as a function of words, places and target (int32, one dimension), on torch's current stream.

    It goes by way of an object file, as the kernel itself does.
    """
    made = Scatter()
    with tempfile.TemporaryDirectory(prefix="mjolnir-writer-") as folder:
        path = Path(folder, "writer.o")
        compile_only(made, made.arguments(), arch).export_to_c(str(path), function_name=FUNCTION)
        return cast("Callable[..., None]", getattr(cute.runtime.load_module(str(path), enable_tvm_ffi=True), FUNCTION))
