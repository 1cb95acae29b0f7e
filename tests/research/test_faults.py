"""What a user sees when disk, device or gate give out: a message, an exit code, and a tag that goes on."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mjolnir import ledger as ledgers
from mjolnir.research import benches
from mjolnir.research.answer import Failure, MissingFailure, UsageFailure
from mjolnir.research.request import Request
from mjolnir.tuner.bench import BenchFailure
from mjolnir.tuner.fleet import FleetBench
from mjolnir.tuner.recording import Recording
from tests.fakes.fleet import SlowBench

MJOLNIR = Path(sys.executable).parent / "mjolnir"


def mjolnir(*arguments: object, limit: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command, its files no larger than `limit` bytes: a disk that is full, as far as it can tell."""

    def full() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    command = [str(MJOLNIR), "autoresearch", "run", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=full)


def trials(folder: Path) -> list[int]:
    with ledgers.open(folder) as ledger:
        return [record.body["trial"] for record in ledger.records("a", "trial")]


def test_a_full_disk_ends_a_run_with_a_message_and_the_tag_goes_on(recording: Path, tmp_path: Path) -> None:
    asked = ("--device", "replay", "--recording", recording, "--ledger", tmp_path, "--tag", "a")
    options = ("--trials", 24, "--minutes", 1000, "--proposer", "random")
    ended = mjolnir(*asked, *options, limit=70_000)
    assert ended.returncode == 1, ended.stderr
    assert "is full" in ended.stderr
    assert "mjolnir autoresearch run --tag a --resume" in ended.stderr
    assert "Traceback" not in ended.stderr
    before = trials(tmp_path)
    assert 3 < len(before) < 24
    resumed = mjolnir(*asked, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert trials(tmp_path) == list(range(1, 25))
    with ledgers.open(tmp_path) as ledger:
        assert ledger.verify().ok


def test_a_device_that_fails_in_a_campaign_is_a_failure_with_words(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from mjolnir.research.cli.app import app

    def broken(*_: Any) -> None:
        raise BenchFailure("the GPU has fallen off the bus")

    monkeypatch.setattr("mjolnir.tuner.coordinator.run", broken)
    arguments = ["autoresearch", "run", "--tag", "a", "--device", "replay", "--recording", str(recording)]
    result = CliRunner().invoke(app, [*arguments, "--ledger", str(tmp_path)])
    assert result.exit_code == 1
    assert "the device failed: the GPU has fallen off the bus; what is recorded is safe" in result.stderr


@pytest.mark.parametrize(
    ("request_", "failure", "words"),
    [
        (Request(device="replay", gate_url="http://127.0.0.1:1/metrics"), UsageFailure, "a replay measures nothing"),
        (Request(device="cuda:0,cuda:0"), UsageFailure, "names a GPU twice"),
        (Request(device="cuda:0,cpu"), UsageFailure, "none of auto, cuda"),
        (Request(device="cuda:1,"), UsageFailure, "'cuda:1,' has nothing between two commas, or beside one"),
        (Request(device="cuda:0,cuda:9"), MissingFailure, "no CUDA device 9"),
        (Request(device="cuda:0", gate_url="file:///etc/passwd"), UsageFailure, "write http://HOST:PORT/metrics"),
        (Request(device="cuda:0", gate_url="http://127.0.0.1:1/metrics"), Failure, "cannot be read"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_cannot_be_asked_for_is_said(
    request_: Request, failure: type[Failure], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(failure, match=words) as caught:
        benches.choose(request_, None, 0)
    assert type(caught.value) is failure


def test_a_long_list_of_devices_starts_no_process_before_they_are_known_to_be_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def started(*_: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("mjolnir.research.hardware.Hardware.worker", started)
    monkeypatch.setattr("mjolnir.research.hardware.Hardware.pool", started)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(MissingFailure, match="no CUDA device 2: there are 2"):
        benches.choose(Request(device=",".join(f"cuda:{index}" for index in range(5000))), None, 0)


def test_several_devices_are_one_bench_with_one_compile_pool(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, Any]] = []

    class Bench(SlowBench):
        def __init__(self, *problem: Any, index: int, pool: Any, worker: Any, gate: Any) -> None:
            super().__init__(Recording.load(recording))
            made.append((index, pool))
            if index == 3:
                raise benches_error("it is held by another run")

    from mjolnir.tuner.gpu import DeviceUnavailable as benches_error

    monkeypatch.setenv("MJOLNIR_ATTN_KERNEL_CACHE", str(tmp_path))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setattr("mjolnir.tuner.gpu.GpuBench", Bench, raising=False)
    bench = benches.choose(Request(device="cuda:0,cuda:2"), None, 0)
    assert isinstance(bench, FleetBench)
    assert sorted(index for index, _ in made) == [0, 2]
    assert made[0][1] is made[1][1] is not None
    assert bench.environment["devices"] == ["cuda:0", "cuda:2"]
    bench.close()
    with pytest.raises(RuntimeError, match="closed"):
        made[0][1].plan("sm_90a")
    with pytest.raises(MissingFailure, match="held by another run"):
        benches.choose(Request(device="cuda:0,cuda:3"), None, 0)
