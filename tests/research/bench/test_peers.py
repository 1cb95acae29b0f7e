"""The peers are called as their packages want it; the packages themselves are stand-ins that record and compute."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from mjolnir.kernel.geometry import Geometry
from mjolnir.research.bench.peers import flashinfer, triton
from mjolnir.research.bench.peers.contender import Heats
from mjolnir.research.bench.peers.fa3 import FlashAttention3
from mjolnir.research.bench.peers.flashinfer import TensorCores, Xqa, causal_mask
from mjolnir.research.bench.peers.triton import UnifiedAttention
from mjolnir.research.bench.points import Spot
from mjolnir.research.bench.pool import Pool
from mjolnir.research.bench.truth import attention
from tests.research.bench.made import SMALL

PLACE = Spot(SMALL, (70, 16, 33))
BLOCKS = Spot(replace(SMALL, q_len=4), (70, 16, 33))
FP8 = torch.float8_e4m3fn


class NoClock:
    """Launches on every set, twice, as a warm-up and a capture do."""

    def capture(self, launch: Callable[[int], None], sets: int) -> Any:
        for number in [*range(sets), *range(sets)]:
            launch(number)
        return None

    def time(self, graph: Any, sets: int, repeats: int) -> list[float]:
        return [1.0] * repeats

    def check(self) -> None:
        pass

    def tidy(self) -> None:
        pass


def race(contender: Any, place: Spot) -> Heats:
    pool = Pool("cpu", rotation=1)
    heats = Heats(lambda layout: pool.sets(place, layout), NoClock())
    contender.choose(place, heats)
    return heats


def package(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> ModuleType:
    """A module of this name, with the packages that it lies in."""
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        path = ".".join(parts[:count])
        if path not in sys.modules:
            module = ModuleType(path)
            module.__path__ = []
            monkeypatch.setitem(sys.modules, path, module)
            if count > 1:
                setattr(sys.modules[".".join(parts[: count - 1])], parts[count - 1], module)
    for member, value in members.items():
        setattr(sys.modules[name], member, value)
    return sys.modules[name]


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, lengths: list[int], geometry: Geometry
) -> torch.Tensor:
    return attention(q, k.view(torch.uint8), v.view(torch.uint8), table, lengths, geometry)


class Wrapper:
    """Both wrappers of FlashInfer: plan, then run."""

    def __init__(self, workspace: torch.Tensor, layout: str, **options: Any) -> None:
        assert workspace.dtype == torch.uint8
        self.layout, self.options = layout, options

    def plan(self, *args: Any, **options: Any) -> None:
        self.decode = "use_tensor_cores" in self.options
        if self.decode:
            assert self.options == {"use_tensor_cores": True}
            assert set(options) == {"q_data_type", "kv_data_type"}
        else:
            self.starts, *args = args  # type: ignore[assignment]
            assert options.pop("causal") is True
        assert options == {"q_data_type": torch.bfloat16, "kv_data_type": FP8}
        ends, self.indices, last, *sizes = args
        assert sizes == [4, 2, 128, 16]
        assert all(part.dtype == torch.int32 for part in (ends, self.indices, last))
        counts = ends.diff()
        self.lengths = ((counts - 1) * 16 + last).tolist()
        self.ends = ends.tolist()

    def run(self, q: torch.Tensor, cache: torch.Tensor, *, out: torch.Tensor) -> None:
        assert cache.dtype == FP8
        assert cache.shape[1:] == ((2, 16, 2, 128) if self.layout == "NHD" else (2, 2, 16, 128))
        parts = cache.unbind(1) if self.layout == "NHD" else [part.transpose(1, 2) for part in cache.unbind(1)]
        table = torch.zeros(len(self.lengths), max(self.lengths), dtype=torch.int32)
        for row, begin, end in zip(table, self.ends, self.ends[1:], strict=False):
            row[: end - begin] = self.indices[begin:end]
        q_len = 1 if self.decode else int(self.starts[1])
        if not self.decode:
            assert self.starts.tolist() == [q_len * number for number in range(len(self.lengths) + 1)]
        geometry = replace(SMALL, q_len=q_len)
        out.copy_(attend(q, parts[0], parts[1], table, self.lengths, geometry))


@pytest.mark.parametrize("place", [PLACE, BLOCKS], ids=str)
def test_flashinfer_wrappers(monkeypatch: pytest.MonkeyPatch, place: Spot) -> None:
    package(
        monkeypatch,
        "flashinfer",
        BatchDecodeWithPagedKVCacheWrapper=Wrapper,
        BatchPrefillWithPagedKVCacheWrapper=Wrapper,
    )
    monkeypatch.setattr(flashinfer, "WORKSPACE_BYTES", 16)
    heats = race(TensorCores(), place)
    assert heats.tried == {"B2NHD": 1.0, "B2HND": 1.0}
    assert heats.best is not None
    assert heats.best.entry.error() < 0.05


@pytest.mark.parametrize("place", [PLACE, BLOCKS], ids=str)
def test_xqa(monkeypatch: pytest.MonkeyPatch, place: Spot) -> None:
    q_len, seen = place.geometry.q_len, []

    def xqa(
        q: Any, k: Any, v: Any, table: Any, lengths: Any, out: Any, work: Any, semaphores: Any, heads: int, page: int,
        *, kv_layout: str, q_scale: float, kv_scale: float, q_seq_len: int = 1, mask: Any = None,
    ) -> None:  # fmt: skip
        block = () if q_len == 1 else (q_len,)
        assert q.shape == out.shape == (3, 1, *block, 4, 128)
        assert (heads, page, kv_layout, q_scale, kv_scale, q_seq_len) == (2, 16, "NHD", 1.0, 1.0, q_len)
        assert k.dtype == v.dtype == FP8
        assert (table.shape, lengths.shape, lengths.dtype) == ((3, 5), (3, 1), torch.uint32)
        assert (work.dtype, semaphores.dtype) == (torch.uint8, torch.uint32)
        assert (mask is None) == (q_len == 1)
        seen.append(work.data_ptr())
        rows = q.reshape(3 * q_len, 4, 128)
        out.copy_(attend(rows, k, v, table, lengths[:, 0].int().tolist(), place.geometry).view(out.shape))

    package(monkeypatch, "flashinfer.xqa", xqa=xqa)
    monkeypatch.setattr(flashinfer, "WORKSPACE_BYTES", 16)
    monkeypatch.setattr(flashinfer, "SEMAPHORES", 4)
    heats = race(Xqa(), place)
    assert heats.tried == {"B2NHD": 1.0, "B2HND": 1.0}
    assert heats.best is not None
    assert heats.best.entry.error() < 0.05
    assert len(set(seen[:2])) == 2, "launches that overlap share no workspace"


def test_xqa_refuses_what_its_mask_cannot_say(monkeypatch: pytest.MonkeyPatch) -> None:
    package(monkeypatch, "flashinfer.xqa", xqa=None)
    heats = race(Xqa(), Spot(replace(SMALL, q_len=4, causal=False), (70,)))
    assert heats.best is None
    assert "non-causal" in heats.failures()


def test_mask_of_xqa() -> None:
    mask = causal_mask(2, 4)
    assert (mask.dtype, mask.shape) == (torch.uint16, (2, 4, 2))
    assert mask.int()[1].tolist() == [[1, 0], [3, 0], [7, 0], [15, 0]]
    assert causal_mask(1, 16).int()[0, -1].tolist() == [0xFFFF, 0]
    assert causal_mask(1, 40).int()[0, 33].tolist() == [0xFFFF, 0xFFFF, 3, 0]


@pytest.mark.parametrize("place", [PLACE, BLOCKS], ids=str)
def test_fa3(monkeypatch: pytest.MonkeyPatch, place: Spot) -> None:
    geometry = place.geometry
    splits: list[int] = []

    def get_scheduler_metadata(**options: Any) -> Any:
        wanted = {
            "batch_size": 3, "max_seqlen_q": geometry.q_len, "max_seqlen_k": 70, "num_heads_q": 4, "num_heads_kv": 2,
            "headdim": 128, "qkv_dtype": FP8, "page_size": 16, "causal": True,
        }  # fmt: skip
        assert {name: options[name] for name in wanted} == wanted
        assert options["cache_seqlens"].tolist() == [70, 16, 33]
        return options["num_splits"]

    def flash_attn_varlen_func(**options: Any) -> None:
        q, starts = options["q"], options["cu_seqlens_q"]
        assert starts.tolist() == [geometry.q_len * number for number in range(4)]
        assert q.dtype == options["k"].dtype == options["v"].dtype == FP8
        assert options["scheduler_metadata"] == options["num_splits"]
        assert (options["fa_version"], options["causal"], options["max_seqlen_k"]) == (3, True, 70)
        assert all(options[f"{name}_descale"].shape == (3, 2) for name in "qkv")
        if options["num_splits"] == 8:
            raise RuntimeError("no such split")
        splits.append(options["num_splits"])
        lengths = options["seqused_k"].tolist()
        rows = attend(q.bfloat16(), options["k"], options["v"], options["block_table"], lengths, geometry)
        options["out"].copy_(rows)

    package(
        monkeypatch, "vllm.vllm_flash_attn.flash_attn_interface", get_scheduler_metadata=get_scheduler_metadata,
        flash_attn_varlen_func=flash_attn_varlen_func,
    )  # fmt: skip
    heats = race(FlashAttention3(), place)
    assert set(splits) == {0, 1, 16, 32}
    assert heats.tried["B2HND num_splits=16"] == 1.0
    assert heats.tried["B2NHD num_splits=8"] == "RuntimeError: no such split"
    assert heats.best is not None
    assert 0.01 < heats.best.entry.error() < 0.5, "Q was rounded to fp8"


@pytest.mark.parametrize("place", [PLACE, BLOCKS], ids=str)
def test_unified_attention(monkeypatch: pytest.MonkeyPatch, place: Spot) -> None:
    geometry, modes = place.geometry, set()

    def unified_attention(**options: Any) -> None:
        q = options["q"]
        modes.add((q.dtype, options["kv_quant_mode"]))
        assert (options["q_descale"] is None) == (q.dtype == torch.bfloat16)
        assert options["seq_threshold_3D"] == 64
        assert options["softmax_segm_output"].shape == (64, 4, 16, 128)
        assert options["softmax_segm_max"].shape == options["softmax_segm_expsum"].shape == (64, 4, 16)
        assert (options["max_seqlen_q"], options["max_seqlen_k"], options["window_size"]) == (
            geometry.q_len,
            70,
            (-1, -1),
        )
        lengths = options["seqused_k"].tolist()
        rows = attend(q.bfloat16(), options["k"], options["v"], options["block_table"], lengths, geometry)
        options["out"].copy_(rows)

    modes_of = {"NONE": 0, "FP8_PER_TENSOR": 1}
    package(monkeypatch, triton.MODULE, unified_attention=unified_attention, KVQuantMode=modes_of)
    heats = race(UnifiedAttention(), place)
    assert modes == {(torch.bfloat16, 0), (torch.bfloat16, 1), (FP8, 1)}
    assert len(heats.tried) == 6
    assert set(heats.tried.values()) == {1.0}
    assert heats.best is not None
    assert heats.best.entry.error() < 0.05


@pytest.mark.parametrize("contender", [TensorCores, Xqa, FlashAttention3, UnifiedAttention])
def test_an_absent_package_is_an_import_error(contender: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("flashinfer", "vllm"):
        if importlib.util.find_spec(name):
            monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError):
        race(contender(), PLACE)
