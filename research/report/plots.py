"""The plots of an export as SVG and PNG files; equal bytes for equal versions of matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjolnir.research.report import series
from mjolnir.research.report.charts import COLORS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE: Any = {
    "svg.hashsalt": "mjolnir",
    "svg.fonttype": "path",
    "font.size": 10.0,
    "axes.grid": True,
    "grid.alpha": 0.3,
}
DPI = 130


def write(folder: Path, trials: Sequence[Mapping[str, Any]], buckets: Sequence[int]) -> list[Path]:
    """Write `convergence` and `knobs` as .svg and .png into `folder`; returns the files, none without a measurement."""
    import matplotlib as mpl

    if not any(trial.get("ratio") is not None for trial in trials):
        return []
    with mpl.rc_context(STYLE):
        figures = {"convergence": _convergence(trials, buckets), "knobs": _knobs(trials)}
        return [path for name, figure in figures.items() if figure for path in _save(figure, folder, name)]


def _save(figure: Figure, folder: Path, name: str) -> list[Path]:
    vector, bitmap = folder / f"{name}.svg", folder / f"{name}.png"
    figure.savefig(vector, metadata={"Date": None, "Creator": None})
    figure.savefig(bitmap, dpi=DPI, metadata={"Software": None})
    return [vector, bitmap]


def _convergence(trials: Sequence[Mapping[str, Any]], buckets: Sequence[int]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    for index, (bucket, line) in enumerate(series.convergence(trials, buckets).items()):
        xs, ys = zip(*line, strict=True)
        axes.step(xs, ys, where="post", color=COLORS[index % len(COLORS)], label=f"batch {bucket}")
    axes.set_xlabel("trial")
    axes.set_ylabel("best time so far / built-in default")
    axes.legend(ncols=2)
    return figure


def _knobs(trials: Sequence[Mapping[str, Any]]) -> Figure | None:
    from matplotlib.figure import Figure

    groups = series.knob_groups(trials)
    if not groups:
        return None
    rows = -(-len(groups) // 3)
    figure = Figure(figsize=(9, 2.6 * rows), layout="constrained")
    panels = figure.subplots(rows, 3, squeeze=False).flatten()
    for panel, (knob, values) in zip(panels, groups.items(), strict=False):
        panel.boxplot(list(values.values()), tick_labels=list(values), showfliers=True, flierprops={"markersize": 2})
        panel.set_title(knob)
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter("{x:.3g}")
        panel.yaxis.set_minor_formatter("{x:.3g}")
        panel.tick_params(axis="y", which="both", labelsize=7)
    for panel in panels[len(groups) :]:
        panel.set_axis_off()
    figure.supylabel("time / built-in default")
    return figure
