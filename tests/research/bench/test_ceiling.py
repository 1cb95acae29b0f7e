"""The streams compile to what they are, and one that does not read every byte is found out."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from mjolnir.kernel.cache import compile_only
from mjolnir.kernel.cubin import read_resources
from mjolnir.kernel.device import H200
from mjolnir.research.bench.ceiling_kernels import CopyStream, LoadStream
from mjolnir.research.bench.peers import ceiling
from mjolnir.research.bench.peers.ceiling import COPIES, LOADS, Ceiling, count_of, label, word_sum
from mjolnir.research.bench.peers.contender import Heats
from mjolnir.research.bench.points import Spot, spots
from mjolnir.research.bench.pool import Pool
from tests.kernel.engines.machine_code import disassembler
from tests.research.bench.made import SMALL, FakeClock

STREAMS = [LoadStream(*numbers) for numbers in LOADS] + [CopyStream(*numbers) for numbers in COPIES]


def opcodes(stream: Any, folder: Path) -> Counter[str]:
    artifacts = compile_only(stream, stream.arguments(), "sm_90a").artifacts
    assert read_resources(artifacts.CUBIN).frame_bytes == 0
    cubin = folder / "stream.cubin"
    cubin.write_bytes(artifacts.CUBIN)
    text = subprocess.run([disassembler(), "-c", str(cubin)], capture_output=True, text=True, check=True).stdout
    return Counter(re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]+)", text))


def test_loads_are_16_bytes_wide_and_all_there(tmp_path: Path) -> None:
    for unroll, pdl in ((8, False), (4, True)):
        found = opcodes(LoadStream(256, unroll, 2, pdl), tmp_path)
        loads = {name: count for name, count in found.items() if name.startswith("LDG")}
        assert list(loads.values()) == [unroll]
        assert ".128" in next(iter(loads))
        assert ("ACQBULK" in found, "PREEXIT" in found) == (pdl, pdl)


def test_copies_are_bulk_copies_that_are_waited_for(tmp_path: Path) -> None:
    found = opcodes(CopyStream(8192, 4, 2), tmp_path)
    assert found["UBLKCP.S.G"] >= 2
    assert found["SYNCS.ARRIVE.TRANS64"] >= 2
    assert any("TRYWAIT" in name for name in found)
    assert not any(name.startswith("LDG") for name in found)


def test_there_are_eight_of_each_kind_and_all_fit() -> None:
    assert len({label(stream) for stream in STREAMS}) == len(STREAMS)
    for numbers in (LOADS, COPIES):
        assert len(set(numbers)) >= 8
    for chunk, stages, ctas in COPIES:
        assert chunk * stages + 8 * stages + 128 <= H200.smem_per_cta(ctas)
    for threads, _, _ in LOADS:
        assert threads <= 1024


def test_every_stream_reads_every_planned_spot_evenly() -> None:
    for place in spots():
        assert all(place.kv_bytes % stream.granularity == 0 for stream in STREAMS), str(place)
    assert count_of(LoadStream(256, 8, 4), 1 << 20, 132) == 8 * 8
    assert count_of(CopyStream(16384, 4, 2), 1 << 20, 132) == 64
    assert count_of(CopyStream(16384, 4, 2), 1 << 30, 132) == 264


def test_word_sum_is_that_of_unsigned_words() -> None:
    data = torch.tensor([255, 255, 255, 255, 2, 0, 0, 0, 0, 0, 0, 128], dtype=torch.uint8)
    assert word_sum(data) == (2**32 - 1 + 2 + 2**31) % 2**32


PLACE = Spot(SMALL, (16384,) * 4)
"""64 MiB, which every stream divides."""


@pytest.mark.parametrize("missing", [0, 1])
def test_the_fastest_stream_counts_and_reads_everything(monkeypatch: pytest.MonkeyPatch, missing: int) -> None:
    times = {label(stream): 20.0 + number for number, stream in enumerate(reversed(STREAMS))}

    def compiled(stream: Any, arch: str) -> Any:
        def launch(data: torch.Tensor, sums: torch.Tensor, _: Any) -> None:
            total = word_sum(data) if isinstance(stream, LoadStream) else data.numel()
            sums.zero_()
            sums[0] = (total - missing) % 2**32

        launch.name = label(stream)  # type: ignore[attr-defined]
        return launch

    class Clock(FakeClock):
        def capture(self, launch: Any, sets: int) -> Any:
            graph = super().capture(launch, sets)
            (function,) = [cell.cell_contents for cell in launch.__closure__ if hasattr(cell.cell_contents, "name")]
            launch.us = times.get(function.name, 18.0)
            return graph

    monkeypatch.setattr(ceiling, "_compiled", compiled)
    monkeypatch.setattr(ceiling, "_stream", lambda: None)
    pool = Pool("cpu", rotation=1)
    heats = Heats(lambda layout: pool.sets(PLACE, layout), Clock())
    Ceiling(H200).choose(PLACE, heats)
    assert not [told for told in heats.tried.values() if isinstance(told, str)]
    assert len(heats.tried) == len(STREAMS) + 3
    assert sum(name.endswith(" pdl") for name in heats.tried) == 3
    assert heats.best is not None
    assert heats.best.way.label == label(STREAMS[-1]), "with PDL it is faster, and stands aside"
    if missing:
        with pytest.raises(RuntimeError, match="has not read what there is"):
            heats.best.entry.error()
    else:
        assert heats.best.entry.error() == 0.0


def test_a_stream_that_does_not_divide_the_bytes_is_left_out() -> None:
    heats = Heats(lambda layout: pytest.fail("nothing fits"), FakeClock())
    Ceiling(H200).choose(Spot(SMALL, (17,)), heats)
    assert heats.tried == {}
    assert heats.failures() == "there is no way to run it"
