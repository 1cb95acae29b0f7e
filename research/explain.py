"""`mjolnir defaults show` and `explain`: the rows in force, and which of them serves a batch, step by step."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjolnir.backend.lookup import Defaults, Resolution
from mjolnir.backend.table import Row
from mjolnir.kernel.device import ARCHITECTURES, H200, Device
from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import resolve
from mjolnir.research.answer import Answer, MissingFailure, UsageFailure, asked
from mjolnir.research.naming import Names, interval

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_ITEMS = 1 << 20
"""Pairs of a sequence and a KV head whose plan is worked out: 131,072 sequences of 8 heads."""

MOST_TOKENS = 1 << 24
MOST_SMS = 1024


@dataclass(frozen=True, slots=True)
class Question:
    """What `explain` is asked: the problem, the device as text, and one step's batch and context."""

    geometry: Geometry
    placement: Placement
    device: str
    batch: int
    context: int


def load(table: Path | None, *, missing_ok: bool = False) -> Defaults:
    """The tables in force; a scratch `table` stands in for the user's, which is then not read.

    Raises:
        UsageFailure: there is no such table, or an environment variable that overrides a knob does not parse.
    """
    from mjolnir.kernel.sources import kernel_hash

    if table is not None and not missing_ok and not table.exists():
        raise UsageFailure(f"there is no table {table}")
    with asked():
        return Defaults.load(os.environ, kernel_hash=kernel_hash(), scratch=table)


def show(defaults: Defaults) -> Answer:
    """All rows of all tables, and what was skipped in them."""
    from rich.console import Group
    from rich.table import Table as View

    view = View(box=None, pad_edge=False)
    for title in ("table", "device", "problem", "batch", "setting", "of the default's time", "tag"):
        view.add_column(title, overflow="fold")
    for table in defaults.tables:
        for row in table.rows:
            view.add_row(*_cells(table.name, row))
    data = {
        "tables": [
            {"name": table.name, "rows": [row.as_dict() for row in table.rows], "problems": list(table.problems)}
            for table in defaults.tables
        ],
        "built_in": Setting().as_dict(),
    }
    count = sum(len(table.rows) for table in defaults.tables)
    notes = [f"{table.name}: {problem}" for table in defaults.tables for problem in table.problems]
    head = view if count else "no rows; everything is served by the built-in rule"
    return Answer(data, Group(head, f"built-in default: {Setting()}", *notes))


def _cells(table: str, row: Row) -> tuple[str, ...]:
    key = row.key
    problem = (
        f"{key.heads_q}/{key.heads_kv}xd{key.head_dim} page {key.page_size} q {key.q_len} {key.kv_format} {key.layout}"
    )
    setting = Names(key.geometry, key.hardware)(row.setting)
    ratio = interval(row.certificate.get("ratio_default"))
    return table, key.device, problem, f"<= {key.batch}", setting, ratio, str(row.certificate.get("tag", "-"))


def explain(question: Question, defaults: Defaults) -> Answer:
    """Which row serves, every step that led there, and what the setting does at this batch and context.

    Raises:
        UsageFailure: an unknown device, or knobs that cannot run there.
    """
    device = find_device(question.device, [row for table in defaults.tables for row in table.rows])
    _require_size(question, device)
    with asked():
        found = defaults.lookup(device, question.geometry, question.placement, question.batch)
    effect = plan_effect(question, device, found.setting, found.engine)
    data = {**found.as_dict(), "batch": question.batch, "context": question.context, "plan": effect}
    return Answer(data, _view(question, found, effect))


def _require_size(question: Question, device: Device) -> None:
    """Refuse what no card runs: working its plan out would take memory and time without end."""
    limits = (
        ("--batch times KV heads", question.batch * question.geometry.heads_kv, MOST_ITEMS),
        ("--context", question.context, MOST_TOKENS),
        ("--device: the number of SMs", device.sm_count, MOST_SMS),
    )
    for name, value, most in limits:
        if value > most:
            raise UsageFailure(f"{name} is at most {most:,} here")


