"""`mjolnir autoresearch list`, `show`, `note`, `why` and `compare`: what is on record, told."""

from __future__ import annotations

from typing import Annotated

import typer

from mjolnir.research.answer import Answer, UsageFailure
from mjolnir.research.choosing import ALL, Filters, TagOrder, TrialOrder
from mjolnir.research.cli import options
from mjolnir.research.cli.output import Json, answer, one_form


def list_(
    status: options.Status = None,
    knob: options.Knob = None,
    bucket: options.Bucket = None,
    since: options.Since = None,
    sort: Annotated[TagOrder, typer.Option("--sort", help="The order of the campaigns.")] = TagOrder.LAST,
    ledger: options.Ledger = None,
    as_csv: options.Csv = False,
    as_json: Json = False,
) -> None:
    """All campaigns of the ledger, or those that have trials of a kind."""

    def work() -> Answer:
        from mjolnir import ledger as ledgers
        from mjolnir.research import listing

        filters = Filters(status, tuple(knob or ()), bucket, since)
        with ledgers.open(ledger) as opened:
            return listing.listing(opened, filters, sort, one_form(as_csv, as_json))

    answer(work, as_json)


def show(
    tag: options.Tag = None,
    trial: Annotated[int | None, typer.Argument(help="A trial's number; without it the whole campaign.")] = None,
    status: options.Status = None,
    knob: options.Knob = None,
    bucket: options.Bucket = None,
    since: options.Since = None,
    sort: Annotated[
        TrialOrder | None, typer.Option("--sort", help="The order of the trials; ratio: measured ones, fastest first.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many trials.")] = None,
    ledger: options.Ledger = None,
    as_csv: options.Csv = False,
    as_json: Json = False,
) -> None:
    """What a campaign found; one of its trials in full; with a filter, an order, a limit or --csv a list of them."""

    def work() -> Answer:
        from mjolnir import ledger as ledgers
        from mjolnir.research import show as twin
        from mjolnir.research import trials

        filters = Filters(status, tuple(knob or ()), bucket, since)
        listed = filters != ALL or sort is not None or limit is not None or as_csv
        if listed and trial is not None:
            raise UsageFailure(f"trial {trial} is one trial: leave its number out to list, or the filters to see it")
        with ledgers.open(ledger) as opened:
            if listed:
                order = sort or TrialOrder.TRIAL
                return trials.trials(opened, tag, filters, order, limit, one_form(as_csv, as_json))
            return twin.show(opened, tag, trial)

    answer(work, as_json)


def note(
    tag: Annotated[str, typer.Argument(help="The campaign.", autocompletion=options.known_tags)],
    words: Annotated[
        list[str], typer.Argument(metavar="[TRIAL] TEXT", help="A trial's number where it is about one, and the text.")
    ],
    ledger: options.Ledger = None,
    as_json: Json = False,
) -> None:
    """Keep a remark about a campaign or one of its trials; `show` tells it, and it is exported with the rest."""

    def work() -> Answer:
        from mjolnir import ledger as ledgers
        from mjolnir.research import note as twin

        with ledgers.open(ledger) as opened:
            return twin.note(opened, tag, words)

    answer(work, as_json)


def why(
    tag: Annotated[str | None, typer.Argument(help="The campaign; left out when a row is asked for.")] = None,
    what: Annotated[str | None, typer.Argument(help="A trial's number, or bucket=<batch>, such as bucket=8.")] = None,
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="The row in force for this batch.")] = None,
    device: options.RowDevice = None,
    key: Annotated[
        str | None,
        typer.Option("--key", help="The row by its key: JSON, or FIELD=VALUE,... such as batch=8,heads_q=32."),
    ] = None,
    table: options.Table = None,
    records: options.Records = None,
    ledger: options.Ledger = None,
    as_json: Json = False,
) -> None:
    """Tell the story of a trial, of a bucket's decision, or of a row in force."""

    def work() -> Answer:
        from mjolnir import ledger as ledgers
        from mjolnir.research import why as twin
        from mjolnir.research.evidence import Evidence
        from mjolnir.research.explain import load

        row = key or (str(batch) if batch else None)
        if (row is None) == (tag is None) or (tag is not None and what is None):
            raise UsageFailure(
                "name a trial (why TAG 42), a bucket (why TAG bucket=8), or a row (why --batch 8 --device NAME)"
            )
        with ledgers.open(ledger) as opened:
            evidence = Evidence.of(opened, records or ())
            if row is not None:
                return twin.why_row(row, device, load(table).tables, evidence, table)
            return twin.why(str(what), evidence, str(tag))

    answer(work, as_json)


def compare(
    first: Annotated[str, typer.Argument(metavar="TAG", help="A campaign.")],
    second: Annotated[str, typer.Argument(metavar="TAG", help="Another one.")],
    records: options.Records = None,
    ledger: options.Ledger = None,
    as_json: Json = False,
) -> None:
    """Two campaigns side by side: best and proven by bucket, agreement, and what cannot be compared."""

    def work() -> Answer:
        from mjolnir import ledger as ledgers
        from mjolnir.research import compare as twin
        from mjolnir.research.evidence import Evidence

        with ledgers.open(ledger) as opened:
            return twin.compare(first, second, Evidence.of(opened, records or ()))

    answer(work, as_json)
