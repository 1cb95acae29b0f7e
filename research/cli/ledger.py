"""`mjolnir ledger`: keep the ledger whole, and move it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mjolnir.research.answer import Answer
from mjolnir.research.cli import options
from mjolnir.research.cli.output import Json, answer

if TYPE_CHECKING:
    from mjolnir.backend.table import Table
    from mjolnir.ledger import Ledger

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Import, check, repair and move the ledger.")

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
Remote = Annotated[str, typer.Argument(help="A remote of the repository that holds the ledger, or a URL.")]


@app.command()
def reindex(ledger: options.Ledger = None, as_json: Json = False) -> None:
    """Rebuild the index from the live file and the git refs."""
    from mjolnir.research import maintenance

    _answer(maintenance.reindex, ledger, as_json)


@app.command(name="import")
def import_(
    file: Annotated[Path, typer.Argument(help="A ledger.jsonl, exported or carried from another machine.")],
    ledger: options.Ledger = None,
    as_json: Json = False,
) -> None:
    """Take the records of a file into this ledger; doing it twice changes nothing."""
    from mjolnir.research import maintenance

    _answer(lambda opened: maintenance.import_file(opened, file), ledger, as_json)


@app.command()
def verify(ledger: options.Ledger = None, as_json: Json = False) -> None:
    """Check schema and hash chains, live file against git against index, and certificates against records."""
    from mjolnir.research import maintenance

    _answer(lambda opened: maintenance.verify(opened, _tables()), ledger, as_json)


@app.command()
def repair(dry_run: DryRun = False, ledger: options.Ledger = None, as_json: Json = False) -> None:
    """Keep what is provably whole and set the rest aside; nothing is deleted, and doing it twice changes nothing.

    Lines that cannot stay lie in .ledger/aside-... beside the live file afterwards, refs under refs/mjolnir/aside.
    """
    from mjolnir.research import maintenance

    _answer(lambda opened: maintenance.repair(opened, dry_run), ledger, as_json)


@app.command()
def remove(
    tag: Annotated[str, typer.Argument(help="The campaign to remove.")],
    message: Annotated[str, typer.Option("--message", "-m", help="Why, for the record.")] = "",
    ledger: options.Ledger = None,
    as_json: Json = False,
) -> None:
    """Mark a campaign as removed by a record that stays; `mjolnir ledger gc` then deletes its records."""
    from mjolnir.research import maintenance

    _answer(lambda opened: maintenance.remove(opened, tag, message, _tables()), ledger, as_json)


@app.command()
def gc(dry_run: DryRun = False, ledger: options.Ledger = None, as_json: Json = False) -> None:
    """Delete, for good, the records of campaigns that were removed; never run by itself.

    What was pushed or exported stays there. git drops the objects when it next prunes.
    """
    from mjolnir.research import maintenance

    _answer(lambda opened: maintenance.collect(opened, dry_run, _tables()), ledger, as_json)


@app.command()
def push(remote: Remote = "origin", ledger: options.Ledger = None, as_json: Json = False) -> None:
    """Send the ledger refs (refs/mjolnir/ledger/*) to a remote; what it has is never overwritten.

    To keep ledger refs out of your own views of the repository:

    \b
    git log --exclude='refs/mjolnir/*' --all
    git config --add log.excludeDecoration 'refs/mjolnir/'
    """
    from mjolnir.research import maintenance

    _answer(lambda opened: maintenance.push(opened, remote), ledger, as_json)


@app.command()
def fetch(remote: Remote = "origin", ledger: options.Ledger = None, as_json: Json = False) -> None:
    """Take the records that a remote has and this ledger has not: the union of both, each checked first.

    To keep ledger refs out of your own views of the repository:

    \b
    git log --exclude='refs/mjolnir/*' --all
    git config --add log.excludeDecoration 'refs/mjolnir/'
    """
    from mjolnir.research import maintenance

    _answer(lambda opened: maintenance.fetch(opened, remote), ledger, as_json)


def _answer(twin: Callable[[Ledger], Answer], folder: Path | None, as_json: bool) -> None:
    """Answer with what `twin` says of the ledger in `folder`."""

    def work() -> Answer:
        from mjolnir import ledger as ledgers

        with ledgers.open(folder) as opened:
            return twin(opened)

    answer(work, as_json)


def _tables() -> list[Table]:
    from mjolnir.research.verify_rows import tables_in

    return tables_in(None)
