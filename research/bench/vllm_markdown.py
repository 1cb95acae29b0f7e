"""The results of `mjolnir bench vllm` and `mjolnir verify vllm` as Markdown, for the README."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mjolnir.research.bench import targets
from mjolnir.research.bench import vllm_rows as files
from mjolnir.research.bench.targets import line_of
from mjolnir.research.bench.vllm_rows import BUILT_IN, STOCK, TARGETS, TUNED, Row

TITLES = {TUNED: "Mjolnir tuned", BUILT_IN: "Mjolnir untuned", **{name: name for name in STOCK}}
"""Contenders in the order of the columns."""


def page(results: Mapping[str, Any]) -> str:
    """The tables of a result file of the bench, and how it was taken."""
    rows = results["rows"]
    head = ["model", "batch x context", *TITLES.values(), "attention, times faster", "tokens/s, times more"]
    lines = [line_of(head), line_of(["---"] * len(head))]
    for (model, batch, context), here in files.points(rows).items():
        cells = [_times(here, name) for name in TITLES]
        lines.append(line_of([model, f"{batch} x {context}", *cells, *_ratios(here)]))
    return "\n".join([*lines, "", targets.table(TARGETS, results["figures"]), _origin(results["taken"]), ""])


def _times(here: Mapping[str, Row], name: str) -> str:
    """Attention's microseconds of a step, and tokens a second."""
    if name not in here:
        return ""
    attention = here[name]["attention_us"]
    return f"{'-' if attention is None else f'{attention:.0f}'} us, {here[name]['tokens_per_s']:.0f}/s"


def _ratios(here: Mapping[str, Row]) -> list[str]:
    return ["" if value is None else f"{value:.2f}" for value in (files.speedup(here), files.token_ratio(here))]


def _origin(taken: Mapping[str, Any]) -> str:
    part = taken["parts"][-1]
    runner = "V2" if part["v2_runner"] else "V1"
    missing = sorted({name for part in taken["parts"] for name in part["not_run"]})
    return (
        f"{taken['device']}, vLLM {part['vllm']}, torch {part['torch']}, model runner {runner}, "
        f"fp8 KV, full CUDA graphs. Attention's time of a step by profiler with what prepares Q, merge and plan, and "
        f"tokens a second; ratios to the best of vLLM's own backends at the point."
        + (f" Not run: {', '.join(missing)}." if missing else "")
    )


def verified(results: Mapping[str, Any]) -> str:
    """A result file of `mjolnir verify vllm` in a table: a line for each way of running, over all stock backends."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in results["rows"]:
        groups.setdefault(
            tuple(str(row[name] or "-") for name in ("mode", "runner", "layout", "block_size")), []
        ).append(row)
    head = [
        "mode",
        "runner",
        "layout",
        "block",
        "against",
        "steps compared",
        "largest difference, nats",
        "steps on Mjolnir",
        "",
    ]
    lines = [line_of(head), line_of(["---"] * len(head))]
    for key, rows in groups.items():
        whole = [row for row in rows if "most" in row]
        most = max((row["most"] for row in whole if row["most"] is not None), default=None)
        numbers = [
            ", ".join(sorted(row["against"] for row in rows)), str(sum(row["shared"] for row in whole)),
            "" if most is None else f"{most:.3f}", str(max((row["mjolnir_steps"] for row in whole), default=0)),
        ]  # fmt: skip
        lines.append(line_of([*key, *numbers, _verdict(key[0], rows)]))
    taken = results["taken"]
    return "\n".join([*lines, "", f"{taken['device']}, vLLM {taken['vllm']}, torch {taken['torch']}.", ""])


def _verdict(mode: str, rows: Sequence[Row]) -> str:
    if any(row["problems"] for row in rows):
        return "wrong"
    return "found wrong, as it has to be" if mode == "control" else "right"
