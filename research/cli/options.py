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
Tag = Annotated[str | None, typer.Argument(help="The campaign; without it the one with the latest activity.")]
Geometry = Annotated[
    str | None,
    typer.Option("--geometry", help="HEADS_Q/HEADS_KVxdHEAD_DIM,page=..,q=..; default 32/8xd128,page=64,q=1."),
]
Placement = Annotated[
    str | None,
    typer.Option("--placement", help="How the KV cache lies: LAYOUT/PLACE; default head-major/together."),
]
Workload = Annotated[
    str | None, typer.Option("--workload", help="A preset, or a JSON file (mjolnir.workload/1); default decode8.")
]
Table = Annotated[Path | None, typer.Option("--table", help="A scratch table in the place of the user's.")]
