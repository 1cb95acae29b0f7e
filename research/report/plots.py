"""The plots of an export as SVG and PNG files; equal bytes for equal versions of matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjolnir.research import effects
from mjolnir.research.report import knobs, series, winners
from mjolnir.research.report.charts import COLORS, Span

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

TICKS = tuple(round(factor * 10.0**power, 3) for power in (-1, 0, 1, 2) for factor in (1, 1.2, 1.5, 2, 3, 5, 7))
"""Values of a logarithmic axis of ratios."""


def write(folder: Path, summary: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Write `convergence`, `winners`, `effects` and `knobs` as .svg and .png; those without data are left out.

    Args:
        folder: where to.
        summary: of the campaign.
        trials: bodies of the trials of the epoch in force.

    Returns:
        The files.
    """
    import matplotlib as mpl

    if not any(trial.get("ratio") is not None for trial in trials):
        return []
    buckets = [bucket["bucket"] for bucket in summary["buckets"]]
    with mpl.rc_context(STYLE):
        figures = {
            "convergence": _convergence(trials, buckets),
            "winners": _winners(summary),
            "effects": _effects(summary),
            "knobs": _knobs(trials),
        }
        return [path for name, figure in figures.items() if figure for path in _save(figure, folder, name)]


def _save(figure: Figure, folder: Path, name: str) -> list[Path]:
    vector, bitmap = folder / f"{name}.svg", folder / f"{name}.png"
    figure.savefig(vector, metadata={"Date": None, "Creator": None})
    figure.set_layout_engine("none")  # laid out already, and laying out takes most of the time
    figure.savefig(bitmap, dpi=DPI, metadata={"Software": None})
    return [vector, bitmap]


def _convergence(trials: Sequence[Mapping[str, Any]], buckets: Sequence[int]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, (axis, title) in zip(panels, (("trial", "trial"), ("clock", "minute")), strict=True):
        for index, (bucket, line) in enumerate(series.convergence(trials, buckets, axis).items()):
            xs, ys = zip(*line, strict=True)
            panel.step(xs, ys, where="post", color=COLORS[index % len(COLORS)], label=f"batch {bucket}")
        panel.set_xlabel(title)
    panels[0].set_ylabel("best time so far / built-in default")
    panels[0].legend(ncols=2)
    return figure


def _winners(summary: Mapping[str, Any]) -> Figure | None:
    from matplotlib.figure import Figure

    spans = winners.spans(summary)
    if not spans:
        return None
    figure = Figure(figsize=(7.5, 1.2 + 0.35 * len(spans)), layout="constrained")
    panel = figure.subplots()
    _draw(panel, spans, 1.0)
    panel.set_xlabel("time / baseline")
    if any(span.color for span in spans):
        for color, words in enumerate(winners.BASELINES.values()):
            panel.plot([], [], color=COLORS[color], label=words)
        panel.legend()
    return figure


def _effects(summary: Mapping[str, Any]) -> Figure | None:
    from matplotlib.figure import Figure

    found = {name: knobs.spans(summary, name) for name in summary["effects"]["knobs"]}
    found = {name: spans for name, spans in found.items() if spans}
    if not found:
        return None
    rows = -(-len(found) // 3)
    figure = Figure(figsize=(10, 2.8 * rows), layout="constrained")
    panels = figure.subplots(rows, 3, squeeze=False).flatten()
    for panel, (name, spans) in zip(panels, found.items(), strict=False):
        _draw(panel, spans, 0.0)
        panel.set_title(f"{name} against {effects.label(name, summary['effects']['knobs'][name]['default'])}")
        panel.locator_params(axis="x", nbins=5)
        panel.xaxis.set_major_formatter("{x:+.1%}")
        panel.tick_params(axis="x", labelsize=8)
    for panel in panels[len(found) :]:
        panel.set_axis_off()
    figure.supxlabel("change of time over all points, with its interval; right of 0 is slower")
    return figure


def _draw(panel: Any, spans: Sequence[Span], same: float) -> None:
    """Intervals from top to bottom, and a line where nothing changes."""
    for row, span in enumerate(spans):
        color = COLORS[span.color % len(COLORS)]
        panel.plot([span.low, span.high], [row, row], color=color, linewidth=2)
        panel.plot([span.value], [row], color=color, marker="o", markersize=4)
    panel.axvline(same, color="grey", linestyle="--", linewidth=1)
    panel.set_yticks(range(len(spans)), [span.label for span in spans])
    panel.set_ylim(len(spans) - 0.5, -0.5)


def _knobs(trials: Sequence[Mapping[str, Any]]) -> Figure | None:
    from matplotlib.figure import Figure

    groups = series.knob_groups(trials)
    if not groups:
        return None
    rows = -(-len(groups) // 3)
    figure = Figure(figsize=(9, 2.6 * rows), layout="constrained")
    panels = figure.subplots(rows, 3, squeeze=False, sharey=True).flatten()
    for panel, (knob, values) in zip(panels, groups.items(), strict=False):
        panel.boxplot(list(values.values()), tick_labels=list(values), showfliers=True, flierprops={"markersize": 2})
        panel.set_title(knob)
        panel.tick_params(labelsize=8)
    ratios = [ratio for values in groups.values() for group in values.values() for ratio in group]
    low, high = 0.97 * min(ratios), 1.03 * max(ratios)
    panels[0].set_yscale("log")
    panels[0].minorticks_off()
    panels[0].set_yticks([tick for tick in TICKS if low < tick < high])
    panels[0].yaxis.set_major_formatter("{x:g}")
    panels[0].set_ylim(low, high)
    for panel in panels[len(groups) :]:
        panel.set_axis_off()
    figure.supylabel("time / built-in default")
    return figure
