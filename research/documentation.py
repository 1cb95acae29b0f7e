"""The parts of README.md that are made from code and results: `python -m mjolnir.research.documentation README.md`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mjolnir.backend.overrides import variable
from mjolnir.backend.settings import Settings
from mjolnir.backend.table import Row, Table
from mjolnir.kernel.knobs import KNOBS, Knob
from mjolnir.research.bench import fleet_markdown, knobs_markdown, live_markdown, markdown, rule_markdown, vllm_markdown

RESULTS = Path("research", "bench", "results")
KERNEL_RESULTS = RESULTS / "kernel-main-h200.json"
PEERS_RESULTS = "kernel-peers-*.json"
VLLM_RESULTS = "vllm-h200.json"
VERIFIED_RESULTS = "verify-vllm-h200.json"
KNOB_RESULTS = "knobs-*.json"
RULE_RESULTS = "rule-*.json"
LIVE_RESULTS = "tuner-live-*.json"
FLEET_RESULTS = "tuner-fleet-*.json"
TABLE = Path("backend", "defaults.json")
SHOWN = {"heads_q": 32, "heads_kv": 8, "head_dim": 128, "page_size": 64, "q_len": 1}
"""The geometry whose points the README shows one by one."""


def knobs_table(root: Path) -> str:
    """The knobs as a Markdown table; the same in every tree."""
    head = "| knob | values | default | environment variable | effect |\n|---|---|---|---|---|\n"
    return head + "".join(_knob_row(knob) for knob in KNOBS)


def _knob_row(knob: Knob) -> str:
    default = ("off", "on")[knob.default] if knob.is_switch else knob.default
    return f"| `{knob.name}` | {knob.domain()} | {default} | `{variable(knob)}` | {knob.help} |\n"


def settings_table(root: Path) -> str:
    """The settings of a server as a Markdown table, knobs left out: those have a table of their own."""
    head = "| environment variable | values | default | meaning |\n|---|---|---|---|\n"
    knobs = {variable(knob) for knob in KNOBS}
    rows = [row for row in Settings.documented() if row.variable not in knobs]
    return head + "".join(f"| `{row.variable}` | {row.allowed} | {row.default} | {row.meaning} |\n" for row in rows)


def vllm_tables(root: Path) -> str:
    """How vLLM on Mjolnir compares, in speed and in what it answers, where results are there."""
    speed, verified = (root / RESULTS / name for name in (VLLM_RESULTS, VERIFIED_RESULTS))
    parts = []
    if speed.exists():
        parts.append(vllm_markdown.page(json.loads(speed.read_text("utf-8"))))
    if verified.exists():
        parts.append(vllm_markdown.verified(json.loads(verified.read_text("utf-8"))))
    return "\n".join(parts) or "No results of a GPU are committed yet.\n"


def worth_table(root: Path) -> str:
    """What each knob is worth, and what the built-in rule costs, on every card of which there are results."""
    parts = [*_pages(root, KNOB_RESULTS, knobs_markdown.page), *_pages(root, RULE_RESULTS, rule_markdown.page)]
    return "\n".join(parts) or "No results of a recording are committed yet.\n"


def campaigns_table(root: Path) -> str:
    """What live campaigns proved on every card of which there are results."""
    parts = _pages(root, LIVE_RESULTS, live_markdown.page)
    return "\n".join(part for part in parts if part) or "No campaigns are committed yet.\n"


def fleet_table(root: Path) -> str:
    """What more devices of a host gained, of every kind of which there are results."""
    parts = _pages(root, FLEET_RESULTS, fleet_markdown.page)
    return "\n".join(parts) or "No campaign on several devices is committed yet.\n"


def _pages(root: Path, pattern: str, page: Callable[[Mapping[str, Any]], str]) -> list[str]:
    """`page` of each result file whose name fits the pattern."""
    return [page(json.loads(path.read_text("utf-8"))) for path in sorted((root / RESULTS).glob(pattern))]


def speed_table(root: Path) -> str:
    """The kernel beside its peers, from the newest results with all of them, else from those with one."""
    found = newest(root)
    if found is None:
        return main_table(root)
    path, results = found
    return markdown.page(results, path.relative_to(root))


def newest(root: Path) -> tuple[Path, Mapping[str, Any]] | None:
    """The results of `mjolnir bench kernel` that were taken last, of several of one day the last by name."""
    paths = sorted((root / RESULTS).glob(PEERS_RESULTS))
    found = [(path, json.loads(path.read_text("utf-8"))) for path in paths]
    return max(found, key=lambda one: (one[1]["taken"]["date"], one[0].name), default=None)


def main_table(root: Path) -> str:
    """The kernel beside one peer, and what tuning adds, from the results and the table of the tree at `root`."""
    results = json.loads((root / KERNEL_RESULTS).read_text("utf-8"))
    tuned = _tuned(Table.read(root / TABLE))
    lines = ["| batch x context | FlashInfer, us | Mjolnir untuned, us | times faster | tuned: share of untuned time |"]
    lines.append("|---|---|---|---|---|")
    for (batch, context), times in _times(results["rows"]).items():
        peer, ours = times["flashinfer-tc"], times["mjolnir-default"]
        share = tuned.get(1 << (batch - 1).bit_length(), "")
        lines.append(f"| {batch} x {context} | {peer:.1f} | {ours:.1f} | {peer / ours:.2f} | {share} |")
    return "\n".join([*lines, "", _origin(results), ""])


def _times(rows: list[Mapping[str, Any]]) -> dict[tuple[int, int], dict[str, float]]:
    times: dict[tuple[int, int], dict[str, float]] = {}
    for row in rows:
        if all(row[name] == value for name, value in SHOWN.items()):
            times.setdefault((row["batch"], row["context"]), {})[row["kernel"]] = row["us"]
    return times


def _tuned(table: Table) -> dict[int, str]:
    """Share of the default's time with its interval by bucket, of the rows for the geometry that is shown."""
    return {row.key.batch: _share(row) for row in table.rows if all(getattr(row.key, n) == v for n, v in SHOWN.items())}


