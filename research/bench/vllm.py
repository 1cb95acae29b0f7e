"""`mjolnir bench vllm`: how fast vLLM decodes on Mjolnir, beside vLLM on its own backends.

Each contender has a process of its own for each model, on cores of its own. The processes of a model start together
and stay, each with its cache filled; at every point all have the same requests under way, and windows of decode steps
go through them in the order A-B-B-A, where one works and the others wait. All get the same model, fp8 KV and prompts,
full CUDA graphs of decode steps, and steps scheduled ahead as vLLM does it. Times of steps are wall times of whole
windows, as a client would see them; attention is what a profiler saw between cache write and output projection, with
what prepares Q, the merge and the plan, from steps of their own. `host_us` is the time of a step in the backend's
metadata builder; Mjolnir's plan is part of the graph. Weights and cache are those of a few layers, and these are gone
through as often as makes the layers of the whole model, so that a step keeps the device as busy as there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, NamedTuple

from mjolnir.kernel.sources import kernel_hash
from mjolnir.research.answer import Answer, Exit, MissingFailure, UsageFailure
from mjolnir.research.bench import vllm_rows as files
from mjolnir.research.bench.rows import write as write_json
from mjolnir.research.bench.vllm_questions import CONTENDERS, MODELS, POINTS, environment, heads, question
from mjolnir.research.serving import model as models
from mjolnir.research.serving import process
from mjolnir.research.serving.dialogue import Dialogue, Timed
from mjolnir.research.serving.timing import Question
from mjolnir.research.tell import tell

ENGINE = "mjolnir.research.serving.timing"

WINDOW = 0.3
"""Seconds of a window on the slowest contender."""

LEAST_STEPS = 8
"""Of a window, however slow they are."""

Engine = Callable[[Question, Mapping[str, str]], Timed]
"""Begins an engine in an environment; tests put another in the place of a process."""


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked for; empty means all.

    Attributes:
        contenders, models, points: what is timed, points as BATCHxTOKENS.
        steps: decode steps of a window, at most; fewer where they would take longer than `WINDOW` on the slowest.
        rounds: how often the order and its reverse are gone through; 0 = once, and not back.
        minutes: nothing is begun after this long, and a point goes through fewer rounds than asked for where it would
            take the time of those to come; 0 = no limit.
        seconds: after which a process that is not ready, or has not timed a point, is ended.
        runner: `v1`, `v2`, or nothing for vLLM's choice.
        append: result files whose rows are kept where they are not measured anew.
        out: the result file, which is written after every point.
    """

    contenders: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    steps: int = 50
    rounds: int = 5
    minutes: float = 0.0
    seconds: float = 900.0
    runner: str = ""
    append: tuple[Path, ...] = ()
    out: Path | None = None

    @property
    def windows(self) -> int:
        """Windows of a point."""
        return max(1, 2 * self.rounds)

    @property
    def target(self) -> Path | None:
        """Where results go."""
        return self.out or next(iter(self.append), None)


class Timings(NamedTuple):
    """What a contender gave at a point: `timing.Window` of each window, and `timing.Profile`."""

    windows: Sequence[Mapping[str, Any]]
    profile: Mapping[str, Any]


