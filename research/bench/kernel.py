"""`mjolnir bench kernel`: the decode kernel beside its peers and the card's read ceiling, in one process on one GPU.

Times are microseconds of one launch by replays of a CUDA graph over rotating KV sets that together hold at least
400 MB, so that L2 is cold. Merges and whatever is done to Q are inside, PDL as each contender ships it; plans, which
are made once a step for all layers, are outside. A contender that can be run in several ways (layouts, splits, knobs)
is timed in each, and its fastest way is timed again for the row. `error` is the largest difference from attention in
f64 over its RMS. The row with timing `chain` is the kernel as it is served: behind a writer of Q and of a KV row, in
front of a reader of O, less the chain without it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjolnir.kernel.device import Device, current_device
from mjolnir.research.answer import Answer, Exit, MissingFailure, UsageFailure
from mjolnir.research.bench import rows as files
from mjolnir.research.bench import table
from mjolnir.research.bench.figures import comparisons, figures, problems
from mjolnir.research.bench.peers.contender import Contender
from mjolnir.research.bench.points import Spot, select
from mjolnir.research.bench.race import KERNELS, REST, Bench, Options, run, short_hash
from mjolnir.research.request import Request
from mjolnir.research.tell import tell

if TYPE_CHECKING:
    from mjolnir.research.bench.chain import Served
    from mjolnir.research.bench.tuning import Tuned


def kernel(options: Options) -> Answer:
    """Time what is asked for, merge it with what there is, and write and tell the result.

    Raises:
        UsageFailure: an option that does not parse, or a file that is no result of this bench.
        MissingFailure: no GPU.
    """
    spots = select([Request(geometry=text).problem()[0] for text in options.geometries], options.points)
    if unknown := set(options.kernels) - {*KERNELS, files.CHAIN}:
        raise UsageFailure(f"--kernel {min(unknown)!r} is none of {', '.join((*KERNELS, files.CHAIN))}")
    earlier = [files.read(path) for path in options.append if path.exists()]
    if options.merge_only:
        if not earlier:
            raise UsageFailure("--merge-only needs --append with a file that exists")
        return _answer(assemble(earlier, [], None), options)
    return measured(options, spots, earlier, _bench(options, spots))


def measured(options: Options, spots: Sequence[Spot], earlier: Sequence[dict[str, Any]], bench: Bench) -> Answer:
    """Time `spots` and merge, writing what there is after each of them."""
    not_run: dict[str, str] = {}
    taken = _taken(bench, options, not_run)

    def keep(rows: Sequence[files.Row]) -> None:
        if options.target:
            files.write(options.target, assemble(earlier, rows, taken))

    return _answer(assemble(earlier, run(spots, options, bench, not_run, keep), taken), options)


def assemble(
    earlier: Sequence[dict[str, Any]], found: Sequence[files.Row], taken: dict[str, Any] | None
) -> dict[str, Any]:
    """The result file: rows merged, figures made from all of them.

    Args:
        earlier: result files, the later ones counting more.
        found: rows of this run, which count most.
        taken: how those were taken; None where there are none.

    Raises:
        UsageFailure: the files are of different devices.
    """
    parts = [part for data in earlier for part in data["taken"]["parts"]] + ([taken] if taken else [])
    devices = sorted({part["device"] for part in parts})
    if len(devices) != 1:
        raise UsageFailure(f"these results are of different devices: {', '.join(devices)}")
    merged = files.merge(*(data["rows"] for data in earlier), found)
    date = max(part["date"] for part in parts)
    whole = {"device": devices[0], "date": date, "not_run": still_missing(parts, merged), "parts": parts}
    return {
        "schema": files.SCHEMA,
        "bench": "kernel",
        "figures": figures(merged),
        "problems": problems(merged),
        "points": [item.as_dict() for item in comparisons(merged).values()],
        "rows": merged,
        "taken": {**whole, "how": " ".join((__doc__ or "").split("\n\n", 1)[1].split())},
    }


def still_missing(parts: Sequence[dict[str, Any]], rows: Sequence[files.Row]) -> dict[str, str]:
    """What was not run and has no row from another part, with the reason.

    A contender that could not be run at all is told as long as the last part that asked for it could not.
    """
    there = {files.name_of(row) for row in rows} | {files.place_of(row) for row in rows}
    asked = {name: part for part in parts for name in part["kernels"]}
    return {
        name: why
        for part in parts
        for name, why in part["not_run"].items()
        if name not in there and asked.get(name, part) is part and (name != REST or part is parts[-1])
    }


def _answer(data: dict[str, Any], options: Options) -> Answer:
    lines = [*table.lines(data["rows"]), "", *table.figure_lines(data["figures"]), *data["problems"]]
    lines += [f"not run: {name}: {why}" for name, why in data["taken"]["not_run"].items()]
    if options.target:
        files.write(options.target, data)
        written = [options.target, *_plotted(options.target, data["rows"])]
        lines.append(f"written to {', '.join(map(str, written))}")
    wrong = any(row["kernel"].startswith("mjolnir") and files.is_wrong(row) for row in data["rows"])
    return Answer(data, "\n".join(lines), Exit.FAILED if wrong or not data["rows"] else Exit.DONE)


def _plotted(target: Path, rows: Sequence[files.Row]) -> list[Path]:
    """The plot beside a result file; a GPU machine may lack what draws it, and `--merge-only` draws it elsewhere."""
    try:
        from mjolnir.research.bench import plot

        return plot.write(target, rows)
    except ImportError as error:
        tell(f"no plot: {error}")
        return []


def _bench(options: Options, spots: Sequence[Spot]) -> Bench:
    """The real one."""
    began = time.monotonic()
    try:
        device = current_device()
    except RuntimeError as error:
        raise MissingFailure(f"{error}; the committed figures are in research/bench/results") from error
    from mjolnir.backend.lookup import Defaults
    from mjolnir.kernel.cache import default_folder
    from mjolnir.research.bench.ahead import compile_ahead
    from mjolnir.research.bench.chain import Served
    from mjolnir.research.bench.clock import CudaClock
    from mjolnir.research.bench.pool import Pool
    from mjolnir.research.bench.tuning import Tuned, read

    tuned = Tuned(device, Defaults.load(), read(options.tuned) if options.tuned else {})
    geometries = list(dict.fromkeys(place.geometry for place in spots))
    flashinfer = any(options.wants(name) for name in ("flashinfer-tc", "flashinfer-xqa"))
    limit = options.tune if options.wants("mjolnir") else 0
    if trouble := compile_ahead(geometries, device, limit=limit, flashinfer=flashinfer):
        tell(f"FlashInfer's modules were not compiled ahead: {trouble}")

    def served(place: Spot) -> Served:
        from mjolnir.tuner.gpu.card import CudaCard

        return Served(CudaCard(place.geometry, 0, default_folder()), place)

    return Bench(device, contenders(device, options, tuned), Pool(), CudaClock(), tuned, served, _versions(), began)


def contenders(device: Device, options: Options, tuned: Tuned) -> list[Contender]:
    """Everything that is asked for, ours first."""
    from mjolnir.research.bench.peers.ceiling import Ceiling
    from mjolnir.research.bench.peers.fa3 import FlashAttention3
    from mjolnir.research.bench.peers.flashinfer import TensorCores, Xqa
    from mjolnir.research.bench.peers.ours import PLACEMENTS, Mjolnir, MjolnirDefault
    from mjolnir.research.bench.peers.triton import UnifiedAttention

    own = [Mjolnir(device, layout, tuned, options.tune) for layout in PLACEMENTS]
    every: list[Contender] = [
        *own, MjolnirDefault(device), TensorCores(), Xqa(), FlashAttention3(), UnifiedAttention(), Ceiling(device),
    ]  # fmt: skip
    return [contender for contender in every if options.wants(contender.name)]


def _taken(bench: Bench, options: Options, not_run: dict[str, str]) -> dict[str, Any]:
    """How a run was taken; `not_run` goes on growing."""
    return {
        "device": bench.device.name, "sm_count": bench.device.sm_count, "kernel_hash": short_hash(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"), "versions": bench.versions,
        "kernels": list(options.kernels or KERNELS), "repeats": options.repeats, "tune": options.tune,
        "not_run": not_run,
    }  # fmt: skip


def _versions() -> dict[str, Any]:
    import torch

    from mjolnir.tuner.gpu.card import package_version

    names = ("torch", "triton", "nvidia-cutlass-dsl", "flashinfer-python", "vllm")
    return {**{name: package_version(name) for name in names}, "cuda": torch.version.cuda}
