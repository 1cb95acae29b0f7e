"""The plot of the kernel bench: read rate at the eight points, and how far ahead of the best peer at every spot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjolnir.research.bench.figures import PEERS, Comparison, comparisons
from mjolnir.research.bench.points import EIGHT, MAIN
from mjolnir.research.bench.rows import GRAPH, HEAD_MAJOR, Row
from mjolnir.research.report.charts import COLORS
from mjolnir.research.report.plots import DPI, STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVES = ("mjolnir", "mjolnir-default", *PEERS)
MARKERS = "osv^Dx"


def write(results: Path, rows: Sequence[Row]) -> list[Path]:
    """Write `<results>.svg` and `.png` beside a result file; equal bytes for equal rows and matplotlib.

    Returns:
        The files; none where no row is of `mjolnir`.
    """
    import matplotlib as mpl

    compared = comparisons(rows)
    if not compared:
        return []
    vector, bitmap = results.with_suffix(".svg"), results.with_suffix(".png")
    with mpl.rc_context(STYLE):
        figure = _drawn(rows, list(compared.values()))
        figure.savefig(vector, metadata={"Date": None, "Creator": None})
        figure.savefig(bitmap, dpi=DPI, metadata={"Software": None})
    return [vector, bitmap]


def _drawn(rows: Sequence[Row], compared: Sequence[Comparison]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 9), layout="constrained")
    above, below = figure.subplots(2, 1)
    _rates(above, rows)
    _ratios(below, [item for item in compared if item.ratio is not None])
    return figure


def _rates(axes: Any, rows: Sequence[Row]) -> None:
    """KV bytes over time at the eight points of the main geometry, least bytes first."""
    points = sorted(EIGHT, key=lambda point: (point[0] * point[1], point[0]))
    names = [f"{batch}x{context}" for batch, context in points]
    for index, kernel in enumerate((*CURVES, "ceiling")):
        times = {row["lengths"]: row["bytes"] / row["us"] / 1e6 for row in rows if _is_shown(row, kernel)}
        places = [place for place, name in enumerate(names) if name in times]
        if not places:
            continue
        rates = [times[names[place]] for place in places]
        if kernel == "ceiling":
            axes.plot(places, rates, color="black", linestyle="--", label="read-only ceiling")
        else:
            color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
            axes.plot(places, rates, color=color, marker=marker, markersize=4, label=kernel)
    axes.set_xticks(range(len(names)), names)
    axes.set_xlabel("batch x context")
    axes.set_ylabel("KV bytes read, TB/s")
    axes.set_ylim(bottom=0)
    axes.set_title("32/8 heads, head size 128, page 64, fp8 KV")
    if axes.lines:
        axes.legend(ncols=2, fontsize=8)


def _is_shown(row: Row, kernel: str) -> bool:
    geometry = (row["heads_q"], row["heads_kv"], row["head_dim"], row["page_size"], row["q_len"])
    main = (MAIN.heads_q, MAIN.heads_kv, MAIN.head_dim, MAIN.page_size, MAIN.q_len)
    own = not kernel.startswith("mjolnir") or row["layout"] == HEAD_MAJOR
    return bool(geometry == main and row["kernel"] == kernel and row["timing"] == GRAPH and own)


def _ratios(axes: Any, compared: Sequence[Comparison]) -> None:
    """The best peer's time over ours with its interval, a column for each geometry and a mark for each point."""
    groups: dict[str, list[Comparison]] = {}
    for item in compared:
        row = item.ours
        name = f"{row['heads_q']}/{row['heads_kv']} D{row['head_dim']}\npage {row['page_size']} q {row['q_len']}"
        groups.setdefault(name, []).append(item)
    for column, items in enumerate(groups.values()):
        spread = 0.6 / max(1, len(items))
        places = [column - 0.3 + (number + 0.5) * spread for number in range(len(items))]
        lows = [max(0.0, float(item.ratio or 0) - float(item.low or 0)) for item in items]
        highs = [max(0.0, float(item.high or 0) - float(item.ratio or 0)) for item in items]
        axes.errorbar(
            places, [item.ratio for item in items], yerr=[lows, highs], fmt="o", markersize=4, capsize=2,
            color=COLORS[column % len(COLORS)],
        )  # fmt: skip
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(groups)), list(groups), fontsize=7)
    axes.set_ylabel("best peer's time / ours")
    axes.set_title("each point, least batch first, with its 95 % interval")
