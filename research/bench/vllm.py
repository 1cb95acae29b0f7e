"""`mjolnir bench vllm`: how fast vLLM decodes on Mjolnir, beside vLLM on its own backends.

Each contender has a process of its own for each model. The processes of a model start together and stay, each with its
cache filled; then every point goes through them in the order A-B-B-A, where one works and the others wait. All get the
same model, fp8 KV and prompts, and full CUDA graphs of decode steps. Times of steps are wall times of whole windows of
them, as a client would see them; attention is what a profiler saw between cache write and output projection, with what
prepares Q, the merge and the plan, from steps of their own. `host_us` is the time of a step in the backend's metadata
builder, which makes the plan. The vocabulary is scaled with the layers, so that the head's share of a step is that of
the whole model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from mjolnir.backend.overrides import variable
from mjolnir.kernel.knobs import KNOBS
from mjolnir.kernel.sources import kernel_hash
from mjolnir.research.answer import Answer, Exit, MissingFailure, UsageFailure
from mjolnir.research.bench import vllm_rows as files
from mjolnir.research.bench.rows import write as write_json
from mjolnir.research.serving import model as models
from mjolnir.research.serving import process
from mjolnir.research.serving.dialogue import Dialogue, Timed
from mjolnir.research.serving.modes import capture_sizes
from mjolnir.research.serving.timing import Question, most_tokens
from mjolnir.research.tell import tell

ENGINE = "mjolnir.research.serving.timing"

MODELS: Mapping[str, models.Shape] = {
    "qwen3-8b": models.Shape(32, 8, 128, 4096, 12288, layers=4, vocabulary=16896),
    "head-dim-256": models.Shape(16, 2, 256, 2048, 5120, layers=4, vocabulary=16896),
}
"""Shapes: four of the 36 layers of Qwen3-8B, and as many of a model with the attention of Qwen3-Next."""

POINTS = tuple((batch, context) for context in (32768, 4096) for batch in (64, 8, 1))
BLOCK = 64
SPARE_BLOCKS = 1024
"""Blocks for what points answer, so that the prompts of others stay in the cache."""

SHARE = 0.05
"""Of the GPU's memory that has to be free when a process starts; its cache has its size whatever that is."""

OURS = {"VLLM_KV_CACHE_LAYOUT": "HND", "MJOLNIR_ATTN_FALLBACK": "FLASH_ATTN"}
"""The fastest layout, and a fallback that compiles nothing: prefill is not what is timed."""

CONTENDERS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    files.TUNED: ("CUSTOM", OURS),
    files.BUILT_IN: ("CUSTOM", {**OURS, **{variable(knob): str(knob.default) for knob in KNOBS}}),
    **{name: (name, {}) for name in files.STOCK},
}
"""Backend and environment of each; the built-in default is every knob set to it."""

