"""`mjolnir bench kernel`: the decode kernel beside FlashInfer's tensor-core decode, in one process on one GPU.

Times are microseconds of one launch, merge included, by replays of a CUDA graph over rotating KV sets that together
hold at least 400 MB, so that L2 is cold; plans are made before, as they are once a step for all layers. Every output
is compared with an f32 reference; `error` is the largest difference over the reference's RMS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median, quantiles
from typing import TYPE_CHECKING, Any

from mjolnir.kernel.device import Device, current_device
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.sources import kernel_hash
from mjolnir.kernel.timing import replay_micros, rotating_inputs
from mjolnir.research.answer import Answer, MissingFailure
from mjolnir.research.bench.replay import written
from mjolnir.research.request import Request
from mjolnir.tuner.workload import DECODE8, Point

if TYPE_CHECKING:
    import torch

    from mjolnir.kernel.cases import Inputs

SCHEMA = "mjolnir.bench/1"
REPEATS = 40
PEER = "flashinfer-tc"
WORKSPACE_BYTES = 256 << 20

Launch = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Contender:
    """One kernel on one point's input sets.

    Attributes:
        name: as in the rows.
        layout: the cache layout it is given.
        prepare: makes what is needed before timing and returns the launch on set i, and the outputs.
    """

    name: str
    layout: str
    prepare: Callable[[list[Inputs]], tuple[Launch, list[torch.Tensor]]]


def kernel(geometries: list[str], out: Path | None = None) -> Answer:
    """Time every contender at the eight points of `decode8`, for each geometry; rows and figures go to `out` if given.

    Raises:
        UsageFailure: a geometry that does not parse.
        MissingFailure: no GPU.
    """
    problems = [Request(geometry=text).problem()[0] for text in geometries]
    try:
        device = current_device()
    except RuntimeError as error:
        raise MissingFailure(f"{error}; the committed figures are in research/bench/results") from error
    rows: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    for geometry in problems:
        for point in DECODE8.points:
            for contender in (_ours(geometry, device), _flashinfer(geometry)):
                try:
                    rows.append(_row(contender, geometry, point))
                except ImportError as error:
                    missing[contender.name] = str(error)
    taken = _taken(device, missing)
    data = {"schema": SCHEMA, "bench": "kernel", "figures": _figures(rows), "rows": rows, "taken": taken}
    return Answer(data, "\n".join([*_table(rows), *written(data, out, indent=1)]))


def _ours(geometry: Geometry, device: Device) -> Contender:
    def prepare(sets: list[Inputs]) -> tuple[Launch, list[torch.Tensor]]:
        import torch

        from mjolnir.kernel.runner import Runner

        batch, width = sets[0].block_table.shape
        runner = Runner(Setting(), geometry, device, max_batch=batch, capacity=width * geometry.page_size)
        runner.plan(sets[0].seq_lens)
        outs = [torch.full_like(item.q, torch.nan) for item in sets]

        def launch(number: int) -> None:
            item = sets[number]
            runner.run(
                item.q, item.k, item.v, item.block_table, item.seq_lens, outs[number], item.k_scale, item.v_scale
            )

        return launch, outs

    return Contender("mjolnir-default", "BHN2D", prepare)


def _flashinfer(geometry: Geometry) -> Contender:
    def prepare(sets: list[Inputs]) -> tuple[Launch, list[torch.Tensor]]:
        import torch
        from flashinfer import BatchDecodeWithPagedKVCacheWrapper

        batch, width = sets[0].block_table.shape
        ends = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * width
        last = torch.full((batch,), int(sets[0].seq_lens[0]) - (width - 1) * geometry.page_size, dtype=torch.int32)
        wrappers, outs = [], [torch.full_like(item.q, torch.nan) for item in sets]
        for item in sets:
            workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
            wrapper = BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
            wrapper.plan(
                ends, item.block_table.reshape(-1), last.cuda(), geometry.heads_q, geometry.heads_kv,
                geometry.head_dim, geometry.page_size, q_data_type=item.q.dtype, kv_data_type=torch.float8_e4m3fn,
            )  # fmt: skip
            wrappers.append(wrapper)
        caches = [item.cache.view(torch.float8_e4m3fn) for item in sets]

        def launch(number: int) -> None:
            wrappers[number].run(sets[number].q, caches[number], out=outs[number])

        return launch, outs

    return Contender(PEER, "B2NHD", prepare)


def _row(contender: Contender, geometry: Geometry, point: Point) -> dict[str, Any]:
    import torch

    from mjolnir.kernel.reference import attention_f32

    context = point.contexts[0]
    sets = rotating_inputs(geometry, point.batch, context, contender.layout, seed=point.batch)
    launch, outs = contender.prepare(sets)
    samples = replay_micros(launch, len(sets), REPEATS)
    wanted, _ = attention_f32(**sets[0].arguments())
    error = (outs[0].float() - wanted).abs().max() / wanted.square().mean().sqrt()
    tenths = quantiles(samples, n=10)
    row = {
        "kernel": contender.name, "heads_q": geometry.heads_q, "heads_kv": geometry.heads_kv,
        "head_dim": geometry.head_dim, "page_size": geometry.page_size, "q_len": geometry.q_len,
        "layout": contender.layout, "batch": point.batch, "context": context,
        "bytes": point.batch * context * geometry.kv_bytes_per_token,
        "us": round(median(samples), 3), "us_p10": round(tenths[0], 3), "us_p90": round(tenths[-1], 3),
        "error": round(float(error), 6),
    }  # fmt: skip
    del sets, outs, launch
    torch.cuda.empty_cache()
    return row


def _figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Ratios of the peer's time to ours, above 1 where ours is faster."""
    key = ("heads_q", "heads_kv", "page_size", "batch", "context")
    times = {(row["kernel"], *(row[name] for name in key)): row["us"] for row in rows}
    ratios = [us / times[("mjolnir-default", *rest)] for (name, *rest), us in times.items() if name == PEER]
    figures = {"largest_error": max(row["error"] for row in rows if row["kernel"] == "mjolnir-default")}
    if ratios:
        figures |= {
            "geomean_vs_flashinfer_tc": round(geometric_mean(ratios), 3),
            "worst_vs_flashinfer_tc": round(min(ratios), 3),
        }
    return figures


def _taken(device: Device, missing: dict[str, str]) -> dict[str, Any]:
    from importlib.metadata import PackageNotFoundError, version

    import torch

    def installed(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return "not installed"

    names = ("torch", "nvidia-cutlass-dsl", "flashinfer-python")
    return {
        "device": device.name,
        "sm_count": device.sm_count,
        "kernel_hash": kernel_hash(),
        "versions": {name: installed(name) for name in names} | {"cuda": torch.version.cuda},
        "not_run": missing,
        "how": " ".join((__doc__ or "").split("\n\n", 1)[1].split()),
    }


def _table(rows: list[dict[str, Any]]) -> list[str]:
    titles = f"{'us':>9} {'p10':>9} {'p90':>9} {'GB/s':>6} {'error':>8}"
    lines = [f"{'heads':>7} {'page':>4} {'point':>10} {'kernel':>16} {titles}"]
    for row in rows:
        point = f"{row['batch']}x{row['context']}"
        lines.append(
            f"{row['heads_q']:>4}/{row['heads_kv']:<2} {row['page_size']:>4} {point:>10} {row['kernel']:>16} "
            f"{row['us']:9.2f} {row['us_p10']:9.2f} {row['us_p90']:9.2f} "
            f"{row['bytes'] / row['us'] / 1e3:6.0f} {row['error']:8.5f}"
        )
    return lines
