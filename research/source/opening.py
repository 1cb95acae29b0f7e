"""Opening the bench of a source experiment: two trees, two caches, one GPU."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mjolnir.research.answer import MissingFailure
from mjolnir.research.benches import Problem, require_gpu

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from mjolnir.research.checkout import Checkout
    from mjolnir.research.source.change import Change
    from mjolnir.tuner.sources import SourceBench

NEEDED = "`autoresearch try` measures on a GPU: a recording holds no times of a kernel that is only now written"


class Opener(Protocol):
    """What makes the bench; tests put another in its place."""

    def require(self, device: str) -> None:
        """See that there is a device.

        Raises:
            MissingFailure: there is none.
        """

    def open(
        self, device: str, problem: Problem, checkout: Checkout, change: Change
    ) -> AbstractContextManager[SourceBench]:
        """The bench; closed with its trees removed when the block ends."""


class GpuOpener:
    """Opens `mjolnir.tuner.gpu.source_bench`."""

    def require(self, device: str) -> None:
        """See `Opener`."""
        require_gpu(device, NEEDED)

    @contextmanager
    def open(self, device: str, problem: Problem, checkout: Checkout, change: Change) -> Iterator[SourceBench]:
        """See `Opener`.

        Raises:
            Failure: the code that runs is not that of the base.
            MissingFailure: the device cannot be used.
        """
        from mjolnir.kernel.cache import default_folder
        from mjolnir.research.source.trees import lay_out, require_same_judge
        from mjolnir.tuner.gpu import DeviceUnavailable
        from mjolnir.tuner.gpu.source_bench import GpuSourceBench, Tree
        from mjolnir.tuner.gpu.supervisor import backend_of

        index = require_gpu(device, NEEDED)
        with tempfile.TemporaryDirectory(prefix="mjolnir-try-") as name:
            folder = Path(name)
            lay_out(checkout, change.base, folder / "base")
            require_same_judge(folder / "base", change.base)
            lay_out(checkout, change.commit, folder / "change")
            caches = default_folder() / "sources"
            base = Tree(folder / "base", caches / change.kernel)
            other = Tree(folder / "change", caches / str(checkout.git.rev_parse(f"{change.commit}:kernel")))
            try:
                bench = GpuSourceBench(*problem, base, other, backend_of(index))
            except (DeviceUnavailable, ImportError) as error:
                raise MissingFailure(f"{error}; `mjolnir doctor` says what is missing") from error
            try:
                yield bench
            finally:
                bench.close()
