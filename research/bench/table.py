"""The results of the kernel bench as text: every row, then the figures beside their targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mjolnir.research.bench.figures import TARGETS
from mjolnir.research.bench.rows import CHAIN, Row
from mjolnir.research.bench.targets import verdict


def lines(rows: Sequence[Row]) -> list[str]:
    """A line for each row, with a head."""
    titles = f"{'us':>9} {'p10':>9} {'p90':>9} {'GB/s':>6} {'error':>8}"
    head = f"{'geometry':>22} {'point':>20} {'kernel':>16} {titles}  layout and way"
    return [head, *map(line, rows)]


def line(row: Row) -> str:
    """One row."""
    geometry = f"{row['heads_q']}/{row['heads_kv']}xd{row['head_dim']},p={row['page_size']},q={row['q_len']}"
    error = "wrong" if row["error"] is None else f"{row['error']:.5f}"
    kernel = row["kernel"] + (" (chain)" if row["timing"] == CHAIN else "")
    way = f"{row['layout']} {row.get('way', '')}".strip()
    return (
        f"{geometry:>22} {row['lengths']:>20} {kernel:>16} {row['us']:9.2f} {row['us_p10']:9.2f} {row['us_p90']:9.2f} "
        f"{row['bytes'] / row['us'] / 1e3:6.0f} {error:>8}  {way}"
    )


def figure_lines(figures: Mapping[str, float]) -> list[str]:
    """A line for each figure, those with a target first, and whether it is met."""
    told = [f"{'figure':>26} {'value':>9}  target"]
    for name, (sign, target) in TARGETS.items():
        if name not in figures:
            told.append(f"{name:>26} {'absent':>9}  {sign} {target:g}")
        else:
            told.append(f"{name:>26} {figures[name]:9.3f}  {sign} {target:g} {verdict(TARGETS, name, figures[name])}")
    return told + [f"{name:>26} {value:9.3f}" for name, value in figures.items() if name not in TARGETS]
