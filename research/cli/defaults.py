"""`mjolnir defaults`: the table that a server reads."""

from __future__ import annotations

from pathlib import Path
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
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=1, help="Sequences in one step; without it, with --model, what every size gets."),
    ] = None,
    context: Annotated[int, typer.Option("--context", min=0, help="Tokens of each sequence.")] = 4096,
    device: Annotated[
        str, typer.Option("--device", help="auto, cuda:<number>, a known device's name, or ARCH/SMS/NAME.")
    ] = "auto",
    geometry: options.Geometry = None,
    model: options.Model = None,
    tensor_parallel: options.TensorParallel = None,
    page_size: options.PageSize = None,
    placement: options.Placement = None,
    speculative_tokens: Annotated[
        int, typer.Option("--speculative-tokens", min=0, help="With --model alone: tokens that a drafter proposes.")
    ] = 0,
    max_num_seqs: Annotated[
        int, typer.Option("--max-num-seqs", min=1, max=8192, help="With --model alone: the most requests of a step.")
    ] = 256,
    table: options.Table = None,
    as_json: Json = False,
) -> None:
    """Which row serves a batch on a device, and every step that led there; or what a model's server would use."""

    def work() -> Answer:
        if batch is None:
            return explain_model()
        from mjolnir.research import explain as twin
        from mjolnir.research.request import Request

        problem = Request(
            device=device,
            geometry=geometry,
            model=model,
            tensor_parallel=tensor_parallel,
            page_size=page_size,
            placement=placement,
        ).problem()
        question = twin.Question(problem[0], problem[1], device, batch, context)
        return twin.explain(question, twin.load(table))

    def explain_model() -> Answer:
        from mjolnir.research import explain as tables
        from mjolnir.research import explain_model as twin
        from mjolnir.research.answer import UsageFailure
        from mjolnir.research.request import Request
        from mjolnir.research.serving.config import Serving

        if model is None or geometry is not None:
            raise UsageFailure("name a batch with --batch, or a model with --model and no --geometry for all of them")
        serving = Serving(
            tensor_parallel=tensor_parallel or 1, block_size=page_size or 0, speculative_tokens=speculative_tokens,
            max_num_seqs=max_num_seqs,
        )  # fmt: skip
        lies = Request(placement=placement).problem()[1] if placement else None
        return twin.explain_model(twin.Question(model, device, serving, lies), tables.load(table))

    answer(work, as_json)


@app.command()
def promote(
    tag: Annotated[str, typer.Argument(help="The campaign whose proven rows are written.")],
    table: options.Table = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace also rows in force that the campaign was not compared with.")
    ] = False,
    ledger: options.Ledger = None,
    as_json: Json = False,
) -> None:
    """Write the rows that a campaign proved: one commit a row in a checkout, else into the user's table."""

    def work() -> Answer:
        from mjolnir import ledger as ledgers
        from mjolnir.research import promote as twin
        from mjolnir.research.journal import as_mapping
        from mjolnir.research.listing import find
        from mjolnir.research.removal import require_in_force

        with ledgers.open(ledger) as opened:
            name = find(opened, tag).tag
            require_in_force(opened, name, "no row of it is written; prove its settings again under another --tag")
            records = [as_mapping(record) for record in opened.records(name)]
            return twin.promote(tag, records, opened, table, replace=replace)

    answer(work, as_json)


@app.command()
def demote(
    row: Annotated[str, typer.Argument(help="The row: its batch, FIELD=VALUE,... of its key, or the key as JSON.")],
    reason: Annotated[str, typer.Option("--reason", "-m", help="Why, in a sentence.")] = "",
    device: options.RowDevice = None,
    table: options.Table = None,
    ledger: options.Ledger = None,
    as_json: Json = False,
) -> None:
    """Take a row out, with a record of why: one commit in a checkout, else from the user's table."""

    def work() -> Answer:
        from mjolnir import ledger as ledgers
        from mjolnir.research import demote as twin

        with ledgers.open(ledger) as opened:
            return twin.demote(row, opened, device=device, reason=reason, table=table)

    answer(work, as_json)


@app.command()
def diff(
    first: Annotated[
        str | None, typer.Argument(metavar="A", help="A table file or a git revision; default HEAD's table.")
    ] = None,
    second: Annotated[
        str | None, typer.Argument(metavar="B", help="The same; default the work tree's table, else the user's.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Rows added, removed and changed between two tables, with their ratios."""

    def work() -> Answer:
        from mjolnir.research import diff as twin

        return twin.diff(first, second)

    answer(work, as_json)


@app.command()
def check(
    table: options.Table = None,
    records: options.Records = None,
    ledger: options.Ledger = None,
    as_json: Json = False,
) -> None:
    """Rows that are stale, cannot run or lack evidence, and the error budget that the table spent."""

    def work() -> Answer:
        from mjolnir import ledger as ledgers
        from mjolnir.kernel.sources import kernel_hash
        from mjolnir.research import check as twin
        from mjolnir.research.evidence import Evidence
        from mjolnir.research.verify_rows import tables_in

        with ledgers.open(ledger) as opened:
            return twin.check(tables_in(table), kernel_hash(), Evidence.of(opened, records or ()))

    answer(work, as_json)


@app.command()
def verify(
    table: Annotated[Path | None, typer.Option(*options.TABLE_NAMES, help="The table; else those in force.")] = None,
    records: options.Records = None,
    ledger: options.Ledger = None,
    as_json: Json = False,
) -> None:
    """Derive each row's certificate again from records alone; exit code 1 when one does not follow."""

    def work() -> Answer:
        from mjolnir import ledger as ledgers
        from mjolnir.research import verify_rows as twin
        from mjolnir.research.evidence import Evidence

        with ledgers.open(ledger) as opened:
            return twin.verify(twin.tables_in(table), Evidence.to_the_letter(opened, records or ()))

    answer(work, as_json)
