"""Rows and contenders for the tests of the kernel bench: times are made up, results are what the tests want."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from mjolnir.kernel.device import H200
from mjolnir.kernel.geometry import Geometry
from mjolnir.research.bench import rows as files
from mjolnir.research.bench.peers.contender import Entry, Heats, Way
from mjolnir.research.bench.points import Spot, spot, spots
from mjolnir.research.bench.pool import Sets
from mjolnir.research.bench.rows import GRAPH, HEAD_MAJOR, TOKEN_MAJOR

SPREAD = (1.0, 0.99, 1.01, 0.98, 1.02) * 6
"""Samples of a row, over its median."""


def row(
    kernel: str, place: Spot, us: float, *, layout: str | None = None, error: float = 0.01, **more: Any
) -> files.Row:
    """A row with a median of `us`."""
    ours = kernel.startswith("mjolnir")
    timing = more.pop("timing", GRAPH)
    facts = {"setting": {"pdl": 1}, "setting_from": "search", "kernel_hash": "abc"} if ours else {}
    where = layout or (HEAD_MAJOR if ours else "B2NHD")
    return files.make(kernel, place, where, [us * one for one in SPREAD], error, timing, **facts, **more)


def ceiling_us(place: Spot) -> float:
    """The line that a ceiling is held against."""
    return 2.4 + place.kv_bytes / 4.68e6


def whole() -> list[files.Row]:
    """Rows of everything that is planned: ours takes 1.25 ceilings, peers 1.5 (XQA) to 3 of ours."""
    found = []
    for place in spots():
        us = 1.25 * ceiling_us(place)
        found += [
            row("ceiling", place, ceiling_us(place)), row("mjolnir", place, us),
            row("mjolnir", place, 1.02 * us, layout=TOKEN_MAJOR), row("mjolnir-default", place, 1.1 * us),
            row("flashinfer-xqa", place, 1.5 * us), row("flashinfer-tc", place, 1.7 * us, layout="B2HND"),
            row("fa3", place, 1.6 * us), row("vllm-triton", place, 3 * us),
        ]  # fmt: skip
    return [*found, row("mjolnir", spot(Geometry(32, 8), 1, 4096), 7.2, timing="chain")]


class FakeGraph:
    def __init__(self, launch: Callable[[int], None], sets: int) -> None:
        self.launch, self.sets = launch, sets

    def replay(self) -> None:
        for number in range(self.sets):
            self.launch(number)


class FakeClock:
    """Runs a graph once, and reads its time from the launch's attribute `us`; each time is `slower` than the last."""

    def __init__(self, slower: float = 0.0) -> None:
        self.slower = slower
        self.broken = False
        self.tidied = 0
        self.timed: list[int] = []

    def capture(self, launch: Callable[[int], None], sets: int) -> FakeGraph:
        return FakeGraph(launch, sets)

    def time(self, graph: Any, sets: int, repeats: int) -> list[float]:
        self.timed.append(repeats)
        graph.replay()
        us = graph.launch.us * (1 + self.slower * len(self.timed))
        return [us * SPREAD[number % len(SPREAD)] for number in range(repeats)]

    def tidy(self) -> None:
        self.tidied += 1

    def check(self) -> None:
        if self.broken:
            raise RuntimeError("an illegal memory access was encountered")


class FakeContender:
    """A right kernel in several ways, each with a time; an exception in the place of a time is raised."""

    def __init__(
        self, name: str, ways: Mapping[str, float | Exception], layout: str = "B2NHD", gain: float = 1.0
    ) -> None:
        self.name, self.layout, self._ways, self._gain = name, layout, ways, gain

    def choose(self, spot: Spot, heats: Heats) -> None:
        heats.all(Way(self.layout, label, self._prepare(us)) for label, us in self._ways.items())

    def _prepare(self, us: float | Exception) -> Callable[[Sets], Entry]:
        def prepare(sets: Sets) -> Entry:
            if isinstance(us, Exception):
                raise us
            return right(sets, us, self._gain)

        return prepare


def right(sets: Sets, us: float, gain: float = 1.0) -> Entry:
    """What a right kernel gives, times `gain`."""
    from mjolnir.kernel.reference import attention_f32

    outs, one = sets.outs(), torch.ones(())

    def launch(number: int) -> None:
        item, geometry = sets.items[number], sets.spot.geometry
        out, _ = attention_f32(
            item.q, item.k, item.v, item.block_table, item.seq_lens, geometry=geometry,
            scale=geometry.head_dim**-0.5, k_scale=one, v_scale=one,
        )  # fmt: skip
        outs[number].copy_(gain * out)

    launch.us = us  # type: ignore[attr-defined]
    return Entry(launch, lambda: sets.error(outs))


DEVICE = H200
SMALL = Geometry(4, 2, page_size=16)
"""A geometry that the CPU computes in a blink."""
