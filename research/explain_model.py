"""`mjolnir defaults explain --model`: what a server of a model would use, for every batch size."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjolnir.backend.explain import Explanation, Served
from mjolnir.backend.explain import explain as explain_backend
from mjolnir.backend.lookup import Defaults
from mjolnir.kernel.geometry import Placement
from mjolnir.research.answer import Answer, asked
from mjolnir.research.explain import find_device
from mjolnir.research.serving.config import Serving, kinds
from mjolnir.research.serving.model import read_config

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked.

    Attributes:
        model: a `config.json`, or the folder that holds it.
        device: as text, see `explain.find_device`.
        serving: the server's options.
        placement: how the cache lies; None = as the backend asks vLLM to lay it.
    """

    model: Path
    device: str
    serving: Serving
    placement: Placement | None = None


def explain_model(question: Question, defaults: Defaults) -> Answer:
    """For each kind of attention layer, why it is not served, or what serves each batch size.

    Raises:
        UsageFailure: the config cannot be read or understood, an unknown device, or knobs that cannot run there.
    """
    device = find_device(question.device, [row for table in defaults.tables for row in table.rows])
    config = read_config(question.model)
    most = max(1, question.serving.max_num_seqs)
    with asked(f"--model {question.model}"):
        found = {
            name: explain_backend(
                model, device, environ=os.environ, defaults=defaults, placement=question.placement,
                batches=[min(most, 1 << power) for power in range(most.bit_length() + 1)],
                speculative_tokens=question.serving.speculative_tokens,
            )
            for name, model in kinds(config, question.serving)
        }  # fmt: skip
    data = {
        "model": str(question.model), "device": device.name,
        "layers": {
            name: {"refusal": one.refusal, "rows": [_as_dict(row) for row in one.rows]} for name, one in found.items()
        },
    }  # fmt: skip
    return Answer(data, _view(found, device.name))


def _as_dict(row: Served) -> dict[str, Any]:
    return {"batch": row.batch, "q_len": row.q_len, "causal": row.causal, **row.resolution.as_dict()}


def _view(found: dict[str, Explanation], device: str) -> RenderableType:
    from rich.console import Group
    from rich.table import Table as View

    parts: list[RenderableType] = []
    for name, one in found.items():
        if one.refusal:
            parts.append(f"Layers of kind {name} run on the fallback: {one.refusal}")
            continue
        parts.append(f"Layers of kind {name} run on Mjolnir on {device}:")
        view = View(box=None, pad_edge=False)
        for title in ("batch", "query tokens", "engine", "setting", "from", "tag"):
            view.add_column(title, overflow="fold")
        for row in one.rows:
            view.add_row(*_cells(row))
        parts.append(view)
    return Group(*parts)


def _cells(row: Served) -> tuple[str, ...]:
    found = row.resolution
    sources = Counter(found.sources.values())
    where = ", ".join(name if len(sources) == 1 else f"{name} ({count} knobs)" for name, count in sources.items())
    tag = str(found.row.certificate.get("tag", "-")) if found.row else "-"
    query = f"{row.q_len}{'' if row.causal else ', not causal'}"
    return f"<= {row.batch}", query, found.engine, str(found.setting), where, tag + (", stale" if found.stale else "")
