"""Figures beside what they are held against, for all benches that have targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Targets = Mapping[str, tuple[str, float]]
"""By figure: ">=" or "<=", and the target."""


def verdict(targets: Targets, name: str, value: float) -> str:
    """`met`, or by how much it is missed; nothing where there is no target."""
    if name not in targets:
        return ""
    sign, target = targets[name]
    missed = target - value if sign == ">=" else value - target
    return "met" if missed <= 0 else f"missed by {missed:.3g}"


def table(targets: Targets, figures: Mapping[str, float]) -> str:
    """Markdown: every figure that has a target, and whether it is met."""
    lines = [line_of(["figure", "value", "target", ""]), line_of(["---"] * 4)]
    for name, (sign, target) in targets.items():
        words = {">=": "at least", "<=": "at most"}[sign]
        value = f"{figures[name]:.3f}" if name in figures else "not measured"
        told = verdict(targets, name, figures[name]) if name in figures else ""
        lines.append(line_of([f"`{name}`", value, f"{words} {target:g}", told]))
    return "\n".join([*lines, ""])


def line_of(values: Sequence[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(values)} |"