def _share(row: Row) -> str:
    ratio = row.certificate["ratio_default"]
    return f"{ratio['value']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"


def _origin(results: Mapping[str, Any]) -> str:
    taken, figures = results["taken"], results["figures"]
    versions = taken["versions"]
    return (
        f"{taken['device']}, CUDA {versions['cuda']}, FlashInfer {versions['flashinfer-python']} tensor-core decode; "
        f"32/8 heads, head size 128, page 64, fp8 KV, bf16 query, merge included, cold L2. Over this and two more "
        f"geometries (page 16; 64/8 heads) the untuned kernel is {figures['geomean_vs_flashinfer_tc']:.2f} times "
        f"faster in the geometric mean, {figures['worst_vs_flashinfer_tc']:.2f} times at the worst point. The last "
        f"column is the certificate of the row that serves the batch's bucket, measured in the chain in which it is "
        f"served."
    )


SECTIONS: Mapping[str, Callable[[Path], str]] = {
    "settings: made from backend/settings.py": settings_table,
    "vLLM: made from research/bench/results": vllm_tables,
    "knobs: made from kernel/knobs.py": knobs_table,
    "worth: made from research/bench/results": worth_table,
    "speed: made from research/bench/results and backend/defaults.json": speed_table,
    "campaigns: made from research/bench/results": campaigns_table,
    "fleet: made from research/bench/results": fleet_table,
}
"""What each pair of marks in the README holds."""


def updated(readme: str, root: Path) -> str:
    """`readme` with every section made anew between its two marks, from the tree at `root`.

    Raises:
        ValueError: a mark is missing.
    """
    for title, make in SECTIONS.items():
        begin, end = f"<!-- {title} -->", f"<!-- end of {title.partition(':')[0]} -->"
        before, found, rest = readme.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"the text lacks {begin!r} or {end!r}")
        readme = f"{before}{begin}\n{make(root)}{end}{after}"
    return readme


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(updated(path.read_text("utf-8"), path.resolve().parent), "utf-8")
