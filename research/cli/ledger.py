"""`mjolnir ledger`: keep the ledger whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mjolnir.research.answer import Answer
from mjolnir.research.cli import options
from mjolnir.research.cli.output import Json, answer

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Import, index and check the ledger.")


@app.command()
def reindex(ledger: options.Ledger = None, as_json: Json = False) -> None:
    """Rebuild the index from the live file and the git refs."""

    def work() -> Answer:
        from mjolnir import ledger as ledgers
        from mjolnir.research import maintenance

        with ledgers.open(ledger) as opened:
            return maintenance.reindex(opened)

    answer(work, as_json)


@app.command(name="import")
def import_(
    file: Annotated[Path, typer.Argument(help="A ledger.jsonl, exported or carried from another machine.")],
    ledger: options.Ledger = None,
    as_json: Json = False,
) -> None:
    """Take the records of a file into this ledger; doing it twice changes nothing."""

    def work() -> Answer:
        from mjolnir import ledger as ledgers
        from mjolnir.research import maintenance

        with ledgers.open(ledger) as opened:
            return maintenance.import_file(opened, file)

    answer(work, as_json)


@app.command()
def verify(ledger: options.Ledger = None, as_json: Json = False) -> None:
    """Check schema and hash chain of every record."""

    def work() -> Answer:
        from mjolnir import ledger as ledgers
        from mjolnir.research import maintenance

        with ledgers.open(ledger) as opened:
            return maintenance.verify(opened)

    answer(work, as_json)
