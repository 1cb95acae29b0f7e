"""What is seen of the device."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from mjolnir.tuner.gpu import window
from mjolnir.tuner.gpu.window import RECENT, Looker, between, throttle_reasons


def fake_nvml(monkeypatch: pytest.MonkeyPatch, pids: list[int]) -> None:
    def missing(*_: object) -> object:
        raise RuntimeError("not supported")

    module = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlSystemGetDriverVersion=lambda: b"580.65",
        nvmlDeviceGetClockInfo=lambda handle, kind: {0: 1980, 1: 3201}[kind],
        NVML_CLOCK_SM=0,
        NVML_CLOCK_MEM=1,
        nvmlDeviceGetTemperature=missing,
        NVML_TEMPERATURE_GPU=0,
        nvmlDeviceGetPowerUsage=lambda handle: 412_345,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x5,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [SimpleNamespace(pid=pid) for pid in pids],
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)


def test_a_look_leaves_out_what_the_card_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch, [])
    looker = Looker("GPU-1")
    looker.settle()
    assert looker.driver() == "580.65"
    assert looker.look() == {
        "sm_mhz": 1980, "recent_mhz": 1980, "mem_mhz": 3201, "watts": 412.3, "throttle": ["sw_power_cap"],
        "newcomers": 0, "strangers": 0,
    }  # fmt: skip


def test_without_nvml_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    looker = Looker("GPU-1")
    looker.settle()
    assert "NVML is not usable" in looker.look()["nvml"]
    assert looker.driver() == "unknown"
    assert between(looker.look(), looker.look())["dirty"] == ""


def test_ourselves_and_who_was_there_before_are_no_newcomers(monkeypatch: pytest.MonkeyPatch) -> None:
    pids = [7]
    fake_nvml(monkeypatch, pids)
    looker = Looker("GPU-1")
    pids.append(os.getpid())
    looker.settle()
    assert looker.look()["newcomers"] == 0
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        pids.append(other.pid)
        assert (looker.look()["newcomers"], looker.look()["strangers"]) == (1, 1)
        # A process of the same run, such as the one that waits to replace this one, is no stranger.
        monkeypatch.setattr(window, "parent_of", lambda pid: os.getppid())
        assert (looker.look()["newcomers"], looker.look()["strangers"]) == (1, 0)
        other.kill()


def test_foreign_process_ids_are_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []
    fake_nvml(monkeypatch, pids)
    looker = Looker("GPU-1")
    pids.append(4_000_001)  # ourselves, as the host counts
    looker.settle()
    pids.append(4_000_002)
    assert (looker.look()["newcomers"], looker.look()["strangers"]) == (1, 0)


def test_what_makes_a_window_dirty() -> None:
    clean = {"throttle": ["sw_power_cap"], "strangers": 0}
    assert between(clean, clean)["dirty"] == ""
    assert between(clean, {"throttle": ["hw_thermal", "hw_slowdown"]})["dirty"] == (
        "the card throttled (hw_slowdown, hw_thermal)"
    )
    assert between(clean, {"throttle": ["sw_thermal"]})["dirty"] == "the card throttled (sw_thermal)"
    assert between({"throttle": ["hw_power_brake"]}, clean)["dirty"] == "the card throttled (hw_power_brake)"
    assert "other processes" in between({"strangers": 2}, clean)["dirty"]
    assert throttle_reasons(0x1) == []
    assert throttle_reasons(0x88) == ["hw_slowdown", "hw_power_brake"]


def test_a_clock_that_collapsed_makes_a_window_dirty_until_it_is_the_cards_new_level(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_nvml(monkeypatch, [])
    clock = [1980]
    monkeypatch.setattr(sys.modules["pynvml"], "nvmlDeviceGetClockInfo", lambda handle, kind: clock[0])
    looker = Looker("GPU-1")
    looker.settle()

    def dirty() -> str:
        return str(between(looker.look(), looker.look())["dirty"])

    assert dirty() == ""
    clock[0] = 1500
    assert dirty() == ""
    clock[0] = 1400
    assert dirty() == "the SM clock fell to 1400 MHz, of late it was 1980"
    for _ in range(RECENT):
        looker.look()
    assert dirty() == ""
    clock[0] = 900
    idle = looker.look()
    clock[0] = 1400
    assert between(idle, looker.look())["dirty"] == ""  # it had been idle, and is at work again
