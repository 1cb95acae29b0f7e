"""The results of `mjolnir bench vllm` and `mjolnir verify vllm` as Markdown, for the README."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from mjolnir.research.bench import targets
from mjolnir.research.bench import vllm_rows as files
from mjolnir.research.bench.targets import line_of
from mjolnir.research.bench.vllm_rows import BUILT_IN, STOCK, TARGETS, TUNED, Row
from mjolnir.tuner.statistics import median_interval

TITLES = {TUNED: "Mjolnir tuned", BUILT_IN: "Mjolnir untuned", **{name: name for name in STOCK}}
"""Contenders in the order of the columns."""


def page(results: Mapping[str, Any]) -> str:
    """The tables of a result file of the bench, and how it was taken."""
    rows = results["rows"]
    head = ["model", "batch x context", *TITLES.values(), "attention, times faster", "tokens/s, times more (95 %)"]
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
    faster, tokens = files.speedup(here), files.token_ratios(here)
    more = ""
    if tokens:
        bounds = median_interval(tokens)
        more = f"{median(tokens):.2f} ({bounds.low:.2f} to {bounds.high:.2f})"
    return ["" if faster is None else f"{faster:.2f}", more]


def _origin(taken: Mapping[str, Any]) -> str:
    part = taken["parts"][-1]
    runner = "V2" if part["v2_runner"] else "V1"
    missing = sorted({name for part in taken["parts"] for name in part["not_run"]})
    return (
        f"{taken['device']}, vLLM {part['vllm']}, torch {part['torch']}, model runner {runner}, "
        f"fp8 KV, full CUDA graphs. Attention's time of a step by profiler with what prepares Q, merge and plan, and "
        f"tokens a second; ratios to the best of vLLM's own backends at the point, of tokens the median over windows "
        f"that alternate, with bounds. Steps of 36 layers, which are two that are gone through 18 times."
        + (f" Not run: {', '.join(missing)}." if missing else "")
    )


def verified(results: Mapping[str, Any]) -> str:
    """A result file of `mjolnir verify vllm` in a table: a line for each mode of a model, over all stock backends,
    model runners, layouts and block sizes; what was wrong is named one by one.
    """
    modes: dict[tuple[str, str], list[Row]] = {}
    for row in results["rows"]:
        modes.setdefault((row["model"], row["mode"]), []).append(row)
    head = ["model", "mode", "runners", "layouts", "blocks", "against", "comparisons", "steps compared"]
    head += ["largest difference, nats", "steps on Mjolnir", ""]
    lines = [line_of(head), line_of(["---"] * len(head))]
    for (model, mode), rows in sorted(modes.items()):
        whole = [row for row in rows if "most" in row]
        most = max((row["most"] for row in whole if row["most"] is not None), default=None)
        numbers = [
            str(len(rows)), str(sum(row["shared"] for row in whole)), "" if most is None else f"{most:.3f}",
            str(max((row["mjolnir_steps"] for row in whole), default=0)),
        ]  # fmt: skip
        names = [_all_of(rows, name) for name in ("runner", "layout", "block_size", "against")]
        lines.append(line_of([model, mode, *names, *numbers, _verdict(mode, rows)]))
    taken = results["taken"]
    return "\n".join([*lines, "", f"{taken['device']}, vLLM {taken['vllm']}, torch {taken['torch']}.", ""])


def _all_of(rows: Sequence[Row], name: str) -> str:
    """The values of a column, each once; numbers by their size."""
    return ", ".join(str(value or "-") for value in sorted({row[name] for row in rows}))


def _verdict(mode: str, rows: Sequence[Row]) -> str:
    wrong = [row for row in rows if row["problems"]]
    if wrong:
        cases = (f"{row['runner'] or '-'} {row['layout'] or '-'} against {row['against']}" for row in wrong)
        return f"wrong, {len(wrong)} of {len(rows)}: {'; '.join(cases)}"
    return "found wrong, as it has to be" if mode == "control" else "right"
