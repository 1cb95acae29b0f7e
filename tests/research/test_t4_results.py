"""The T4 results file: it has the published form, and says of each trial how it ended."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mjolnir import ledger as ledgers
from mjolnir.research.export import compact
from mjolnir.research.journal import as_mapping
from mjolnir.research.t4_results import INVALIDITY, results
from mjolnir.tuner.bench import Status

RUN = Path(__file__).parents[2] / "research" / "runs" / "h200-decode8" / "ledger.jsonl"
NUMBER, TEXT, LIST = {"type": "number"}, {"type": "string"}, {"type": "array"}
TIMES = dict.fromkeys(("compilation_time", "framework", "search_algorithm", "validation"), NUMBER)
MEASUREMENT = {"name": TEXT, "value": {"type": ["number", "string", "array"]}, "unit": TEXT}
RESULT: dict[str, Any] = {
    "timestamp": TEXT,
    "configuration": {"type": "object"},
    "objectives": LIST,
    "times": {"type": "object", "properties": {**TIMES, "runtimes": LIST}},
    "invalidity": {"enum": ["timeout", "compile", "runtime", "correctness", "constraints", "correct"]},
    "correctness": NUMBER,
    "measurements": {"type": "array", "items": {"type": "object", "properties": MEASUREMENT}},
}
ITEM = {
    "type": "object",
    "properties": RESULT,
    "required": ["configuration", "times", "invalidity", "correctness"],
}
SCHEMA = {
    "type": "object",
    "properties": {
        "schema_version": {"type": "string", "pattern": "^[0-9]{1,}.[0-9]{1,}.[0-9]{1,}$"},
        "results": {"type": "array", "items": ITEM},
    },
}
"""What the schema of version 1.0.0 asks for, in our words; held against Kernel Tuner's copy where that is installed."""

TYPES: dict[str, tuple[type, ...]] = {"object": (dict,), "array": (list,), "string": (str,), "number": (int, float)}
UNCHECKED = ("$schema", "$id", "description", "example")


def problems(value: Any, schema: Mapping[str, Any], place: str = "file") -> list[str]:
    """What is wrong with a value; a word of the schema that this does not know is an error."""
    found = []
    for word, wanted in schema.items():
        match word:
            case "type":
                names = [wanted] if isinstance(wanted, str) else wanted
                if isinstance(value, bool) or not isinstance(value, tuple(_classes(names))):
                    found.append(f"{place} is no {wanted}")
            case "properties":
                there = [name for name in wanted if name in value]
                found += [p for name in there for p in problems(value[name], wanted[name], f"{place}.{name}")]
            case "items":
                found += [
                    p for number, entry in enumerate(value) for p in problems(entry, wanted, f"{place}[{number}]")
                ]
            case "required":
                found += [f"{place} lacks {name}" for name in wanted if name not in value]
            case "enum":
                found += [] if value in wanted else [f"{place} is {value!r}"]
            case "pattern":
                found += [] if re.search(wanted, value) else [f"{place} is {value!r}"]
            case _:
                assert word in UNCHECKED, word
    return found


def _classes(names: list[str]) -> list[type]:
    return [cls for name in names for cls in TYPES[name]]


def bare(schema: Any) -> Any:
    """A schema without its remarks."""
    if isinstance(schema, dict):
        return {name: bare(part) for name, part in schema.items() if name not in UNCHECKED}
    return schema


TIMING = {
    "point": 1,
    "baseline": [12_000, 12_200, 12_100],
    "difference": [-1_000, 0, 500],
    "empty": [2_000, 2_100, 1_900],
}


def trial(number: int, status: str, **more: Any) -> dict[str, Any]:
    body = {
        "trial": number, "status": status, "reason": "" if status == "measured" else f"it was {status}",
        "epoch": "e", "setting": {"pdl": 1}, "ratio": None, "ratios": {}, "timings": [],
        "phases": {"compile": 0.001, "gate": 0.25, "measure": 0.5, "propose": 0.125, "record": 0.002},
        "facts": {"compile_seconds": 4.0},
        **more,
    }  # fmt: skip
    return {"kind": "trial", "time": "2026-11-29T15:11:45.047894Z", "body": body}


