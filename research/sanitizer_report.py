"""What compute-sanitizer has printed of a case: counts, first lines, and what is wrong with the run itself."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mjolnir.research.sanitizer_cases import ANSWER, PLANTED

TOOLS = ("racecheck", "initcheck", "memcheck", "synccheck")
"""Slowest first, so that none of them ends long after the others."""

SECONDS = 240
"""After which a process is stopped."""

REPORT_LINES, PROBLEM_CHARACTERS = 24, 500
PREFIX = "========="
SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) errors?\s*$", re.MULTILINE)
"""To the line's end: another line says how many of them were not printed."""

RACE_SUMMARY = re.compile(r"RACECHECK SUMMARY: (\d+) hazards? displayed \((\d+) errors?, (\d+) warnings?\)")
QUIET = (
    "",
    "COMPUTE-SANITIZER",
    "ERROR SUMMARY: 0 errors",
    "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)",
)
"""Lines that say nothing."""

Row = dict[str, Any]
Counts = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that has ended.

    Attributes:
        code: its exit code, None where it was stopped.
        text: what it printed.
    """

    code: int | None
    text: str


def row_of(tool: str, name: str, ended: Ended) -> Row:
    """What a run has shown.

    Returns:
        tool, class, planted, errors and hazards (None without a summary; hazards are those of racecheck, warnings among
        them), the case's errors over their bounds, the tool's first lines, and problems in words.
    """
    counts = summary(tool, ended.text)
    outcome, planted = _outcome(ended.text), name in PLANTED.values()
    problems = _planted_problems(tool, counts) if planted else _problems(tool, counts, outcome, ended)
    return {
        "tool": tool,
        "class": name,
        "planted": planted,
        "errors": counts[0],
        "hazards": counts[1],
        "outcome": outcome and {key: error if math.isfinite(error) else None for key, error in outcome.items()},
        "report": report(ended.text),
        "problems": list(problems),
    }


def summary(tool: str, text: str) -> Counts:
    """Errors and hazards, added up over processes; None where there is no summary."""
    if tool == "racecheck":
        races = RACE_SUMMARY.findall(text)
        return (sum(int(e) for _, e, _ in races), sum(int(h) for h, _, _ in races)) if races else (None, None)
    counts = SUMMARY.findall(text)
    return (sum(map(int, counts)), 0) if counts else (None, None)


def report(text: str) -> list[str]:
    """The first lines of what a tool says, its title and clean summaries left out."""
    lines = [line.removeprefix(PREFIX).strip() for line in text.splitlines() if line.startswith(PREFIX)]
    return [line for line in lines if line not in QUIET][:REPORT_LINES]


def _outcome(text: str) -> dict[str, float] | None:
    """What the case itself has said, None where it said nothing."""
    for line in text.splitlines():
        if line.startswith(ANSWER):
            errors: dict[str, float] = json.loads(line.removeprefix(ANSWER))
            return errors
    return None


def _problems(tool: str, counts: Counts, outcome: dict[str, float] | None, ended: Ended) -> Iterator[str]:
    said = [line for line in ended.text.splitlines() if not line.startswith(PREFIX)]
    tail = " | ".join(said)[-PROBLEM_CHARACTERS:]
    if ended.code is None:
        yield f"it did not end within {SECONDS} s: {tail}"
    if counts[0] is None:
        yield f"{tool} gave no summary: {tail}"
    if outcome is None and ended.code is not None:
        yield f"the case gave no output (exit code {ended.code}): {tail}"
    wrong = {name: error for name, error in (outcome or {}).items() if not error <= 1}
    for name, error in wrong.items():
        yield f"{name} is {error:.3g} times its bound"
    if outcome is not None and ended.code and not wrong:
        yield f"the case was right, and its process ended with {ended.code}: {tail}"


def _planted_problems(tool: str, counts: Counts) -> Iterator[str]:
    if not any(counts):
        yield f"{tool} did not find the fault that was planted: its other rows show nothing"


def figures(rows: Sequence[Row]) -> dict[str, int]:
    """All that was reported of our kernels, racecheck's warnings too; and runs that were not as they should be."""
    return {
        "sanitizer_errors": sum(_reported(row) for row in rows if not row["planted"]),
        "sanitizer_problems": sum(bool(row["problems"]) for row in rows),
    }


def _reported(row: Row) -> int:
    """What a tool has counted; a hazard of racecheck is an error or a warning."""
    return max(row["errors"] or 0, row["hazards"] or 0)


def table(rows: Sequence[Row], title: str) -> Iterator[str]:
    """Counts by class and tool, the problems, and the first lines of each report."""
    tools = [tool for tool in TOOLS if any(row["tool"] == tool for row in rows)]
    yield f"{title}: errors, for racecheck hazards (errors and warnings)"
    yield f"{'class':<20}" + "".join(f"{tool:>12}" for tool in tools)
    counts = {(row["class"], row["tool"]): "?" if row["errors"] is None else str(_reported(row)) for row in rows}
    for name in dict.fromkeys(row["class"] for row in rows):
        yield f"{name:<20}" + "".join(f"{counts.get((name, tool), '-'):>12}" for tool in tools)
    for row in rows:
        for problem in row["problems"]:
            yield f"WRONG: {row['tool']} {row['class']}: {problem}"
        if _reported(row) and not row["planted"]:
            yield f"REPORTED: {row['tool']} {row['class']}: {' | '.join(row['report'][:4])}"
