"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Ledger = Annotated[
    Path | None,
    typer.Option(
        "--ledger", help="The ledger's folder; else $MJOLNIR_LEDGER, the checkout's research/, the user's data folder."
    ),
]


def known_tags(context: typer.Context, incomplete: str) -> list[str]:
    """The tags of the ledger that begin like this, for a shell's completion; none where it cannot be read."""
    from mjolnir import ledger as ledgers

    try:
        with ledgers.open(context.params.get("ledger")) as opened:
            return [summary.tag for summary in reversed(opened.tags()) if summary.tag.startswith(incomplete)]
    except (ledgers.LedgerError, OSError):
        return []


Tag = Annotated[
    str | None,
    typer.Argument(help="The campaign; without it the one with the latest activity.", autocompletion=known_tags),
]
Status = Annotated[
    str | None, typer.Option("--status", help="Only trials that ended so: measured, crashed, compile-failed, ...")
]
Knob = Annotated[
    list[str] | None,
    typer.Option("--knob", help="Only trials with this value in their setting, such as kv_stages=4; repeatable."),
]
Bucket = Annotated[
    int | None,
    typer.Option(
        "--bucket", min=1, help="Only trials that the search for this batch asked for, with their ratio there."
    ),
]
Since = Annotated[
    str | None,
    typer.Option("--since", help="Only trials since then: an age (90m, 12h, 3d, 2w), a date or a time (UTC)."),
]
RowDevice = Annotated[str | None, typer.Option("--device", help="Name of the row's device, or a part of it.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV instead of text.")]
Geometry = Annotated[
    str | None,
    typer.Option("--geometry", help="HEADS_Q/HEADS_KVxdHEAD_DIM,page=..,q=..; default 32/8xd128,page=64,q=1."),
]
Geometries = Annotated[
    list[str] | None,
    typer.Option(
        "--geometry",
        help="HEADS_Q/HEADS_KVxdHEAD_DIM,page=..,q=..; default 32/8xd128,page=64,q=1. Several: a campaign each, "
        "confirmed side by side.",
    ),
]
Placement = Annotated[
    str | None,
    typer.Option("--placement", help="How the KV cache lies: LAYOUT/PLACE; default head-major/together."),
]
Workload = Annotated[
    str | None, typer.Option("--workload", help="A preset, or a JSON file (mjolnir.workload/1); default decode8.")
]
Records = Annotated[
    list[Path] | None,
    typer.Option("--records", help="Where else records lie: a ledger.jsonl, or a folder of exported runs; repeatable."),
]
Model = Annotated[
    Path | None,
    typer.Option("--model", help="A local Hugging Face config.json that gives the geometry, in --geometry's place."),
]
TensorParallel = Annotated[
    int | None, typer.Option("--tensor-parallel", min=1, help="With --model: GPUs that share its heads; default 1.")
]
PageSize = Annotated[
    int | None, typer.Option("--page-size", min=1, help="With --model: tokens of one KV page; default 64.")
]
GateUrl = Annotated[
    str | None,
    typer.Option("--gate-url", help="Measure only while the vLLM server with this /metrics page has no requests."),
]
LeaseSeconds = Annotated[
    float,
    typer.Option(
        "--lease-seconds",
        min=1.0,
        help="With --storage: what a silent process had in hand is taken over after this time.",
    ),
]
TABLE_NAMES = ("--table", "--defaults")
"""What a table is given with, in every command; the first is the one that messages name."""

Table = Annotated[Path | None, typer.Option(*TABLE_NAMES, help="A scratch table in the place of the user's.")]
