"""`mjolnir defaults`: the table that a server reads."""

from __future__ import annotations

from typing import Annotated

import typer

from mjolnir.research.answer import Answer
from mjolnir.research.cli import options
from mjolnir.research.cli.output import Json, answer

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Look at the defaults table, and write proven rows to it."
)


@app.command()
def show(table: options.Table = None, as_json: Json = False) -> None:
    """All rows in force."""

    def work() -> Answer:
        from mjolnir.research import explain as twin

        return twin.show(twin.load(table))

    answer(work, as_json)


@app.command()
def explain(
    batch: Annotated[int, typer.Option("--batch", min=1, help="Sequences in one step.")],
    context: Annotated[int, typer.Option("--context", min=0, help="Tokens of each sequence.")] = 4096,
    device: Annotated[
        str, typer.Option("--device", help="auto, cuda:<number>, a known device's name, or ARCH/SMS/NAME.")
    ] = "auto",
    geometry: options.Geometry = None,
    placement: options.Placement = None,
    table: options.Table = None,
    as_json: Json = False,
) -> None:
    """Which row serves a batch on a device, and every step that led there."""

    def work() -> Answer:
        from mjolnir.research import explain as twin
        from mjolnir.research.request import Request

        problem = Request(device=device, geometry=geometry, placement=placement).problem()
        question = twin.Question(problem[0], problem[1], device, batch, context)
        return twin.explain(question, twin.load(table))

    answer(work, as_json)


@app.command()
def promote(
    tag: Annotated[str, typer.Argument(help="The campaign whose proven rows are written.")],
    table: options.Table = None,
    ledger: options.Ledger = None,
    as_json: Json = False,
) -> None:
    """Write the rows that a campaign proved: one commit a row in a checkout, else into the user's table."""

    def work() -> Answer:
        from mjolnir import ledger as ledgers
        from mjolnir.research import promote as twin
        from mjolnir.research.journal import as_mapping
        from mjolnir.research.listing import find

        with ledgers.open(ledger) as opened:
            records = [as_mapping(record) for record in opened.records(find(opened, tag).tag)]
        return twin.promote(tag, records, table)

    answer(work, as_json)
