"""The CUDA card with torch's CUDA replaced: what is enqueued in which order, and what is left behind when it fails."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mjolnir.kernel.device import H200
from mjolnir.kernel.geometry import Geometry
from mjolnir.tuner.gpu import card as card_module
from mjolnir.tuner.gpu.card import CudaCard, create_cuda, gpu_uuid


class FakeCuda:
    """Records what is called; each event reads the clock when the stream is synchronised."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.clock = 0.0

    def stream(self, index: int) -> Any:
        return SimpleNamespace(synchronize=lambda: self.calls.append("stream.synchronize"))

    def event(self, enable_timing: bool) -> Any:
        assert enable_timing
        event = SimpleNamespace(at=0.0)

        def record(stream: object) -> None:
            self.calls.append("record")
            event.at = self.clock

        event.record = record
        event.elapsed_time = lambda end: end.at - event.at
        return event

    def graph(self) -> Any:
        return SimpleNamespace(
            capture_begin=lambda **mode: self.calls.append(f"begin {mode['capture_error_mode']}"),
            capture_end=lambda: self.calls.append("end"),
        )


class Replayed:
    def __init__(self, cuda: FakeCuda, name: str, milliseconds: float) -> None:
        self._cuda, self._name, self._milliseconds = cuda, name, milliseconds

    def replay(self) -> None:
        self._cuda.calls.append(self._name)
        self._cuda.clock += self._milliseconds


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    made = FakeCuda()
    replaced = {
        "Stream": made.stream,
        "Event": made.event,
        "CUDAGraph": made.graph,
        "set_device": lambda index: made.calls.append(f"device {index}"),
        "set_stream": lambda stream: made.calls.append("set_stream"),
        "synchronize": lambda device: made.calls.append("synchronize"),
        "get_device_properties": lambda index: SimpleNamespace(uuid="1234-ab"),
    }
    for name, value in replaced.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch, "zeros", lambda *shape, device: made.calls.append(f"zeros on {device}"))
    monkeypatch.setattr("mjolnir.kernel.device.current_device", lambda index: H200)
    return made


@pytest.fixture
def card(cuda: FakeCuda, tmp_path: Path) -> CudaCard:
    made = create_cuda({"index": 1}, Geometry(32, 8), tmp_path)
    assert isinstance(made, CudaCard)
    return made


def test_everything_happens_on_one_side_stream(cuda: FakeCuda, card: CudaCard) -> None:
    assert cuda.calls == ["device 1", "set_stream", "zeros on cuda:1", "synchronize"]
    assert card.torch_device == "cuda:1"
    assert card.uuid == gpu_uuid(1) == "GPU-1234-ab"
    assert card.device == H200


def test_replays_are_all_enqueued_before_any_is_waited_for(cuda: FakeCuda, card: CudaCard) -> None:
    cuda.calls.clear()
    short, long = Replayed(cuda, "short", 0.25), Replayed(cuda, "long", 1.0000004)
    card.start([short, long, short])
    once = ["record", "short", "record"]
    assert cuda.calls == [*once, "record", "long", "record", *once]
    assert card.finish() == pytest.approx([250_000, 1_000_000.4, 250_000])
    assert cuda.calls[9:] == ["stream.synchronize"]
    card.start([long])
    assert card.finish() == pytest.approx([1_000_000.4])


def test_a_capture_that_fails_leaves_capture_mode(cuda: FakeCuda, card: CudaCard) -> None:
    cuda.calls.clear()
    card.capture(lambda: cuda.calls.append("body"))
    assert cuda.calls == ["stream.synchronize", "begin thread_local", "body", "end"]
    cuda.calls.clear()

    def body() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        card.capture(body)
    assert cuda.calls[-1] == "end"


def test_environment_names_what_times_depend_on(card: CudaCard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mjolnir.kernel.sources.kernel_hash", lambda: "f" * 64)
    environment = card.environment()
    assert environment["kernel_hash"] == "f" * 64
    assert environment["torch"] == torch.__version__
    assert environment["dsl"] == card_module.package_version("nvidia-cutlass-dsl")
    assert set(environment) == {"driver", "torch", "cuda", "dsl", "kernel_hash", "nvml"}
    assert card_module.package_version("no-such-distribution") == "none"
