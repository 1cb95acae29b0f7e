"""The chain that is timed, as it is served: a writer of Q and of the new KV rows, decode, a reader of O.

A pass is one chain on each KV set of a point, a graph is some passes. The same graph without decode is the
empty chain. A graph holds for one binary, one point and its addresses; `max_splits` only changes the plan in the
decoder's buffer, so settings that differ in nothing else share graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.gpu.card import Card, Decoder, Graph
from mjolnir.tuner.gpu.inputs import KVSet, PointInputs
from mjolnir.tuner.gpu.measure import Policy, passes_of

PLANS = 20
"""Plans of one replay, when the plan is timed by itself."""


class LaunchError(RuntimeError):
    """The kernel could not be made or launched, or the device failed while it ran."""


@contextmanager
def blaming_kernel() -> Iterator[None]:
    """Turn whatever is raised inside into a `LaunchError`."""
    try:
        yield
    except Exception as error:
        raise LaunchError(f"{type(error).__name__}: {error}") from error


class Chains:
    """The points of a workload with their empty chains.

    Args:
        card: the device.
        points: inputs by index of the point; they must have been renewed once.
        policy: how long a replay is.
    """

    def __init__(self, card: Card, points: Mapping[int, PointInputs], policy: Policy) -> None:
        self.card, self.points, self._policy = card, points, policy
        self._empty: dict[int, tuple[int, Graph]] = {}

    def count(self, point: int) -> int:
        """Chains of one replay."""
        return len(self.points[point].sets) * self._passes(point)

    def _passes(self, point: int) -> int:
        inputs = self.points[point]
        return passes_of(inputs.kv_bytes, len(inputs.sets), self._policy)

    def empty(self, point: int) -> Graph:
        """The chain without decode."""
        version = self.points[point].version
        if self._empty.get(point, (0, None))[0] != version:
            self._empty[point] = version, self.capture(point, lambda item: None)
        return self._empty[point][1]

    def capture(self, point: int, launch: Callable[[KVSet], None]) -> Graph:
        """Capture the chain around `launch`, which enqueues decode on one set."""
        inputs = self.points[point]
        passes = self._passes(point)

        def chain(item: KVSet) -> None:
            # Kernels throughout, as in a model: a plain copy would be captured as a memcpy node.
            torch.mul(item.q_source, 1, out=item.q)
            inputs.pool.index_copy_(0, item.words, item.word_source)
            launch(item)
            torch.mul(item.out, 1, out=inputs.sink)

        def body() -> None:
            for _ in range(passes):
                for item in inputs.sets:
                    chain(item)

        chain(inputs.sets[0])  # loads modules, which a capture does not allow
        self.card.synchronize()
        return self.card.capture(body)


class Arm:
    """One binary with its decoder and its graphs.

    Args:
        chains: the points.
        setting: any setting of the binary.
        decoder: the binary with its buffers.
    """

    def __init__(self, chains: Chains, setting: Setting, decoder: Decoder) -> None:
        self._chains = chains
        self._graphs: dict[int, tuple[int, Graph]] = {}
        self.setting = setting
        self._decoder = decoder

    def use(self, setting: Setting) -> None:
        """Take another setting of the same binary."""
        with blaming_kernel():
            self._decoder.use_splits(setting.max_splits)
        self.setting = setting

    def ready(self, point: int) -> Graph:
        """Make the plan for a point, and its graph where there is none yet."""
        inputs = self._chains.points[point]
        with blaming_kernel():
            self._decoder.plan(inputs.seq_lens)
            if self._graphs.get(point, (0, None))[0] != inputs.version:
                self._graphs[point] = (
                    inputs.version,
                    self._chains.capture(point, lambda item: self._launch(inputs, item)),
                )
            return self._graphs[point][1]

    def rehearse(self, point: int) -> None:
        """Launch on every set of a point, outside of any graph."""
        inputs = self._chains.points[point]
        with blaming_kernel():
            self._decoder.plan(inputs.seq_lens)
            for item in inputs.sets:
                self._launch(inputs, item)
            self._chains.card.synchronize()

    def plan_graph(self, point: int) -> Graph:
        """`PLANS` plans of a point in a row."""
        seq_lens = self._chains.points[point].seq_lens

        def body() -> None:
            for _ in range(PLANS):
                self._decoder.plan(seq_lens)

        with blaming_kernel():
            self._decoder.plan(seq_lens)  # loads its module, which a capture does not allow
            self._chains.card.synchronize()
            return self._chains.card.capture(body)

    def _launch(self, inputs: PointInputs, item: KVSet) -> None:
        self._decoder.run(
            item.q,
            item.k,
            item.v,
            item.block_table,
            inputs.seq_lens,
            item.out,
            inputs.k_scale,
            inputs.v_scale,
            inputs.scale,
        )
