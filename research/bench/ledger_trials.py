"""Trials as large and as incompressible as those of a campaign on a card, of a card that does not exist.

A trial has what a trial on the H200 has: 8 points with 12 raw samples each of the default, of the
difference and of the chain, in nanoseconds with the spread seen there; the evidence of the gate with its seeds; windows
with clocks, temperature and power; digests of plans and binary; ratios with all their digits.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

from mjolnir.kernel.knobs import KNOBS, Setting
from mjolnir.ledger.live import NAME, make_folder
from mjolnir.ledger.record import Record, draft, new_writer
from mjolnir.research.bodies import campaign_body, environment, epoch_body
from mjolnir.research.request import Request
from mjolnir.tuner import synthetic
from mjolnir.tuner.options import Options
from mjolnir.tuner.replay import ReplayBench
from mjolnir.tuner.workload import DECODE8

ROUNDS = 12
SAMPLES = 3 * ROUNDS * len(DECODE8.points)
"""Raw samples of one trial."""

_BASE = (10_700, 17_500, 40_800, 24_600, 40_300, 70_900, 253_600, 134_400)
_EMPTY = (3530, 3600, 3780, 4600, 4850, 5400, 8600, 6650)
"""Nanoseconds of the points of the workload on a H200: the default's, and those of the chain around it."""

_TICK = (1, 1, 1, 1, 1, 1, 16, 8)
"""Nanoseconds that times of these lengths are multiples of, as CUDA events have it."""

_START = datetime(2026, 1, 1, tzinfo=UTC)
_STEP = timedelta(seconds=0.4)


class Trials:
    """Bodies of one campaign: its head, and as many trials as are asked for. The same seed gives the same ones."""

    def __init__(self, seed: int = 0) -> None:
        bench = ReplayBench(synthetic.make(values={"pdl": (0, 1)}))
        self.environment = environment(bench)
        self.head = (
            ("campaign", campaign_body(Request(), bench, Options())),
            ("epoch", epoch_body(bench)),
        )
        self._epoch = self.head[1][1]["epoch"]
        self._random = random.Random(seed)
        grid = product(*(synthetic.GRID.get(knob.name, (knob.default,)) for knob in KNOBS))
        self._settings = [Setting(*values) for values in grid]
        self._random.shuffle(self._settings)
        self._best = dict.fromkeys(DECODE8.buckets, math.inf)

    def body(self, number: int) -> dict[str, Any]:
        """The body of trial `number`, from 1; one in forty crashed."""
        draw, setting = self._random, self._settings[number % len(self._settings)]
        failed = draw.random() < 1 / 40
        window = self._window()
        points = [] if failed else [self._point(point, setting, window) for point in range(len(_BASE))]
        ratios = {
            str(bucket): math.exp(sum(math.log(points[point][1]) for point in places) / len(places))
            for bucket in DECODE8.buckets
            if points and (places := DECODE8.of_bucket(bucket))
        }
        kept = [bucket for bucket in DECODE8.buckets if ratios and ratios[str(bucket)] < self._best[bucket]]
        self._best |= {bucket: ratios[str(bucket)] for bucket in kept}
        return {
            "trial": number,
            "epoch": self._epoch,
            "clock": round(0.4 * number, 6),
            "bucket": draw.choice(DECODE8.buckets),
            "setting": setting.as_dict(),
            "resolved": setting.as_dict(),
            "changed": setting.changed(Setting()),
            "status": "crashed" if failed else "measured",
            "reason": "CUDA error: an illegal memory access was encountered" if failed else "",
            "verdict": "keep" if kept else "discard",
            "kept_buckets": kept,
            "ratio": math.exp(sum(math.log(ratio) for _, ratio in points) / len(points)) if points else None,
            "ratios": ratios,
            "point_ratios": [ratio for _, ratio in points],
            "timings": [timing for timing, _ in points],
            "correctness": {} if failed else self._evidence(),
            "binary": f"{draw.getrandbits(128):032x}",
            "plans": [f"{draw.getrandbits(64):016x}" for _ in _BASE],
            "facts": self._facts(),
            "phases": {name: draw.random() / 5 for name in ("compile", "gate", "measure")}
            | {"propose": round(draw.random() / 50, 6), "record": round(draw.random() / 200, 6)},
            "log": "\n".join(f"frame {line}: {draw.getrandbits(64):x}" for line in range(40)) if failed else "",
            "proposal": {"number": number, "origin": "sampler", "replaced": "", "sampler": "gp"},
        }

    def _point(self, point: int, setting: Setting, window: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
        draw, base, empty, tick = self._random, _BASE[point], _EMPTY[point], _TICK[point]
        effect = sum(0.01 * (value % 5) for value in setting.changed(Setting()).values()) - 0.03

        def samples(middle: float, spread: float) -> list[int]:
            return [tick * round(draw.gauss(middle, spread) / tick) for _ in range(ROUNDS)]

        baseline, difference = samples(base + empty, base * 0.004), samples(base * effect, base * 0.005)
        timing = {
            "point": point, "baseline": baseline, "difference": difference, "empty": samples(empty, empty * 0.012),
            "window": window,
        }  # fmt: skip
        return timing, 1 + sum(difference) / ROUNDS / base

    def _window(self) -> dict[str, Any]:
        quiet = {"mem_mhz": 3201, "newcomers": 0, "sm_mhz": 1980, "strangers": 0, "throttle": []}
        sides = {
            side: quiet | {"celsius": self._random.randint(40, 43), "watts": round(self._random.uniform(160, 240), 1)}
            for side in ("before", "after")
        }
        return {**sides, "dirty": ""}

    def _evidence(self) -> dict[str, Any]:
        draw = self._random

        def part(name: str, seeds: list[int]) -> dict[str, Any]:
            bound, share = draw.random() / 10, draw.random()
            worst = {"bound": bound, "error": bound * share, "excess": share, "name": name, "seed": seeds[-1]}
            return {"checked": len(seeds), "seeds": seeds, "worst": worst}

        return {
            "cases": part("case crowd", list(range(8))),
            "kv_seed": draw.getrandbits(48),
            "points": part("point 64x8192", [draw.getrandbits(50) for _ in _BASE]),
        }

    def _facts(self) -> dict[str, Any]:
        draw = self._random
        return {
            "binary": f"{draw.getrandbits(256):064x}", "compile_seconds": round(draw.uniform(2, 4), 3),
            "plan_ns": sorted(draw.randint(2600, 3200) for _ in _BASE), "registers": 119, "smem_bytes": 67264,
            "spill_bytes": 0,
        }  # fmt: skip


def lines(tag: str, count: int, trials: Trials) -> Iterator[Record]:
    """The records of a campaign with `count` trials, by one writer, in their chain."""
    writer, prev = new_writer(), ""
    bodies: Iterator[tuple[str, Mapping[str, Any]]] = iter(trials.head)
    for seq in range(len(trials.head) + count):
        number = seq - len(trials.head) + 1
        kind, body = next(bodies, None) or ("trial", trials.body(number))
        record = draft(
            kind, tag, writer, body, environment=trials.environment if seq == 0 else None, time=_START + seq * _STEP
        ).at(seq, seq + 1, prev)
        prev = record.sha256
        yield record


def fill(folder: Path, tag: str, count: int) -> None:
    """A ledger's live file with a campaign of `count` trials; an fsync for each would take long and prove nothing."""
    make_folder(folder)
    with (folder / NAME).open("wb") as file:
        file.writelines(record.line + b"\n" for record in lines(tag, count, Trials()))