Engine = Callable[[Question, Mapping[str, str]], Timed]
"""Begins an engine in an environment; tests put another in the place of a process."""


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked for; empty means all.

    Attributes:
        contenders, models, points: what is timed, points as BATCHxTOKENS.
        windows, steps: timed windows of a point each time, and decode steps of a window.
        rounds: how often the order and its reverse are gone through; 0 = once, and not back.
        minutes: nothing is begun after this long; 0 = no limit.
        seconds: after which a process that is not ready, or has not timed a point, is ended.
        runner: `v1`, `v2`, or nothing for vLLM's choice.
        append: result files whose rows are kept where they are not measured anew.
        out: the result file, which is written after every point of a process.
    """

    contenders: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    windows: int = 5
    steps: int = 40
    rounds: int = 1
    minutes: float = 0.0
    seconds: float = 900.0
    runner: str = ""
    append: tuple[Path, ...] = ()
    out: Path | None = None

    @property
    def target(self) -> Path | None:
        """Where results go."""
        return self.out or next(iter(self.append), None)


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
    began: float = field(default_factory=monotonic)
    runs: dict[tuple[str, str, int, int], list[Mapping[str, Any]]] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def run(
        self, shapes: Mapping[str, models.Shape], contenders: Sequence[str], points: Sequence[tuple[int, int]]
    ) -> None:
        """Time every contender on every model; one that fails is told, and the others go on."""
        with TemporaryDirectory(prefix="mjolnir-models-") as scratch:
            for name, shape in shapes.items():
                folder = models.write_config(Path(scratch, name), shape)
                self._model(name, {one: question(name, folder, shape, one, points, self.options) for one in contenders})

    def _model(self, model: str, asked: Mapping[str, Question]) -> None:
        """Time every point on all contenders of a model."""
        if self._over():
            self.not_run |= {f"{contender} {model}": self._over() for contender in asked}
            return
        living: dict[str, Timed] = {}
        try:
            for contender, one in asked.items():
                living[contender] = self.engine(one, environment(contender, self.options.runner))
            begin = monotonic()
            for contender in asked:
                with self._told(f"{contender} {model}", contender, living):
                    facts = living[contender].hear(max(1.0, begin + self.options.seconds - monotonic()))
                    self.facts |= {key: facts[key] for key in ("device", "torch", "vllm", "v2_runner")}
                    tell(f"{contender} {model}: ready after {monotonic() - begin:.0f} s {facts['seconds']}")
            for point in next(iter(asked.values())).points:
                self._point(model, point, living)
        finally:
            for timed in living.values():
                timed.end()

    def _point(self, model: str, point: tuple[int, int], living: dict[str, Timed]) -> None:
        """Time a point on those that live, there and back."""
        begin = monotonic()
        for contender in order([*living], self.options.rounds):
            name = f"{contender} {model} {point[0]}x{point[1]}"
            if self._over():
                self.not_run[name] = self._over()
            elif contender in living:
                with self._told(name, contender, living):
                    times = living[contender].ask(point, self.options.seconds)
                    self.runs.setdefault((contender, model, *point), []).append(times)
                    self._write()
        tell(f"{model} {point[0]}x{point[1]}: {monotonic() - begin:.0f} s")

    def _over(self) -> str:
        """Why nothing more is begun; empty while there is time."""
        over = self.options.minutes and monotonic() - self.began > 60 * self.options.minutes
        return f"the {self.options.minutes:g} minutes were over" if over else ""

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
        made = [files.make(key[0], key[1], _heads(key[1]), runs) for key, runs in self.runs.items()]
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
    race = Race(options, engine or _engine(), [files.read(path) for path in options.append if path.exists()])
    race.run(shapes, contenders, points)
    data = race.data()
    if options.target:
        write_json(options.target, data)
    told = [
        *files.lines(data["rows"]),
        *files.told(data["figures"]),
        *(f"not run: {name}: {why}" for name, why in race.not_run.items()),
    ]
    return Answer(data, "\n".join(told), Exit.FAILED if race.not_run else Exit.DONE)


def order(contenders: Sequence[str], rounds: int) -> list[str]:
    """A-B-B-A as often as asked, so that what drifts meets all alike; with no round A-B."""
    return [*contenders, *reversed(contenders)] * rounds if rounds else [*contenders]


def question(
    name: str, folder: Path, shape: models.Shape, contender: str, points: Sequence[tuple[int, int]], options: Options
) -> Question:
    """What a process is for: all points of one model, the longest context first."""
    more = most_tokens(options.windows, options.steps)
    batch = max(size for size, _ in points)
    blocks = max(size * -(-(context + more) // BLOCK) for size, context in points) + SPARE_BLOCKS
    engine = {
        "load_format": "dummy", "dtype": "bfloat16", "kv_cache_dtype": "fp8", "block_size": BLOCK,
        "max_num_seqs": batch, "max_model_len": max(context for _, context in points) + more,
        "max_num_batched_tokens": 8192, "enable_prefix_caching": True, "gpu_memory_utilization": SHARE,
        "enable_flashinfer_autotune": False,
        "kv_cache_memory_bytes": blocks * 2 * BLOCK * shape.heads_kv * shape.head_dim * shape.layers,
        "compilation_config": {
            "mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": capture_sizes(batch),
        },
    }  # fmt: skip
    ordered = tuple(sorted(points, key=lambda point: (-point[1], -point[0])))
    asked = f"{contender} {name}", str(folder), CONTENDERS[contender][0], ordered, shape.vocabulary, shape.layers
    return Question(*asked, options.windows, options.steps, engine)


def environment(contender: str, runner: str) -> dict[str, str]:
    """The variables of a process."""
    chosen = {"VLLM_USE_V2_MODEL_RUNNER": str(int(runner == "v2"))} if runner else {}
    return {**CONTENDERS[contender][1], **chosen}


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


def _heads(model: str) -> dict[str, int]:
    shape = asdict(MODELS[model])
    return {name: shape[name] for name in ("heads_q", "heads_kv", "head_dim", "layers")}