def find_device(text: str, rows: Sequence[Row]) -> Device:
    """The device that `text` means: auto, cuda:<i>, a known name or part of one, or ARCH/SMS/NAME.

    Raises:
        UsageFailure: nothing known has that name, or several have.
        MissingFailure: a device of this machine is asked for, and there is none.
    """
    arch, *rest = text.split("/", 2)
    if arch in ARCHITECTURES and len(rest) == 2:
        with asked(f"--device {text!r}"):
            return Device(arch, rest[1], int(rest[0]))
    known = sorted(
        {H200, *(row.key.hardware for row in rows)}, key=lambda device: (device.name, device.sm_count, device.mig)
    )
    names = ", ".join(f"{device.arch}/{device.sm_count}/{device.name}" for device in known)
    if text == "auto" or text.startswith("cuda"):
        return _device_here(
            text, f"name one with --device, as ARCH/SMS/NAME or by part of a known name; known: {names}"
        )
    matches = [device for device in known if text.lower() in device.name.lower()]
    if len(matches) != 1:
        raise UsageFailure(
            f"--device {text!r} fits {len(matches)} of the known devices ({names}); name any other as ARCH/SMS/NAME"
        )
    return matches[0]


def _device_here(text: str, instead: str) -> Device:
    from mjolnir.kernel.device import current_device
    from mjolnir.research.benches import require_gpu

    index = require_gpu(text, instead)
    try:
        return current_device(index)
    except RuntimeError as error:
        raise MissingFailure(f"{error}; {instead}") from error


def plan_effect(question: Question, device: Device, setting: Setting, engine: str | None = None) -> dict[str, Any]:
    """What the plan of one step comes to: CTAs, tiles, and into how many chunks an item is cut."""
    from collections import Counter

    from mjolnir.kernel.engine import engine_for
    from mjolnir.kernel.plan import make_plan

    geometry = question.geometry
    grid = device.sm_count * setting.ctas_per_sm
    lengths = [question.context] * question.batch
    chosen = engine_for(geometry, device.arch, engine, setting.consumer_warps)
    plan = make_plan(
        lengths, geometry.heads_kv * chosen.blocks, grid, setting.max_splits, capacity=max(1, question.context)
    )
    chunks = list(plan.chunks())
    by_item = Counter(chunk.item for chunk in chunks)
    by_cta = Counter[int]()
    for chunk in chunks:
        by_cta[chunk.cta] += chunk.last - chunk.first
    return {
        "ctas": grid,
        "busy_ctas": len(by_cta),
        "tiles": sum(by_cta.values()),
        "tiles_of_the_busiest_cta": max(by_cta.values()),
        "most_chunks_of_an_item": max(by_item.values()),
        "kv_stages": resolve(setting, geometry, device, chosen).kv_stages,
    }


def _view(question: Question, found: Resolution, effect: dict[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.table import Table as View

    steps = View(box=None, pad_edge=False)
    for title in ("step", "where", "rule", "outcome", "why"):
        steps.add_column(title, overflow="fold")
    for number, step in enumerate(found.steps, 1):
        steps.add_row(str(number), step.source, step.rule, step.outcome, step.reason)
    lines: list[RenderableType] = [
        f"Asked: {found.key}",
        "",
        steps,
        "",
        f"Serves: {found.setting} (engine {found.engine})",
    ]
    if found.row:
        certificate = found.row.certificate
        ratio = interval(certificate.get("ratio_default"))
        lines.append(f"Evidence: tag {certificate.get('tag')}, {ratio} of the built-in default's time")
    if found.stale:
        lines.append("The row is stale: it was measured with other kernel sources; it fits and still serves.")
    lines.append(
        f"At {question.batch} x {question.context} tokens: {effect['tiles']} KV tiles over {effect['busy_ctas']} of "
        f"{effect['ctas']} CTAs, at most {effect['tiles_of_the_busiest_cta']} each; an item is cut into at most "
        f"{effect['most_chunks_of_an_item']} chunks; the ring has {effect['kv_stages']} stages."
    )
    return Group(*lines)
