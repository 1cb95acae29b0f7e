"""Rows of `vllm-<device>.json`, and the figures that follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from mjolnir.research.bench import result_file
from mjolnir.research.bench.targets import verdict
from mjolnir.tuner.statistics import median_interval

SCHEMA = "mjolnir.bench-vllm/2"
TUNED, BUILT_IN = "mjolnir", "mjolnir-default"
STOCK = ("TRITON_ATTN", "FLASH_ATTN", "FLASHINFER")

LONG = 32768
"""The context whose attention is compared."""

LARGE_SHARE = 0.2
"""Share of attention in a step above which more tokens a second are expected."""

TARGETS: Mapping[str, tuple[str, float]] = {
    "attn_speedup_b1": (">=", 1.5), "attn_speedup_b8": (">=", 1.3), "attn_speedup_b64": (">=", 1.10),
    "tokens_vs_best_min": (">=", 0.98), "tokens_vs_best_large_share_min": (">=", 1.0),
    "host_us_per_step": ("<=", 50.0), "mjolnir_step_share": (">=", 0.99),
}  # fmt: skip

POINT = ("model", "batch", "context")
NAMES = ("contender", *POINT)
"""What names a row: of two with the same name the newer one counts."""

Row = Mapping[str, Any]


def make(contender: str, model: str, shape: Mapping[str, int], windows: Sequence[Row], profile: Row) -> dict[str, Any]:
    """The row of a contender at one point, of what its windows and its profile gave: `timing.Window` and
    `timing.Profile` as JSON, the former with the point's `batch` and `context`.
    """
    steps, ran = (sum(window[name] for window in windows) for name in ("decode_steps", "mjolnir_steps"))
    ours = contender in (TUNED, BUILT_IN)
    samples = {name: [round(window[name], 2) for window in windows] for name in ("step_us", "tokens_per_s", "host_us")}
    middle = {name: median(values) for name, values in samples.items()}
    row = {
        "contender": contender, "model": model, "batch": windows[0]["batch"], "context": windows[0]["context"], **shape,
        **{name: round(value, 2) for name, value in middle.items()},
        "spread": round((max(samples["step_us"]) - min(samples["step_us"])) / middle["step_us"], 4),
        "attention_us": None if profile["attention_us"] is None else round(profile["attention_us"], 2),
        "mjolnir_step_share": round(ran / steps, 4) if ours and steps else None,
        "windows": len(windows), "samples": samples, "kernels": profile["kernels"], "others": profile["others"],
    }  # fmt: skip
    return {**row, **({"trouble": profile["trouble"]} if profile["trouble"] else {})}


def merge(*parts: Iterable[Row]) -> list[Row]:
    """All rows, later ones in the place of earlier ones of the same name; sorted by point, then contender."""
    found = {tuple(row[name] for name in NAMES): row for part in parts for row in part}
    return sorted(found.values(), key=lambda row: (row["model"], row["context"], row["batch"], row["contender"]))


def points(rows: Iterable[Row]) -> dict[tuple[Any, ...], dict[str, Row]]:
    """The rows of each point, by contender."""
    found: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in POINT), {})[row["contender"]] = row
    return found


def stock_values(here: Mapping[str, Row], name: str) -> list[float]:
    """What the stock backends have of `name` at a point."""
    return [float(here[stock][name]) for stock in STOCK if stock in here and here[stock][name]]


def speedup(here: Mapping[str, Row]) -> float | None:
    """Attention's time of the best stock backend over the tuned kernel's."""
    ours, stock = here.get(TUNED, {}).get("attention_us"), stock_values(here, "attention_us")
    return min(stock) / ours if ours and stock else None


def token_ratios(here: Mapping[str, Row]) -> list[float]:
    """Tokens a second with the tuned kernel over those of the best stock backend, by window: those of one round lie
    seconds apart.
    """
    stock = max((here[name] for name in STOCK if name in here), key=lambda row: row["tokens_per_s"], default=None)
    if TUNED not in here or stock is None:
        return []
    pairs = zip(here[TUNED]["samples"]["tokens_per_s"], stock["samples"]["tokens_per_s"], strict=False)
    return [ours / theirs for ours, theirs in pairs]


def token_ratio(here: Mapping[str, Row]) -> float | None:
    """The median of `token_ratios`."""
    found = token_ratios(here)
    return median(found) if found else None


def attention_share(here: Mapping[str, Row]) -> float | None:
    """Share of attention in the step of the stock backend that makes most tokens a second."""
    stock = [here[name] for name in STOCK if name in here and here[name]["attention_us"]]
    best = max(stock, key=lambda row: row["tokens_per_s"], default=None)
    return best["attention_us"] / best["step_us"] if best else None


def figures(rows: Sequence[Row]) -> dict[str, float]:
    """Every figure that the rows allow, the worst over all models and points that it is about; others are absent.

    `tokens_vs_best_min_low` and `_high` are bounds of the ratio at the point of `tokens_vs_best_min`, see
    `median_interval`.
    """
    places = points(rows)
    found: dict[str, float | None] = {}
    for batch in (1, 8, 64):
        here = [speedup(one) for (_, size, context), one in places.items() if (size, context) == (batch, LONG)]
        found[f"attn_speedup_b{batch}"] = _least(here)
    worst = min((one for one in map(token_ratios, places.values()) if one), key=median, default=None)
    if worst:
        found["tokens_vs_best_min"] = median(worst)
        bounds = median_interval(worst)
        found["tokens_vs_best_min_low"], found["tokens_vs_best_min_high"] = bounds.low, bounds.high
    large = [one for one in places.values() if (attention_share(one) or 0.0) > LARGE_SHARE]
    found["tokens_vs_best_large_share_min"] = _least(map(token_ratio, large))
    ours = [row for row in rows if row["contender"] == TUNED]
    found["host_us_per_step"] = max((row["host_us"] for row in ours), default=None)
    found["mjolnir_step_share"] = _least(row["mjolnir_step_share"] for row in ours)
    return {name: round(value, 4) for name, value in found.items() if value is not None}


def _least(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)


def read(path: Path) -> dict[str, Any]:
    """A result file.

    Raises:
        UsageFailure: it cannot be read, or is none of this bench.
    """
    return result_file.read(path, SCHEMA, "`bench vllm`", _whole)


def _whole(data: Mapping[str, Any]) -> bool:
    return all(name in row for row in data["rows"] for name in NAMES) and bool(data["taken"]["device"])


def lines(rows: Sequence[Row]) -> list[str]:
    """A line for each row, with a head."""
    head = f"{'tokens/s':>10} {'step us':>9} {'spread':>7} {'attn us':>9} {'host us':>8} {'share':>6}"
    told = [f"{'model':<14} {'point':>10} {'contender':<16} {head}"]
    for row in rows:
        attention = "-" if row["attention_us"] is None else f"{row['attention_us']:.1f}"
        share = "-" if row["mjolnir_step_share"] is None else f"{row['mjolnir_step_share']:.3f}"
        point = f"{row['batch']}x{row['context']}"
        numbers = (
            f"{row['tokens_per_s']:>10.1f} {row['step_us']:>9.1f} {row['spread']:>7.3f} {attention:>9} "
            f"{row['host_us']:>8.1f} {share:>6}"
        )
        told.append(f"{row['model']:<14} {point:>10} {row['contender']:<16} {numbers}")
    return told


def ratio_lines(rows: Sequence[Row]) -> list[str]:
    """A line for each point, with the ratio of tokens a second, its bounds, and attention's share of a step."""
    told = []
    for (model, batch, context), here in points(rows).items():
        if found := token_ratios(here):
            bounds = median_interval(found)
            share = attention_share(here)
            part = "" if share is None else f"; attention is {share:.0%} of the best stock backend's step"
            ratio = f"{median(found):.3f} times, {bounds.low:.3f} to {bounds.high:.3f}"
            told.append(f"{model} {batch}x{context}: tokens/s {ratio}{part}")
    return told


def told(figures: Mapping[str, float]) -> list[str]:
    """A line for each figure, with its target and whether it is met."""
    return [f"{name:>32} {value:9.3f}  {verdict(TARGETS, name, value)}".rstrip() for name, value in figures.items()]
