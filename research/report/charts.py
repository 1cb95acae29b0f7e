"""Small charts as SVG text for the report page, drawn here so that the page has the same bytes on every machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    left: int = 46
    right: int = 12
    top: int = 10
    bottom: int = 38

    def at(self, x: float, y: float) -> tuple[float, float]:
        """The place of a data point; larger y is higher."""
        across = (x - self.x[0]) / (self.x[1] - self.x[0] or 1)
        up = (y - self.y[0]) / (self.y[1] - self.y[0] or 1)
        inner = (self.width - self.left - self.right, self.height - self.top - self.bottom)
        return self.left + across * inner[0], self.top + (1 - up) * inner[1]


@dataclass(frozen=True, slots=True)
class Span:
    """An interval to draw: what it is of, its ends, the estimate in it, and the number of its colour."""

    label: str
    low: float
    value: float
    high: float
    color: int = 0


def lines(series: Mapping[str, Sequence[tuple[float, float]]], *, x_title: str, y_title: str) -> Markup:
    """Step lines of several series over one x axis, with a legend below; "" without data."""
    points = [point for line in series.values() for point in line]
    if not points:
        return Markup("")
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    frame = Frame(420, 260, (min(xs), max(xs)), _padded(min(ys), max(ys)))
    parts = [_across(frame, _ticks(*frame.y)), _x_labels(frame, _ticks(*frame.x)), _x_title(frame, x_title)]
    for index, line in enumerate(series.values()):
        parts.append(f'<path d="{_steps(frame, line)}" fill="none" stroke="{_color(index)}" stroke-width="2"/>')
    return _svg(frame, parts, f"{y_title} by {x_title}") + legend(series)


def legend(names: Iterable[str]) -> Markup:
    """The names of colours, in their order."""
    entries = (
        Markup('<span><i style="background:{}"></i>{}</span>').format(_color(index), name)
        for index, name in enumerate(names)
    )
    return Markup('<p class="legend">{}</p>').format(Markup("").join(entries))


def dots(title: str, groups: Mapping[str, Sequence[float]]) -> Markup:
    """One column of dots for each group of values, with a bar at its median, on a logarithmic axis; "" without data."""
    groups = {name: [math.log(value) for value in group] for name, group in groups.items()}
    values = [value for group in groups.values() for value in group]
    if not values:
        return Markup("")
    frame = Frame(360, 190, (-0.5, len(groups) - 0.5), _padded(min(values), max(values)), bottom=24)
    parts = [_across(frame, _even(*frame.y), math.exp)]
    for place, (name, group) in enumerate(groups.items()):
        parts += [_dot(frame, place + _jitter(number), value) for number, value in enumerate(group)]
        x, y = frame.at(place, _median(group))
        parts.append(f'<path d="M{x - 9:.1f} {y:.1f}h18" stroke="currentColor" stroke-width="2"/>')
        parts.append(_text(x, frame.height - 6, name, "middle"))
    return _svg(frame, parts, title)


def intervals(
    title: str, spans: Sequence[Span], *, same: float, label: Callable[[float], str], x_title: str = ""
) -> Markup:
    """One row for each interval, its estimate a dot; "" without any.

    Args:
        title: what a reader who cannot see it is told.
        spans: from top to bottom; equal labels that follow one another are written once.
        same: the value that means no difference; a line marks it.
        label: writes a value of the axis.
        x_title: below the axis.
    """
    if not spans:
        return Markup("")
    x = _padded(min(same, *(span.low for span in spans)), max(same, *(span.high for span in spans)))
    left = 14 + 7 * max(len(span.label) for span in spans)
    bottom = 40 if x_title else 24
    frame = Frame(360, 22 * len(spans) + 6 + bottom, x, (0, len(spans)), left=left, top=6, bottom=bottom)
    ticks = _ticks(*x, most=4)
    parts = [_down(frame, tick, "grid") for tick in ticks] + [
        _down(frame, same, "same"),
        _x_labels(frame, ticks, label),
    ]
    parts += [_span(frame, row, span, spans[row - 1].label if row else "") for row, span in enumerate(spans)]
    parts.append(_x_title(frame, x_title))
    return _svg(frame, parts, title)


def _span(frame: Frame, row: int, span: Span, above: str) -> str:
    (low, y), (high, _) = (frame.at(end, frame.y[1] - row - 0.5) for end in (span.low, span.high))
    x, _ = frame.at(span.value, 0)
    color = _color(span.color)
    bar = f'<path d="M{low:.1f} {y:.1f}H{max(high, low + 1):.1f}" stroke="{color}" stroke-width="3"/>'
    dot = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" style="fill:{color};fill-opacity:1"/>'
    return bar + dot + ("" if span.label == above else _text(frame.left - 8, y + 4, span.label, "end"))


def _svg(frame: Frame, parts: Sequence[str], title: str) -> Markup:
    body = "".join(parts)
    head = f'<svg viewBox="0 0 {frame.width} {frame.height}" role="img" aria-label="{escape(title)}">'
    return Markup(f"{head}{body}</svg>")


def _across(frame: Frame, ticks: Sequence[float], label: Callable[[float], float] = float) -> str:
    """Level lines with their values at the left."""
    parts = []
    for tick in ticks:
        _, y = frame.at(frame.x[0], tick)
        parts.append(f'<path class="grid" d="M{frame.left} {y:.1f}H{frame.width - frame.right}"/>')
        parts.append(_text(frame.left - 6, y + 4, f"{label(tick):.2f}", "end"))
    return "".join(parts)


def _down(frame: Frame, value: float, kind: str) -> str:
    x, _ = frame.at(value, 0)
    return f'<path class="{kind}" d="M{x:.1f} {frame.top}V{frame.height - frame.bottom}"/>'


def _x_labels(frame: Frame, ticks: Sequence[float], label: Callable[[float], str] = "{:g}".format) -> str:
    y = frame.height - frame.bottom + 16
    return "".join(_text(frame.at(tick, 0)[0], y, label(tick), "middle") for tick in ticks)


def _x_title(frame: Frame, title: str) -> str:
    middle = frame.left + (frame.width - frame.left - frame.right) / 2
    return _text(middle, frame.height - 5, title, "middle") if title else ""


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _ticks(low: float, high: float, most: int = 5) -> list[float]:
    """At most `most` round values between `low` and `high`: multiples of 1, 2 or 5 times a power of ten."""
    if high <= low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    for step in (factor * power for factor in (1, 2, 5, 10, 20)):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            return [round(number * step, 12) for number in range(first, last + 1)]
    return [low, high]


def _even(low: float, high: float) -> list[float]:
    return [low + (high - low) * step / 4 for step in range(5)]


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
