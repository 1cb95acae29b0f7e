"""A card without a GPU: decoders are plain attention on the CPU, graphs call what they captured, the clock is made up.

What goes wrong is asked for by a knob's value: the card's option "trouble" maps `l2_prefetch`, or "stages N", to a
kind of trouble. Every replay that is timed leaves a line in the file that the option "journal" names. "lost" names a
file: while it is there, the device is not. "looks" are what the first looks see, one by one. What another build of the
kernel does is read from its sources: `# speed 0.9` or `# trouble wrong` in `engines/warp.py`.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mjolnir import kernel
from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.reference import attention_f32
from mjolnir.kernel.variant import Variant
from mjolnir.tuner.gpu.card import Graph
from tests.fakes.compiler import code_of, key_of

DEVICE = Device("sm_90a", "Fake", 4)
EMPTY_NS, CHAIN_NS = 5_000, 20_000
STICKY = "CUDA error: an illegal memory access was encountered"
LOST = "CUDA error: no CUDA-capable device is detected"


def said(word: str, otherwise: str) -> str:
    """What the sources of the kernel that this process runs say of a word."""
    text = (Path(str(kernel.__file__)).parent / "engines" / "warp.py").read_text()
    found = re.search(rf"# {word} (\S+)", text)
    return found[1] if found else otherwise


class FakeGraph:
    def __init__(self, card: FakeCard, body: Callable[[], None]) -> None:
        self._card, self._body = card, body
        self.decoders: list[FakeDecoder] = []

    def replay(self) -> None:
        self.decoders = self._card.traced(self._body)


@dataclass(frozen=True)
class FakeBinary:
    key: str
    binary: str

    @classmethod
    def of(cls, setting: Setting, geometry: Geometry, fault: str = "none") -> FakeBinary:
        """As `tests.fakes.compiler` builds it."""
        key = key_of(Variant.of(setting, geometry, DEVICE, fault=fault).as_dict())
        return cls(key, code_of(key))


class FakeDecoder:
    """Right, unless its setting or its fault says otherwise."""

    def __init__(self, card: FakeCard, setting: Setting, geometry: Geometry, capacity: int, fault: str) -> None:
        self.setting, self.fault = setting, fault
        self.built = FakeBinary.of(setting, geometry, fault)
        self._card, self._geometry, self._capacity = card, geometry, capacity
        self._planned: tuple[int, ...] = ()

    @property
    def trouble(self) -> str:
        return self._card.trouble(self.setting)

    def use_splits(self, max_splits: int) -> None:
        if (max_splits == 1) != (self.setting.max_splits == 1):
            raise ValueError("another variant")
        self.setting = Setting(**{**self.setting.as_dict(), "max_splits": max_splits})

    def plan(self, seq_lens: Tensor, margin: int = 0) -> None:
        self._planned = tuple(n + margin if n else 0 for n in seq_lens.tolist())

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
    ) -> None:
        if any(real > planned for real, planned in zip(seq_lens.tolist(), self._planned, strict=True)):
            raise RuntimeError(f"planned for {self._planned}, run with {seq_lens.tolist()}")
        if block_table.shape[1] * self._geometry.page_size < self._capacity:
            raise ValueError("the table is too narrow")
        self._card.trace.append(self)
        self._misbehave()
        if self.trouble == "scribbles" and self._card.capturing:
            scribble(k_cache, block_table, seq_lens)
        if self.fault == "silent" or (self.trouble == "silent when timed" and self._card.capturing):
            return
        lengths = seq_lens.clamp(min=0)
        if self.fault == "mask":
            lengths = (lengths - 1).clamp(min=0)
        if self.fault == "skip":
            lengths = torch.where(lengths > 64, lengths - 64, lengths)
        right, _ = attention_f32(
            q, k_cache, v_cache, block_table, lengths.int(), geometry=self._geometry,
            scale=scale or self._geometry.head_dim**-0.5, k_scale=k_scale, v_scale=v_scale,
        )  # fmt: skip
        if self.trouble == "wrong":
            right[-1, -1, -1] += 0.5
        if self.trouble == "wrong when timed" and self._card.capturing:
            right *= 1.05
        if self.trouble == "wavers" and self._card.capturing:  # within the bound, and never twice the same
            right *= 1 + 1e-3 * (self._card.launches % 3)
        self._card.launches += self._card.capturing
        out.copy_(right)
        if self.trouble == "nan":
            out[0, 0, 0] = torch.nan

    def _misbehave(self) -> None:
        if self.trouble == "hang":
            time.sleep(600)
        if self.trouble == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.trouble == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.trouble == "sticky":
            self._card.broken = True
        if self.trouble == "refuses":
            raise ValueError("this argument is wrong")


def scribble(k_cache: Tensor, block_table: Tensor, seq_lens: Tensor) -> None:
    """Change a cell that no output depends on: past the end of the first sequence whose last page has room, if any."""
    page_size = k_cache.shape[1]
    roomy = ((n, length) for n, length in enumerate(seq_lens.tolist()) if length % page_size)
    for row, length in itertools.islice(roomy, 1):
        k_cache[int(block_table[row, length // page_size]), length % page_size, 0, 0] += 1


class FakeCard:
    def __init__(self, options: Mapping[str, Any], geometry: Geometry, folder: Path) -> None:
        torch.set_num_threads(1)
        self.torch_device, self.device = "cpu", DEVICE
        self.uuid = str(options.get("uuid", f"GPU-fake-{os.getpid()}"))
        self._options, self._geometry = options, geometry
        self.trace: list[FakeDecoder] = []
        self.capturing = False
        self.broken = False
        self.looks = self.launches = 0
        self._ticks = 0
        self._times: list[float] = []
        self._speed, self._trouble = float(said("speed", "1")), said("trouble", "")
        self._be_there()

    def environment(self) -> dict[str, Any]:
        return {"driver": "580.1", "torch": torch.__version__, "dsl": "none", "kernel_hash": "0" * 64, "nvml": "no"}

    def trouble(self, setting: Setting) -> str:
        troubles = self._options.get("trouble", {})
        return str(
            troubles.get(str(setting.l2_prefetch)) or troubles.get(f"stages {setting.kv_stages}") or self._trouble
        )

    def decoder(self, setting: Setting, *, max_batch: int, capacity: int, fault: str) -> FakeDecoder:
        return FakeDecoder(self, setting, self._geometry, capacity, fault)

    def traced(self, body: Callable[[], None]) -> list[FakeDecoder]:
        """The decoders that `body` launches, in a graph."""
        self.trace, self.capturing = [], True
        try:
            body()
        finally:
            self.capturing = False
            traced, self.trace = self.trace, []
        return traced

    def capture(self, body: Callable[[], None]) -> FakeGraph:
        return FakeGraph(self, body)

    def start(self, graphs: Sequence[Graph]) -> None:
        times = self._times = []
        lines = []
        for graph in graphs:
            assert isinstance(graph, FakeGraph)
            if not graph.decoders:  # what it leaves behind is of no interest here, so one replay will do
                graph.replay()
            self._ticks += 1
            chains = len(graph.decoders)
            setting = graph.decoders[0].setting if chains else None
            lines.append(json.dumps(setting.as_dict() if setting else None) + "\n")
            if chains and graph.decoders[0].trouble == "no clock":
                times.append(math.nan)
                continue
            own = CHAIN_NS + 100 * setting.kv_stages + self._ticks % 7 if setting else 0
            each = EMPTY_NS + self._speed * own
            times.append(each * (chains or int(self._options.get("empty_chains", 2))))
        if self._options.get("journal"):
            with Path(self._options["journal"]).open("a") as file:
                file.writelines(lines)

    def finish(self) -> list[float]:
        self.synchronize()
        return self._times

    def release(self) -> None:
        self.trace.clear()

    def synchronize(self) -> None:
        self._be_there()
        if self.broken:
            raise RuntimeError(STICKY)

    def _be_there(self) -> None:
        if self._options.get("lost") and Path(self._options["lost"]).exists():
            raise RuntimeError(LOST)

    def look(self) -> dict[str, Any]:
        self.looks += 1
        dirty = self.looks <= int(self._options.get("dirty_looks", 0))
        looks = self._options.get("looks", [])
        seen = looks[self.looks - 1] if self.looks <= len(looks) else {}
        return {"sm_mhz": 1980, "recent_mhz": 1980, "throttle": ["hw_thermal"] if dirty else [], **seen}


def create(options: Mapping[str, Any], geometry: Geometry, folder: Path) -> FakeCard:
    return FakeCard(options, geometry, folder)
