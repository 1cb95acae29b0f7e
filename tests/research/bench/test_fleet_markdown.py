"""What more devices gained, as the README shows it."""

from __future__ import annotations

from typing import Any

from mjolnir.research.bench.fleet_markdown import page


def run(trials: list[int], offset: float, idle: float | None = 0.025, lost: int = 0) -> dict[str, Any]:
    devices = {
        f"cuda:{n}": {"trials": count, "offset": {"1x4096": -offset * n, "32x4096": 0.0}}
        for n, count in enumerate(trials)
    }
    return {
        "trials": sum(trials), "trials_per_minute": 705.3, "busy_share": 0.9904, "idle_ms": idle, "lost": lost,
        "each_once": not lost,
        "devices": devices,
    }  # fmt: skip


def test_each_run_has_a_line_and_their_comparison_is_told() -> None:
    runs = {"both": run([87, 81], 0.0051, lost=3), "one": run([168], 0.0, idle=None)}
    figures = {"speed_up": 1.971, "same_winners": 5, "buckets": 6}
    lines = page({"runs": runs, "figures": figures}).splitlines()
    assert lines[0].startswith("| campaign | devices |")
    assert lines[0].endswith("| each once |")
    assert len({line.count("|") for line in lines[:4]}) == 1
    assert lines[2] == "| both | 2 | 168 (87 + 81) | 705 | 99.0% | 0.025 ms | 0.5% | 3 | no |"
    assert lines[3] == "| one | 1 | 168 | 705 | 99.0% | - |  | 0 | yes |"
    assert "On 2 devices it tried 1.97 times as many settings a minute" in lines[-1]
    assert "In 5 of 6 buckets" in lines[-1]
