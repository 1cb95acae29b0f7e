"""From what the device worker answers to what a bench returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mjolnir.tuner.bench import Instance, Outcome, Status, Timing
from mjolnir.tuner.gpu.pool import Build
from mjolnir.tuner.gpu.protocol import ChildError
from mjolnir.tuner.gpu.supervisor import blame

OUTER = {"inputs": "gate", "baseline": "measure"}
"""The worker's phases that an outcome counts with others: references are made for the gate, the baseline for timing."""


def refused(build: Build | None, refusal: tuple[Status, str], waited: float) -> Outcome:
    """The outcome of a setting that was not built, or must not run."""
    status, reason = refusal
    key, log = (str(build.facts.get("key", "")), build.log) if build else ("", "")
    return Outcome(status, reason, binary=key, facts=build_facts(build), phases={"compile": waited}, log=log)


def failed(error: ChildError, build: Build, plans: tuple[str, ...], waited: float, seconds: float) -> Outcome:
    """The outcome of a setting whose request got no answer, after `seconds` on the device."""
    phases = {"compile": waited, OUTER.get(error.phase, error.phase): seconds}
    key = str(build.facts["key"])
    return Outcome(*blame(error), binary=key, plans=plans, facts=build_facts(build), phases=phases, log=error.log)


def answered(answer: Mapping[str, Any], build: Build, plans: tuple[str, ...], waited: float) -> Outcome:
    """The outcome that the worker tells of."""
    phases = {"compile": waited}
    for name, seconds in answer.get("phases", {}).items():
        outer = OUTER.get(name, name)
        phases[outer] = phases.get(outer, 0.0) + seconds
    idle = {"idle_ms": round(1e3 * answer["idle"], 3)} if "idle" in answer else {}  # not where the window never opened
    facts = {**build_facts(build), **answer.get("facts", {}), **idle}
    if "window" in answer:
        facts["window"] = answer["window"]
    return Outcome(
        Status(answer["status"]),
        answer["reason"],
        timings=timings(answer),
        correctness=answer.get("correctness", {}),
        binary=str(build.facts["key"]),
        plans=plans,
        facts=facts,
        phases=phases,
    )


def joined(first: Outcome, rest: Outcome) -> Outcome:
    """The outcome of a setting that was measured at some points and then at the others; how the latter ended counts."""
    names = {**first.phases, **rest.phases}
    phases = {name: first.phases.get(name, 0.0) + rest.phases.get(name, 0.0) for name in names}
    timings = tuple(sorted((*first.timings, *rest.timings), key=lambda timing: timing.point)) if rest.timings else ()
    correctness = {"first": first.correctness, "others": rest.correctness}
    facts = {**rest.facts, **{name: first.facts[name] for name in ("idle_ms",) if name in first.facts}}
    return replace(rest, timings=timings, correctness=correctness, phases=phases, facts=facts)


def timings(answer: Mapping[str, Any]) -> tuple[Timing, ...]:
    """The timings of an answer, as far as it has any."""
    return tuple(Timing.from_dict(values) for values in answer.get("timings", ()))


def instance(answer: Mapping[str, Any], opening: Mapping[str, float]) -> Instance:
    """The instance that the worker tells of, which took so long to open."""
    samples = tuple(tuple(tuple(arm) for arm in point) for point in answer.get("samples", ()))
    correctness, window = answer.get("correctness", {}), answer.get("window", {})
    phases = {name: round(seconds, 3) for name, seconds in {**opening, **answer.get("phases", {})}.items()}
    return Instance(Status(answer["status"]), answer["reason"], samples, correctness, window, phases)


def build_facts(build: Build | None) -> dict[str, Any]:
    """The facts of an outcome: resources of the binary and what compiling took."""
    if build is None:
        return {}
    names = ("binary", "registers", "spill_bytes", "smem_bytes")
    facts = {name: build.facts[name] for name in names if name in build.facts}
    return {**facts, "compile_seconds": build.facts.get("seconds", build.seconds)}