@dataclass
class Race:
    """All processes of a run, those of a model beside one another.

    Args:
        options: what is asked for.
        engine: begins one.
        earlier: result files.
        began: on the monotonic clock.
    """

    options: Options
    engine: Engine
    earlier: Sequence[Mapping[str, Any]] = ()
    began: float = 0.0
    runs: dict[tuple[str, str, int, int], Timings] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def run(
        self, shapes: Mapping[str, models.Shape], contenders: Sequence[str], points: Sequence[tuple[int, int]]
    ) -> None:
        """Time every contender on every model; one that fails is told, and the others go on."""
        places = cores(len(contenders))
        with TemporaryDirectory(prefix="mjolnir-models-") as scratch:
            for left, (name, shape) in zip(range(len(shapes))[::-1], shapes.items(), strict=True):
                folder = models.write_config(Path(scratch, name), shape)
                asked = {
                    one: question(name, folder, shape, one, points, self.options.windows, self.options.steps, place)
                    for one, place in zip(contenders, places, strict=True)
                }
                self._model(name, asked, left)

    def _model(self, model: str, asked: Mapping[str, Question], left: int) -> None:
        """Time every point on all contenders of a model; so many models come after it."""
        if self._over():
            self.not_run |= {f"{contender} {model}": self._over() for contender in asked}
            return
        living: dict[str, Timed] = {}
        try:
            begin = monotonic()
            for contender, one in asked.items():
                living[contender] = self.engine(one, environment(contender, self.options.runner))
            for contender in asked:
                with self._told(f"{contender} {model}", contender, living):
                    facts = living[contender].hear(max(1.0, begin + self.options.seconds - monotonic()))
                    self.facts |= {key: facts[key] for key in ("device", "torch", "vllm", "v2_runner")}
                    tell(f"{contender} {model}: ready after {monotonic() - begin:.0f} s {facts['seconds']}")
            starting = monotonic() - begin
            points = next(iter(asked.values())).points
            for number, point in enumerate(points):
                share = (self._left() - left * starting) / (len(points) - number + left * len(points))
                self._point(model, point, living, monotonic() + share)
        finally:
            for timed in living.values():
                timed.end()

    def _point(self, model: str, point: tuple[int, int], living: dict[str, Timed], until: float) -> None:
        """Time a point on those that live, there and back; no round is begun after `until`, except for the first."""
        begin, name = monotonic(), f"{model} {point[0]}x{point[1]}"
        if self._over():
            self.not_run |= {f"{contender} {name}": self._over() for contender in living}
            return
        begun = self._each(name, living, [*living], {"begin": point})
        steps = window_steps([one["step_us"] for _, one in begun], self.options.steps)
        windows: list[tuple[str, Mapping[str, Any]]] = []
        took = 0.0
        for turn in range(max(1, self.options.rounds)):
            started = monotonic()
            if turn and started + took > until:
                break
            windows += self._each(name, living, order([*living], min(1, self.options.rounds)), {"window": steps})
            took = monotonic() - started
        profiles = dict(self._each(name, living, [*living], {"end": True}))
        size = {"batch": point[0], "context": point[1]}
        for contender, profile in profiles.items():
            made = [{**window, **size} for who, window in windows if who == contender]
            self.runs[contender, model, *point] = Timings(made, profile)
        if profiles:
            self._write()
        tell(f"{name}: {len(windows)} windows of {steps} steps, {monotonic() - begin:.0f} s")

    def _each(
        self, name: str, living: dict[str, Timed], contenders: Sequence[str], line: Mapping[str, Any]
    ) -> list[tuple[str, Mapping[str, Any]]]:
        """What those that live answer to a line, one after another."""
        found = []
        for contender in contenders:
            if contender in living:
                with self._told(f"{contender} {name}", contender, living):
                    found.append((contender, living[contender].ask(line, self.options.seconds)))
        return found

    def _left(self) -> float:
        """Seconds in which things may be begun."""
        return self.began + 60 * self.options.minutes - monotonic() if self.options.minutes else inf

    def _over(self) -> str:
        """Why nothing more is begun; empty while there is time."""
        return f"the {self.options.minutes:g} minutes were over" if self._left() < 0 else ""

    @contextmanager
    def _told(self, name: str, contender: str, living: dict[str, Timed]) -> Iterator[None]:
        """What fails is told, and lives no longer."""
        try:
            yield
        except process.EngineFailed as error:
            self.not_run[name] = str(error)
            tell(f"not run: {error}")
            living.pop(contender).end()

    def _write(self) -> None:
        if self.options.target:
            write_json(self.options.target, self.data())

    def data(self) -> dict[str, Any]:
        """The result file: figures, all rows, how they were taken.

        Raises:
            UsageFailure: the files are of different devices, or there are no rows at all.
        """
        made = [files.make(key[0], key[1], heads(key[1]), *given) for key, given in self.runs.items()]
        rows = files.merge(*(part["rows"] for part in self.earlier), made)
        parts = [part for earlier in self.earlier for part in earlier["taken"]["parts"]]
        if self.facts:
            date = datetime.now(UTC).isoformat(timespec="seconds")
            parts.append({**self.facts, "date": date, "kernel": kernel_hash()[:12], "not_run": dict(self.not_run)})
        devices = sorted({part["device"] for part in parts})
        if len(devices) != 1:
            told = "\n".join(f"{name}: {reason}" for name, reason in self.not_run.items())
            raise UsageFailure(f"results of one device are needed, there are {len(devices)}: {devices}\n{told}".strip())
        how = " ".join((__doc__ or "").split("\n\n", 1)[1].split())
        taken = {"device": devices[0], "date": max(part["date"] for part in parts), "parts": parts, "how": how}
        return {"schema": files.SCHEMA, "bench": "vllm", "figures": files.figures(rows), "rows": rows, "taken": taken}


