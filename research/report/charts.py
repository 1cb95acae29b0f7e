"""Small charts as SVG text for the report page, drawn here so that the page has the same bytes on every machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

COLORS = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#0891b2", "#65a30d", "#dc2626", "#475569")
"""One colour a bucket, in order; told apart on white and on dark grounds."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The plotting area in SVG units and the data ranges that fill it."""

    width: int
    height: int
    x: tuple[float, float]
    y: tuple[float, float]
    left: int = 44
    right: int = 10
    top: int = 10
    bottom: int = 38

    def at(self, x: float, y: float) -> tuple[float, float]:
        """The place of a data point; larger y is higher."""
        across = (x - self.x[0]) / (self.x[1] - self.x[0] or 1)
        up = (y - self.y[0]) / (self.y[1] - self.y[0] or 1)
        inner = (self.width - self.left - self.right, self.height - self.top - self.bottom)
        return self.left + across * inner[0], self.top + (1 - up) * inner[1]


def lines(series: Mapping[str, Sequence[tuple[float, float]]], *, x_title: str, y_title: str) -> Markup:
    """Step lines of several series over one x axis, with a legend below; "" without data."""
    points = [point for line in series.values() for point in line]
    if not points:
        return Markup("")
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    frame = Frame(640, 300, (min(xs), max(xs)), _padded(min(ys), max(ys)))
    parts = [_axes(frame, x_title, y_title)]
    for index, line in enumerate(series.values()):
        parts.append(f'<path d="{_steps(frame, line)}" fill="none" stroke="{_color(index)}" stroke-width="2"/>')
    legend = "".join(
        f'<span><i style="background:{_color(index)}"></i>{escape(name)}</span>' for index, name in enumerate(series)
    )
    return Markup(_svg(frame, parts, f"{y_title} by {x_title}") + f'<p class="legend">{legend}</p>')


def dots(title: str, groups: Mapping[str, Sequence[float]]) -> Markup:
    """One column of dots for each group of values, with a bar at its median, on a logarithmic axis; "" without data."""
    groups = {name: [math.log(value) for value in group] for name, group in groups.items()}
    values = [value for group in groups.values() for value in group]
    if not values:
        return Markup("")
    frame = Frame(320, 200, (-0.5, len(groups) - 0.5), _padded(min(values), max(values)))
    parts = [_grid(frame, math.exp)]
    for place, (name, group) in enumerate(groups.items()):
        parts += [_dot(frame, place + _jitter(number), value) for number, value in enumerate(group)]
        x, y = frame.at(place, _median(group))
        parts.append(f'<path d="M{x - 9:.1f} {y:.1f}h18" stroke="currentColor" stroke-width="2"/>')
        parts.append(f'<text x="{x:.1f}" y="{frame.height - 18}" text-anchor="middle">{escape(name)}</text>')
    return Markup(_svg(frame, parts, title))


def _svg(frame: Frame, parts: Sequence[str], label: str) -> str:
    body = "".join(parts)
    return f'<svg viewBox="0 0 {frame.width} {frame.height}" role="img" aria-label="{escape(label)}">{body}</svg>'


def _axes(frame: Frame, x_title: str, y_title: str) -> str:
    low, high = frame.x
    ticks = [low, (low + high) / 2, high] if high > low else [low]
    labels = "".join(
        f'<text x="{frame.at(tick, 0)[0]:.1f}" y="{frame.height - 22}" text-anchor="{anchor}">{_tick(tick)}</text>'
        for tick, anchor in zip(ticks, ("start", "middle", "end"), strict=False)
    )
    middle = frame.left + (frame.width - frame.left - frame.right) / 2
    title = f'<text x="{middle:.1f}" y="{frame.height - 6}" text-anchor="middle">{escape(x_title)}</text>'
    return _grid(frame) + labels + title + f"<title>{escape(y_title)}</title>"


def _tick(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.3g}"


def _grid(frame: Frame, label: Callable[[float], float] = float) -> str:
    parts = []
    for step in range(5):
        value = frame.y[0] + (frame.y[1] - frame.y[0]) * step / 4
        _, y = frame.at(frame.x[0], value)
        parts.append(f'<path class="grid" d="M{frame.left} {y:.1f}H{frame.width - frame.right}"/>')
        parts.append(f'<text x="{frame.left - 5}" y="{y + 4:.1f}" text-anchor="end">{label(value):.3f}</text>')
    return "".join(parts)


def _steps(frame: Frame, line: Sequence[tuple[float, float]]) -> str:
    x, y = frame.at(*line[0])
    parts = [f"M{x:.1f} {y:.1f}"]
    for point in line[1:]:
        x, y = frame.at(*point)
        parts.append(f"H{x:.1f}V{y:.1f}")
    return "".join(parts)


def _dot(frame: Frame, x: float, y: float) -> str:
    left, top = frame.at(x, y)
    return f'<circle cx="{left:.1f}" cy="{top:.1f}" r="2.5"/>'


def _jitter(number: int) -> float:
    """A fixed spread of equal values, so that dots do not hide one another."""
    return ((number * 7) % 11 - 5) / 22


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _padded(low: float, high: float) -> tuple[float, float]:
    room = (high - low) * 0.06 or max(abs(high) * 0.01, 1e-3)
    if not math.isfinite(room):
        raise ValueError("a chart needs finite values")
    return low - room, high + room


def _color(index: int) -> str:
    return COLORS[index % len(COLORS)]
