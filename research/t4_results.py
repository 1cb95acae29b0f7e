"""A campaign's trials as a T4 results file, the format in which auto-tuners share what they measured.

The format is that of "FAIR Sharing of Data in Autotuning Research" (doi 10.1145/3629527.3651429), version 1.0.0 of the
schema that Kernel Tuner publishes. Every trial is in it, those that failed as well: `invalidity` says how, and
`correctness` is 1 only where the output was checked and found right. Times are in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from mjolnir.research.summary import bodies
from mjolnir.tuner.bench import Status
from mjolnir.tuner.workload import Point, Workload

VERSION = "1.0.0"

INVALIDITY: Mapping[Status, str] = {
    Status.MEASURED: "correct",
    Status.INFEASIBLE: "constraints",
    Status.COMPILE_FAILED: "compile",
    Status.COMPILE_TIMEOUT: "timeout",
    Status.CRASHED: "runtime",
    Status.HUNG: "timeout",
    Status.INCORRECT: "correctness",
    Status.NAN: "correctness",
    Status.DIRTY: "runtime",
    Status.RACED: "correct",
    Status.INFRASTRUCTURE: "runtime",
}
"""How each of our statuses is called there; a `status` measurement keeps what is lost in between."""

TIMED = (Status.MEASURED, Status.RACED, Status.DIRTY)
"""Nothing is timed before its output was checked; a dirty trial was, although its times are void."""

PHASES = {"gate": "validation", "measure": "benchmark", "propose": "search_algorithm", "record": "framework"}
"""The phases of a trial under the names of the format; compile time is a fact of the binary."""

NS_PER_MS = 1e6


def results(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The file's content for the records of one tag.

    Raises:
        ValueError: the records hold no campaign.
    """
    campaigns = bodies(records, "campaign")
    if not campaigns:
        raise ValueError("these records hold no campaign: the run ended before its first record")
    points = Workload.from_dict(campaigns[-1]["workload"]).points
    trials = [record for record in records if record["kind"] == "trial"]
    return {"schema_version": VERSION, "results": [_result(record, points) for record in trials]}


def _result(record: Mapping[str, Any], points: Sequence[Point]) -> dict[str, Any]:
    body = record["body"]
    status = Status(body["status"])
    times = [(points[timing["point"]].name, _net(timing)) for timing in body.get("timings") or ()]
    return {
        "timestamp": record["time"],
        "configuration": dict(body["setting"]),
        "objectives": ["ratio"],
        "times": {**_phases(body), "runtimes": [time for _, row in times for time in row]},
        "invalidity": INVALIDITY[status],
        "correctness": 1 if status in TIMED and (times or "source" in body) else 0,
        "measurements": [*_measurements(body), *(_measured(f"time {name}", median(row), "ms") for name, row in times)],
    }


def _measurements(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Ratios to the built-in default, below 1 is faster, and what a reader of a failure needs."""
    found = [_measured("trial", body["trial"]), _measured("epoch", body["epoch"]), _measured("status", body["status"])]
    if body.get("reason"):
        found.append(_measured("reason", body["reason"]))
    if body.get("ratio") is not None:
        found.append(_measured("ratio", body["ratio"]))
    return found + [_measured(f"ratio batch {name}", value) for name, value in (body.get("ratios") or {}).items()]


def _measured(name: str, value: float | str, unit: str = "") -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit}


def _phases(body: Mapping[str, Any]) -> dict[str, float]:
    phases = body.get("phases") or {}
    found = {name: 1e3 * float(phases[phase]) for phase, name in PHASES.items() if phase in phases}
    compiled = (body.get("facts") or {}).get("compile_seconds", phases.get("compile"))
    return found if compiled is None else {"compilation_time": 1e3 * float(compiled), **found}


def _net(timing: Mapping[str, Any]) -> list[float]:
    """The times of decode in ms, one a round: the median of the empty chain is taken off."""
    empty = median(timing["empty"])
    pairs = zip(timing["baseline"], timing["difference"], strict=True)
    return [(baseline + difference - empty) / NS_PER_MS for baseline, difference in pairs]