def vllm(options: Options, engine: Engine | None = None) -> Answer:
    """Time what is asked for, merge it with what there is, and write and tell the result.

    Raises:
        UsageFailure: an option that names nothing, or a file that is no result of this bench.
        MissingFailure: there is no GPU.
    """
    shapes = {name: MODELS[name] for name in _known("--model", options.models, tuple(MODELS))}
    contenders = _known("--contender", options.contenders, tuple(CONTENDERS))
    points = _points(options.points)
    earlier = [files.read(path) for path in options.append if path.exists()]
    race = Race(options, engine or _engine(), earlier, monotonic())
    race.run(shapes, contenders, points)
    data = race.data()
    if options.target:
        write_json(options.target, data)
    told = [
        *files.lines(data["rows"]),
        *files.ratio_lines(data["rows"]),
        *files.told(data["figures"]),
        *(f"not run: {name}: {why}" for name, why in race.not_run.items()),
    ]
    return Answer(data, "\n".join(told), Exit.FAILED if race.not_run else Exit.DONE)


def order(contenders: Sequence[str], rounds: int) -> list[str]:
    """A-B-B-A as often as asked, so that what drifts meets all alike; with no round A-B."""
    return [*contenders, *reversed(contenders)] * rounds if rounds else [*contenders]


def window_steps(step_us: Sequence[float], most: int) -> int:
    """Steps of a window, the same for all, from the times of a step of each."""
    return max(min(LEAST_STEPS, most), min(most, round(1e6 * WINDOW / max(step_us, default=1.0))))


def cores(contenders: int) -> list[tuple[int, ...]]:
    """Cores for each contender, no two the same, and one left for this process; none where there are too few."""
    there = sorted(os.sched_getaffinity(0))[1:]
    each = len(there) // contenders
    return [tuple(there[number * each : (number + 1) * each]) for number in range(contenders)]


def _engine() -> Engine:
    import torch

    if not torch.cuda.is_available():
        raise MissingFailure("no CUDA device; `mjolnir verify vllm` runs on the CPU as well, this is about speed")

    return started


def started(asked: Question, variables: Mapping[str, str]) -> Timed:
    """The process of an engine that is timed."""
    return Dialogue(ENGINE, asked.name, asked.as_dict(), variables)


def _known(option: str, given: Sequence[str], there: Sequence[str]) -> Sequence[str]:
    if unknown := set(given) - set(there):
        raise UsageFailure(f"{option} {min(unknown)!r} is none of {', '.join(there)}")
    return given or there


def _points(given: Sequence[str]) -> list[tuple[int, int]]:
    found = []
    for text in given:
        match = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,6})", text)
        if not match:
            raise UsageFailure(f"--point {text!r} is not BATCHxTOKENS, such as 8x32768")
        found.append((int(match[1]), int(match[2])))
    return found or [*POINTS]