def file(*trials: dict[str, Any]) -> dict[str, Any]:
    points = [{"batch": batch, "contexts": 4096, "weight": 1.0} for batch in (1, 8)]
    workload = {"schema": "mjolnir.workload/1", "name": "two", "points": points}
    return results([{"kind": "campaign", "body": {"workload": workload}}, *trials])


def test_a_measured_trial_has_its_times_and_ratios():
    (result,) = file(trial(1, "measured", ratio=0.9, ratios={"8": 0.8}, timings=[TIMING]))["results"]
    assert result["times"] == {
        "compilation_time": 4000.0, "validation": 250.0, "benchmark": 500.0, "search_algorithm": 125.0,
        "framework": 2.0, "runtimes": [0.009, 0.0102, 0.0106],
    }  # fmt: skip
    assert (result["invalidity"], result["correctness"], result["objectives"]) == ("correct", 1, ["ratio"])
    measured = {entry["name"]: (entry["value"], entry["unit"]) for entry in result["measurements"]}
    assert measured["ratio"] == (0.9, "")
    assert measured["ratio batch 8"] == (0.8, "")
    assert measured["time 8x4096"] == (0.0102, "ms")


@pytest.mark.parametrize(
    ("status", "timings", "invalidity", "correctness"),
    [
        ("infeasible", [], "constraints", 0),
        ("compile-failed", [], "compile", 0),
        ("compile-timeout", [], "timeout", 0),
        ("hung", [], "timeout", 0),
        ("crashed", [], "runtime", 0),
        ("infrastructure", [], "runtime", 0),
        ("incorrect", [], "correctness", 0),
        ("nan", [], "correctness", 0),
        ("dirty", [TIMING], "runtime", 1),
        ("dirty", [], "runtime", 0),
        ("raced", [TIMING], "correct", 1),
    ],
)
def test_a_trial_that_was_not_measured_says_how_it_ended(status, timings, invalidity, correctness):
    (result,) = file(trial(3, status, timings=timings))["results"]
    assert (result["invalidity"], result["correctness"]) == (invalidity, correctness)
    measured = {entry["name"]: entry["value"] for entry in result["measurements"]}
    assert (measured["status"], measured["reason"]) == (status, f"it was {status}")
    assert "ratio" not in measured


def test_every_status_has_a_name_there():
    assert set(INVALIDITY) == set(Status)
    assert set(INVALIDITY.values()) == set(RESULT["invalidity"]["enum"])


def test_the_committed_campaign_has_the_published_form():
    written = json.loads(compact(results([as_mapping(record) for record in ledgers.read_file(RUN)])))
    assert problems(written, SCHEMA) == []
    assert len(written["results"]) == 165
    assert written["schema_version"] == "1.0.0"
    default = written["results"][0]
    assert len(default["times"]["runtimes"]) == 8 * 12
    assert 0.0103 < default["times"]["runtimes"][0] < 0.0112, "10.8 us at 1 x 4096"


def test_the_check_finds_what_is_wrong():
    good = file(trial(1, "measured", timings=[TIMING]))
    assert problems(good, SCHEMA) == []
    for name, bad in (("invalidity", "wrong"), ("correctness", "1"), ("times", []), ("objectives", "ratio")):
        assert problems({**good, "results": [{**good["results"][0], name: bad}]}, {**SCHEMA}) != [], name
    assert problems({**good, "results": [{}]}, SCHEMA) == [f"file.results[0] lacks {name}" for name in ITEM["required"]]
    assert problems({"schema_version": "one"}, SCHEMA) == ["file.schema_version is 'one'"]


def test_the_published_schema_is_the_one_that_is_checked():
    found = importlib.util.find_spec("kernel_tuner")
    if found is None or found.origin is None:
        pytest.skip("kernel_tuner, which has the published schema, is not installed (the extra `bench`)")
    path = Path(found.origin).parent / "schema" / "T4" / "1.0.0" / "results-schema.json"
    assert bare(json.loads(path.read_text())) == SCHEMA
