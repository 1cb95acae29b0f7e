"""The `mjolnir` command: one group of commands a file, each a thin layer over its twin in `mjolnir.research`.

Nothing heavy is imported here or in the groups, so that `--help` and completion come at once.
"""

from __future__ import annotations

import signal

import typer

from mjolnir.research.cli import autoresearch, bench, defaults, doctor, ledger

app = typer.Typer(
    name="mjolnir",
    help="Tunes a paged decode-attention kernel, records every trial, and promotes what is proven faster.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(autoresearch.app, name="autoresearch")
app.add_typer(ledger.app, name="ledger")
app.add_typer(defaults.app, name="defaults")
app.add_typer(bench.app, name="bench")
app.command(name="doctor")(doctor.doctor)


def run() -> None:
    """Entry point of the console script. SIGTERM is Ctrl-C from the first moment on."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app(prog_name="mjolnir")


if __name__ == "__main__":
    run()
