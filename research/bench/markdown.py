"""The results of the kernel bench as Markdown, for the README."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from statistics import geometric_mean
from typing import Any

from mjolnir.research.bench import targets
from mjolnir.research.bench.figures import PEERS, TARGETS, Comparison, comparisons
from mjolnir.research.bench.points import EIGHT, MAIN
from mjolnir.research.bench.rows import GRAPH, HEAD_MAJOR, SPOT, Row, is_wrong, spot_of
from mjolnir.research.bench.targets import line_of

TITLES = {
    "flashinfer-tc": "FlashInfer tensor cores", "flashinfer-xqa": "FlashInfer XQA", "fa3": "FA3",
    "vllm-triton": "vLLM Triton", "ceiling": "read ceiling", "mjolnir-default": "Mjolnir untuned",
    "mjolnir": "Mjolnir tuned",
}  # fmt: skip
"""Kernels in the order of the columns."""

PACKAGES = {"flashinfer-python": "FlashInfer", "vllm": "vLLM (FA3, Triton)", "cuda": "CUDA"}


def page(results: Mapping[str, Any], path: PurePath) -> str:
    """The tables of a result file, the plot beside it, and how it was taken.

    Args:
        results: the file's content.
        path: where it lies, from the folder of the page.
    """
    rows = results["rows"]
    parts = [eight_points(rows), geometries(rows), targets.table(TARGETS, results["figures"])]
    picture = f"![Read rate at the eight points, and times of the best peer over ours]({path.with_suffix('.svg')})"
    return "\n".join([*parts, picture, "", _origin(results["taken"]), ""])


def eight_points(rows: Sequence[Row]) -> str:
    """Microseconds of every kernel at the eight points of the main geometry; the fastest peer's is bold."""
    compared = comparisons(rows)
    heads = ["batch x context", *TITLES.values(), "times faster than the best peer", "share of the ceiling"]
    lines = [line_of(heads), line_of(["---"] * len(heads))]
    for batch, context in EIGHT:
        here = [row for row in rows if _is_main(row, f"{batch}x{context}")]
        if not here:
            continue
        found = compared.get(spot_of(here[0]))
        best = found.peer["kernel"] if found and found.peer else None
        times = {row["kernel"]: _time(row, best) for row in here}
        cells = [times.get(kernel, "") for kernel in TITLES]
        lines.append(line_of([f"{batch} x {context}", *cells, _ratio(found), _percent(found)]))
    return "\n".join([*lines, ""])


def _is_main(row: Row, lengths: str) -> bool:
    facts = {**MAIN.as_dict(), "lengths": lengths}
    ours = str(row["kernel"]).startswith("mjolnir")
    return (
        all(row[name] == facts[name] for name in SPOT)
        and row["timing"] == GRAPH
        and (not ours or row["layout"] == HEAD_MAJOR)
    )


def _time(row: Row, best: str | None) -> str:
    if is_wrong(row):
        return "wrong"
    return f"**{row['us']:.1f}**" if row["kernel"] == best else f"{row['us']:.1f}"


def _ratio(found: Comparison | None) -> str:
    if found is None or found.ratio is None:
        return ""
    return f"{found.ratio:.2f} [{found.low:.2f}, {found.high:.2f}]"


def _percent(found: Comparison | None) -> str:
    return f"{found.share:.0%}" if found and found.share else ""


def geometries(rows: Sequence[Row]) -> str:
    """For each geometry the mean over its points, the worst of them, and the least share of the ceiling."""
    groups: dict[str, list[Comparison]] = {}
    for item in comparisons(rows).values():
        if item.ratio is not None:
            groups.setdefault(_geometry(item.ours), []).append(item)
    heads = ["geometry", "points", "times faster, geometric mean", "worst point", "best peer there", "least share"]
    lines = [line_of(heads), line_of(["---"] * len(heads))]
    for name, items in groups.items():
        worst = min(items, key=lambda item: item.ratio or 0.0)
        mean = geometric_mean([item.ratio or 0.0 for item in items])
        peer = TITLES[worst.peer["kernel"]] if worst.peer else ""
        point = f"{worst.ours['lengths']}: {_ratio(worst)}"
        lines.append(line_of([name, str(len(items)), f"{mean:.2f}", point, peer, _least(items)]))
    return "\n".join([*lines, ""])


def _least(items: Sequence[Comparison]) -> str:
    """The least share of the ceiling, and where."""
    item = min((item for item in items if item.share), key=lambda item: item.share or 0.0, default=None)
    return f"{_percent(item)} at {item.ours['lengths']}" if item else ""


def _geometry(row: Row) -> str:
    query = "" if row["q_len"] == 1 else f", {row['q_len']} queries"
    return f"{row['heads_q']}/{row['heads_kv']} heads, size {row['head_dim']}, page {row['page_size']}{query}"


def _origin(taken: Mapping[str, Any]) -> str:
    versions = taken["parts"][-1]["versions"]
    named = ", ".join(f"{title} {versions[name]}" for name, title in PACKAGES.items() if name in versions)
    missing = ", ".join(sorted({name for name in taken["not_run"] if name in PEERS}))
    return (
        f"{taken['device']}, {named}. Microseconds of one launch, fp8 KV, bf16 query, cold L2, merges and what is done "
        f"to Q included; each peer in its fastest way, in bold the fastest of them. In brackets 95 % intervals. "
        f"`points_below_best_peer` counts the points whose whole interval lies below 1. `us_1x4096` is taken "
        f"otherwise: in the chain in which a layer is served, with writers of Q and KV before it and a reader of "
        f"O behind it, less the chain without it." + (f" Not run: {missing}." if missing else "")
    )
