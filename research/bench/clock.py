"""How the benchmarks time: replays of a CUDA graph, all enqueued before the first has ended.

A graph goes over all sets as often as it takes to hold `LAUNCHES` launches, so that what lies between two replays is
a small part of one. The warm-up replays also keep the device busy while the others are enqueued.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Protocol

import torch

LAUNCHES = 16
"""Launches of one replay, at least."""

WARM = 3
"""Replays before the first that counts."""

Launch = Callable[[int], None]
"""Enqueues one launch on the set of this number."""


class Graph(Protocol):
    """What a clock has captured."""

    def replay(self) -> None:
        """Enqueue it once."""


class Clock(Protocol):
    """Times launches; tests put another in the place of `CudaClock`."""

    def capture(self, launch: Launch, sets: int) -> Graph:
        """A graph of passes over all sets."""

    def time(self, graph: Graph, sets: int, repeats: int) -> list[float]:
        """Microseconds of one launch, one value a replay."""

    def check(self) -> None:
        """Wait for the device; raises what it has to say."""

    def tidy(self) -> None:
        """Give back memory that graphs have left behind."""


class CudaClock:
    """CUDA events around each replay, on the current stream."""

    def __init__(self) -> None:
        self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def capture(self, launch: Launch, sets: int) -> Graph:
        """See `Clock`; without the collecting and freeing that `torch.cuda.graph` does each time."""
        torch.cuda.current_stream().synchronize()
        with torch.cuda.stream(self._side):
            for number in range(sets):  # compiles and loads what a capture does not allow
                launch(number)
            self._side.synchronize()
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for number in range(sets * passes(sets)):
                    launch(number % sets)
            except BaseException:
                with contextlib.suppress(Exception):  # the stream must leave capture mode
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph

    def time(self, graph: Graph, sets: int, repeats: int) -> list[float]:
        """See `Clock`."""
        events = [(_event(), _event()) for _ in range(WARM + repeats)]
        for begin, end in events:
            begin.record()
            graph.replay()
            end.record()
        torch.cuda.synchronize()
        count = sets * passes(sets)
        return [float(begin.elapsed_time(end)) * 1e3 / count for begin, end in events[WARM:]]

    def check(self) -> None:
        """See `Clock`."""
        torch.cuda.synchronize()

    def tidy(self) -> None:
        """See `Clock`."""
        gc.collect()
        torch.cuda.empty_cache()


def passes(sets: int) -> int:
    """How often a graph goes over all sets."""
    return -(-LAUNCHES // sets)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
